"""gdn and gdn_fold against the oracle, and equality of bits over chunks, batches, slots, threads and replay."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.kernels.gdn import IMPLEMENTATIONS, compiled_cpu, gdn, gdn_fold, oracle
from ninfer.kernels.gdn.cases import CASES, Case
from ninfer.kernels.native import bodies, record
from ninfer.kernels.routes import Route
from ninfer.kernels.slots import ZERO, StateSlots
from ninfer.kernels.tolerances import RECURRENCE
from tests.kernels.gdn_samples import Geometry, Tokens, joined, segments_of, sequence, states
from tests.kernels.harness import Trial, conform, routes_here, same_bits

ROUTES = routes_here(IMPLEMENTATIONS["gdn"], compiled_cpu.SOURCE)


@pytest.mark.parametrize("op", ["gdn", "gdn_fold"])
@pytest.mark.parametrize("case", CASES["gdn"], ids=lambda case: case.name)
def test_matches_the_oracle(case: Case, op: str) -> None:
    x = sequence(sum(case.counts), case.key_heads, case.value_heads, case.dk, case.dv)
    before = states(case.slots, x.geometry)
    state, out = before.clone(), x.out()
    wanted, after = oracle.gdn(*x.arrays(), before.numpy(), case.sources, case.targets, case.counts)
    slots = (StateSlots(case.sources, case.targets), segments_of(*case.counts))

    def run(route: Route) -> None:
        state.copy_(before)
        IMPLEMENTATIONS[op][route](*x.all(), state, *slots, *([out] if op == "gdn" else []))

    outputs = {"state": state, "out": out} if op == "gdn" else {"state": state}
    expected = {"state": after, "out": wanted}
    inputs = dict(zip(("qkv", "g", "beta"), x.all(), strict=True))
    trial = Trial(inputs, outputs, run, {n: expected[n] for n in outputs}, dict.fromkeys(outputs, RECURRENCE))
    conform(trial, ROUTES)
    for slot in set(range(case.slots)) - set(case.targets):
        assert same_bits(state[slot], before[slot]), "a slot that is no target was modified"


def _whole(route: Route, x: Tokens, start: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    state, out = start[None].clone(), x.out()
    IMPLEMENTATIONS["gdn"][route](*x.all(), state, StateSlots((0,), (0,)), segments_of(len(out)), out)
    return out, state[0]


GEOMETRIES = [(1, 1, 16, 16), (1, 2, 32, 32), (2, 2, 13, 36), (2, 6, 128, 128)]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_bits_do_not_depend_on_chunks(geometry: Geometry, chunk: int, route: Route) -> None:
    x, start = sequence(90, *geometry, seed=2), states(1, geometry)[0]
    out, final = _whole(route, x, start)
    state, pieces = torch.stack((start, start)), []
    for i, begin in enumerate(range(0, 90, chunk)):
        part = x.part(begin, begin + chunk)
        pieces.append(part.out())
        slots = StateSlots((i % 2,), ((i + 1) % 2,))
        IMPLEMENTATIONS["gdn"][route](*part.all(), state, slots, segments_of(len(part.g)), pieces[-1])
    assert same_bits(torch.cat(pieces), out)
    assert same_bits(state[len(pieces) % 2], final)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), geometry=st.sampled_from(GEOMETRIES[:3]), route=st.sampled_from(ROUTES))
def test_bits_do_not_depend_on_batch_and_slots(data: st.DataObject, geometry: Geometry, route: Route) -> None:
    lengths = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=8))
    xs = [sequence(n, *geometry, seed=i) for i, n in enumerate(lengths)]
    slots = data.draw(st.permutations(range(len(lengths) + 2)))
    state = states(len(slots), geometry, seed=9)
    starts = [state[slot].clone() for slot in slots]
    alone = [_whole(route, x, start) for x, start in zip(xs, starts, strict=False)]
    done = [0] * len(xs)
    outs: list[list[torch.Tensor]] = [[] for _ in xs]
    while any(n < length for n, length in zip(done, lengths, strict=True)):
        active = [i for i, length in enumerate(lengths) if done[i] < length]
        counts = [data.draw(st.integers(1, min(lengths[i] - done[i], 9))) for i in active]
        tokens = joined([xs[i].part(done[i], done[i] + n) for i, n in zip(active, counts, strict=True)])
        out, where = tokens.out(), tuple(slots[i] for i in active)
        IMPLEMENTATIONS["gdn"][route](*tokens.all(), state, StateSlots(where, where), segments_of(*counts), out)
        for i, piece, n in zip(active, out.split(counts), counts, strict=True):
            outs[i].append(piece)
            done[i] += n
    for i, (out, final) in enumerate(alone):
        assert same_bits(torch.cat(outs[i]), out)
        assert same_bits(state[slots[i]], final)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
def test_bits_do_not_depend_on_threads(route: Route, two_threads: None) -> None:
    x = sequence(40, 2, 6, 128, 128)
    before, slots, segments = states(4, x.geometry), StateSlots((0, 0, ZERO), (1, 2, 3)), segments_of(1, 38, 1)
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        state, out = before.clone(), x.out()
        IMPLEMENTATIONS["gdn"][route](*x.all(), state, slots, segments, out)
        results.append((state, out))
    assert same_bits(results[0][0], results[1][0])
    assert same_bits(results[0][1], results[1][1])


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
@pytest.mark.parametrize("accepted", [1, 4, 7])
def test_folding_a_prefix_gives_the_bits_that_verification_computed(accepted: int, route: Route) -> None:
    x = sequence(7, 2, 4, 32, 40)
    state = states(3, x.geometry)
    verify, fold = IMPLEMENTATIONS["gdn"][route], IMPLEMENTATIONS["gdn_fold"][route]
    committed = state[0].clone()
    verify(*x.all(), state, StateSlots((0,), (1,)), segments_of(7), x.out())
    assert same_bits(state[0], committed), "verification must leave the committed state alone"
    prefix = x.part(0, accepted)
    verify(*prefix.all(), state, StateSlots((0,), (2,)), segments_of(accepted), prefix.out())
    fold(*prefix.all(), state, StateSlots((0,), (0,)), segments_of(accepted))
    assert same_bits(state[0], state[2])
    if accepted == 7:
        assert same_bits(state[0], state[1])


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
def test_folding_over_a_long_chain_of_random_accept_lengths(route: Route) -> None:
    rng = np.random.default_rng(4)
    x = sequence(200, 1, 2, 16, 16)
    state = torch.zeros(1, 2, 16, 16)
    begin = 0
    while begin < 200:
        part = x.part(begin, begin + int(rng.integers(1, 17)))
        IMPLEMENTATIONS["gdn_fold"][route](*part.all(), state, StateSlots((0,), (0,)), segments_of(len(part.g)))
        begin += len(part.g)
    assert same_bits(state[0], _whole(route, x, torch.zeros(2, 16, 16))[1])


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
def test_source_minus_one_is_a_zero_state(route: Route) -> None:
    x = sequence(5, 1, 2, 16, 16)
    state, out = torch.full((1, 2, 16, 16), float("nan")), x.out()
    IMPLEMENTATIONS["gdn"][route](*x.all(), state, StateSlots((ZERO,), (0,)), segments_of(5), out)
    wanted, final = _whole(route, x, torch.zeros(2, 16, 16))
    assert same_bits(out, wanted)
    assert same_bits(state[0], final)


def test_a_recorded_call_reads_its_slots_when_it_runs() -> None:
    if not bodies(compiled_cpu.SOURCE):
        pytest.skip("compiled kernels cannot be built here")
    x = sequence(3, 1, 2, 16, 24)
    state, out, slots = states(5, x.geometry), x.out(), StateSlots((ZERO, ZERO), (0, 1))
    wanted_state, wanted = state.clone(), x.out()
    gdn(*x.all(), wanted_state, StateSlots((3, 0), (4, 0)), segments_of(1, 2), wanted)
    with record() as tape:
        gdn(*x.all(), state, slots, segments_of(1, 2), out)
    slots.data.copy_(torch.tensor([[3, 0], [4, 0]]))
    tape.run()
    assert same_bits(out, wanted)
    assert same_bits(state, wanted_state)


def test_a_non_finite_row_stays_alone() -> None:
    x = sequence(6, 1, 2, 16, 24)
    alone, out = x.out(), x.out()
    gdn(*x.all(), states(2, x.geometry), StateSlots((0, 1), (0, 1)), segments_of(3, 3), alone)
    x.qkv[0].fill_(float("inf"))
    state = states(2, x.geometry)
    gdn(*x.all(), state, StateSlots((0, 1), (0, 1)), segments_of(3, 3), out)
    assert not out[0].isfinite().all()
    assert same_bits(out[3:], alone[3:])
    assert state[1].isfinite().all()


def test_bad_arguments_are_named() -> None:
    x = sequence(2, 1, 2, 16, 16)
    state, out, here = torch.zeros(2, 2, 16, 16), x.out(), StateSlots((0,), (0,))
    one, two = segments_of(2), segments_of(1, 1)
    with pytest.raises(ValueError, match="gdn: slots must lie below 2"):
        gdn(*x.all(), state, StateSlots((2,), (0,)), one, out)
    with pytest.raises(ValueError, match="gdn_fold: slots must lie below 2"):
        gdn_fold(*x.all(), state, StateSlots((0,), (2,)), one)
    with pytest.raises(ValueError, match="one pair per row"):
        gdn(*x.all(), state, here, two, out)
    with pytest.raises(ValueError, match="gdn: qkv"):
        gdn(x.qkv[:1], x.g, x.beta, state, here, one, out)
    with pytest.raises(ValueError, match="gdn: g"):
        gdn(x.qkv, x.g[:, :1], x.beta, state, here, one, out)
    for width in (32, 33, 65, 128 + 32):
        with pytest.raises(ValueError, match="Nk dividing Nv"):
            gdn(torch.zeros(2, width), x.g, x.beta, state, here, one, out)
