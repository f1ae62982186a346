"""conv_silu against its oracle, and equality of bits over chunks and batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.kernels.conv_silu import IMPLEMENTATIONS, compiled_cpu, conv_silu, oracle
from ninfer.kernels.conv_silu.cases import CASES, Case
from ninfer.kernels.native import bodies, record
from ninfer.kernels.routes import Route
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import ZERO, StateSlots
from ninfer.kernels.tolerances import CONVOLUTION, EXACT
from tests.kernels.harness import Trial, conform, poisoned, routes_here, same_bits

ROUTES = routes_here(IMPLEMENTATIONS["conv_silu"], compiled_cpu.SOURCE)


def _normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _segments(counts: Sequence[int]) -> Segments:
    return Segments(tuple(counts), (0,) * len(counts))


@pytest.mark.parametrize("case", CASES["conv_silu"], ids=lambda case: case.name)
def test_matches_the_oracle(case: Case) -> None:
    x, weight = _normal(sum(case.counts), case.channels), _normal(case.taps, case.channels, seed=1)
    before = _normal(case.slots, case.taps - 1, case.channels, seed=2)
    history, out = before.clone(), poisoned(*x.shape)
    arrays = x.numpy(), weight.numpy(), before.numpy()
    wanted, after = oracle.conv_silu(*arrays, case.sources, case.targets, case.counts)

    def run(route: Route) -> None:
        history.copy_(before)
        slots = (StateSlots(case.sources, case.targets), _segments(case.counts))
        IMPLEMENTATIONS["conv_silu"][route](x, weight, history, *slots, out)

    trial = Trial(
        {"x": x, "weight": weight},
        {"out": out, "history": history},
        run,
        {"out": wanted, "history": after},
        {"out": CONVOLUTION, "history": EXACT},
    )
    conform(trial, ROUTES)
    for slot in set(range(case.slots)) - set(case.targets):
        assert same_bits(history[slot], before[slot]), "a slot that is no target was modified"


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    channels=st.sampled_from([1, 5, 24, 33]),
    taps=st.integers(1, 5),
    route=st.sampled_from(ROUTES),
    data=st.data(),
)
def test_bits_do_not_depend_on_chunks_or_batch(
    lengths: list[int], channels: int, taps: int, route: Route, data: st.DataObject
) -> None:
    convolve, weight = IMPLEMENTATIONS["conv_silu"][route], _normal(taps, channels, seed=3)
    xs = [_normal(n, channels, seed=i) for i, n in enumerate(lengths)]
    start = _normal(len(xs), taps - 1, channels, seed=4)
    wanted, finals = [], []
    for i, x in enumerate(xs):
        history, out = start[i : i + 1].clone(), poisoned(*x.shape)
        convolve(x, weight, history, StateSlots((0,), (0,)), _segments([len(x)]), out)
        wanted.append(out)
        finals.append(history[0])
    history, done = start.clone(), [0] * len(xs)
    pieces: list[list[torch.Tensor]] = [[] for _ in xs]
    while active := [i for i, x in enumerate(xs) if done[i] < len(x)]:
        counts = [data.draw(st.integers(1, len(xs[i]) - done[i])) for i in active]
        joined = torch.cat([xs[i][done[i] : done[i] + n] for i, n in zip(active, counts, strict=True)])
        out, where = poisoned(*joined.shape), StateSlots(tuple(active), tuple(active))
        convolve(joined, weight, history, where, _segments(counts), out)
        for i, n, piece in zip(active, counts, out.split(counts), strict=True):
            pieces[i].append(piece)
            done[i] += n
    for i in range(len(xs)):
        assert same_bits(torch.cat(pieces[i]), wanted[i])
        assert same_bits(history[i], finals[i])


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
def test_bits_do_not_depend_on_threads(route: Route, two_threads: None) -> None:
    x, weight, before = _normal(9, 1500), _normal(4, 1500, seed=1), _normal(3, 3, 1500, seed=2)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        history, out = before.clone(), poisoned(*x.shape)
        slots, segments = StateSlots((0, ZERO), (1, 2)), _segments([1, 8])
        IMPLEMENTATIONS["conv_silu"][route](x, weight, history, slots, segments, out)
        results.append((history, out))
    assert same_bits(results[0][0], results[1][0])
    assert same_bits(results[0][1], results[1][1])


def test_a_recorded_call_reads_its_slots_when_it_runs() -> None:
    if not bodies(compiled_cpu.SOURCE):
        pytest.skip("compiled kernels cannot be built here")
    x, weight, history = _normal(3, 20), _normal(4, 20, seed=1), _normal(5, 3, 20, seed=2)
    out, slots = poisoned(3, 20), StateSlots((ZERO, ZERO), (0, 1))
    wanted_history, wanted = history.clone(), poisoned(3, 20)
    conv_silu(x, weight, wanted_history, StateSlots((3, 0), (4, 0)), _segments([1, 2]), wanted)
    with record() as tape:
        conv_silu(x, weight, history, slots, _segments([1, 2]), out)
    slots.data.copy_(torch.tensor([[3, 0], [4, 0]]))
    tape.run()
    assert same_bits(out, wanted)
    assert same_bits(history, wanted_history)


def test_a_source_that_is_no_target_keeps_its_bits() -> None:
    history = _normal(2, 3, 8)
    before = history.clone()
    conv_silu(_normal(2, 8), _normal(4, 8), history, StateSlots((0,), (1,)), _segments([2]), poisoned(2, 8))
    assert same_bits(history[0], before[0])
    assert not same_bits(history[1], before[1])


def test_agrees_with_conv1d() -> None:
    x, weight = _normal(30, 12), _normal(4, 12, seed=1)
    out = poisoned(30, 12)
    conv_silu(x, weight, torch.zeros(1, 3, 12), StateSlots((-1,), (0,)), _segments([30]), out)
    conv = torch.nn.functional.conv1d(x.T[None].double(), weight.T[:, None].double(), padding=3, groups=12)
    wanted = torch.nn.functional.silu(conv[0, :, :30].T)
    np.testing.assert_allclose(out.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)


def test_bad_arguments_are_named() -> None:
    x, weight, history = _normal(2, 8), _normal(4, 8), _normal(1, 3, 8)
    with pytest.raises(ValueError, match="conv_silu: history"):
        conv_silu(x, weight, _normal(1, 2, 8), StateSlots((0,), (0,)), _segments([2]), poisoned(2, 8))
    with pytest.raises(ValueError, match="conv_silu: x"):
        conv_silu(x, weight, history, StateSlots((0,), (0,)), _segments([3]), poisoned(3, 8))
    with pytest.raises(ValueError, match="slots must lie below 1"):
        conv_silu(x, weight, history, StateSlots((1,), (0,)), _segments([2]), poisoned(2, 8))
