"""gdn and gdn_fold against the oracle, and equality of bits over chunks, batches, slots and replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.kernels.gdn import IMPLEMENTATIONS, gdn, gdn_fold, oracle
from ninfer.kernels.gdn.cases import CASES, Case
from ninfer.kernels.gdn.plan import plan
from ninfer.kernels.routes import DeviceKind, Problem, Route
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import StateSlots
from ninfer.kernels.tolerances import RECURRENCE
from tests.kernels.harness import Trial, conform, poisoned, same_bits


@dataclass(frozen=True)
class Tokens:
    """The recurrence's inputs for one sequence of T tokens."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor

    def part(self, begin: int, end: int) -> Tokens:
        return Tokens(*(x[begin:end].clone() for x in self.all()))

    def all(self) -> tuple[torch.Tensor, ...]:
        return self.q, self.k, self.v, self.g, self.beta


def _sequence(tokens: int, nk: int, nv: int, dk: int, dv: int, seed: int = 0) -> Tokens:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    g = -torch.rand(tokens, nv, generator=generator) * 0.3
    beta = torch.rand(tokens, nv, generator=generator)
    return Tokens(normal(tokens, nk, dk), normal(tokens, nk, dk), normal(tokens, nv, dv), g, beta)


def _joined(parts: Sequence[Tokens]) -> Tokens:
    return Tokens(*(torch.cat(xs) for xs in zip(*(p.all() for p in parts), strict=True)))


def _segments(counts: Sequence[int]) -> Segments:
    return Segments(tuple(counts), (0,) * len(counts))


@pytest.mark.parametrize("op", ["gdn", "gdn_fold"])
@pytest.mark.parametrize("case", CASES["gdn"], ids=lambda case: case.name)
def test_matches_the_oracle(case: Case, op: str) -> None:
    x = _sequence(sum(case.counts), case.key_heads, case.value_heads, case.dk, case.dv)
    generator = torch.Generator().manual_seed(1)
    shape = (case.slots, case.value_heads, case.dv, case.dk)
    before = torch.randn(shape, generator=generator)
    state, out = before.clone(), poisoned(*x.v.shape)
    segments = _segments(case.counts)
    wanted, after = oracle.gdn(*(t.numpy() for t in x.all()), before.numpy(), case.sources, case.targets, case.counts)
    slots = (StateSlots(case.sources, case.targets), segments)

    def run(route: Route) -> None:
        state.copy_(before)
        if op == "gdn":
            IMPLEMENTATIONS[op][route](*x.all(), state, *slots, out)
        else:
            IMPLEMENTATIONS[op][route](*x.all()[1:], state, *slots)

    outputs = {"state": state, "out": out} if op == "gdn" else {"state": state}
    expected = {"state": after, "out": wanted}
    inputs = dict(zip(("q", "k", "v", "g", "beta"), x.all(), strict=True))
    trial = Trial(inputs, outputs, run, {n: expected[n] for n in outputs}, dict.fromkeys(outputs, RECURRENCE))
    conform(trial, plan(Problem(DeviceKind.CPU)))
    for slot in set(range(case.slots)) - set(case.targets):
        assert same_bits(state[slot], before[slot]), "a slot that is no target was modified"


def _whole(x: Tokens, start: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    state, out = start[None].clone(), poisoned(*x.v.shape)
    gdn(*x.all(), state, StateSlots((0,), (0,)), _segments([x.v.shape[0]]), out)
    return out, state[0]


GEOMETRIES = [(1, 1, 16, 16), (1, 2, 32, 32), (2, 2, 64, 64), (2, 6, 128, 128)]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("chunk", [1, 7, 63, 64, 65, 128])
def test_bits_do_not_depend_on_chunks(geometry: tuple[int, int, int, int], chunk: int) -> None:
    x = _sequence(150, *geometry, seed=2)
    _, nv, dk, dv = geometry
    start = torch.randn(nv, dv, dk, generator=torch.Generator().manual_seed(3))
    out, final = _whole(x, start)
    state, pieces = start[None].clone(), []
    for begin in range(0, 150, chunk):
        part = x.part(begin, begin + chunk)
        piece = poisoned(*part.v.shape)
        gdn(*part.all(), state, StateSlots((0,), (0,)), _segments([part.v.shape[0]]), piece)
        pieces.append(piece)
    assert same_bits(torch.cat(pieces), out)
    assert same_bits(state[0], final)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), geometry=st.sampled_from(GEOMETRIES[:3]))
def test_bits_do_not_depend_on_batch_and_slots(data: st.DataObject, geometry: tuple[int, int, int, int]) -> None:
    _, nv, dk, dv = geometry
    lengths = data.draw(st.lists(st.integers(1, 20), min_size=1, max_size=8))
    xs = [_sequence(n, *geometry, seed=i) for i, n in enumerate(lengths)]
    slots = data.draw(st.permutations(range(len(lengths) + 2)))
    state = torch.randn(len(slots), nv, dv, dk, generator=torch.Generator().manual_seed(9))
    starts = [state[slot].clone() for slot in slots]
    alone = [_whole(x, start) for x, start in zip(xs, starts, strict=False)]
    done = [0] * len(xs)
    outs: list[list[torch.Tensor]] = [[] for _ in xs]
    while any(n < length for n, length in zip(done, lengths, strict=True)):
        active = [i for i, length in enumerate(lengths) if done[i] < length]
        counts = [data.draw(st.integers(1, min(lengths[i] - done[i], 9))) for i in active]
        joined = _joined([xs[i].part(done[i], done[i] + n) for i, n in zip(active, counts, strict=True)])
        out = poisoned(*joined.v.shape)
        where = tuple(slots[i] for i in active)
        gdn(*joined.all(), state, StateSlots(where, where), _segments(counts), out)
        for i, piece, n in zip(active, out.split(counts), counts, strict=True):
            outs[i].append(piece)
            done[i] += n
    for i, (out, final) in enumerate(alone):
        assert same_bits(torch.cat(outs[i]), out)
        assert same_bits(state[slots[i]], final)


@pytest.mark.parametrize("accepted", [1, 4, 7])
def test_folding_a_prefix_gives_the_bits_that_verification_computed(accepted: int) -> None:
    x = _sequence(7, 2, 4, 32, 32)
    state = torch.randn(3, 4, 32, 32)
    committed = state[0].clone()
    gdn(*x.all(), state, StateSlots((0,), (1,)), _segments([7]), poisoned(*x.v.shape))
    assert same_bits(state[0], committed), "verification must leave the committed state alone"
    prefix = x.part(0, accepted)
    gdn(*prefix.all(), state, StateSlots((0,), (2,)), _segments([accepted]), poisoned(*prefix.v.shape))
    gdn_fold(*prefix.all()[1:], state, StateSlots((0,), (0,)), _segments([accepted]))
    assert same_bits(state[0], state[2])
    if accepted == 7:
        assert same_bits(state[0], state[1])


def test_folding_over_a_long_chain_of_random_accept_lengths() -> None:
    rng = np.random.default_rng(4)
    x = _sequence(200, 1, 2, 16, 16)
    state = torch.zeros(1, 2, 16, 16)
    begin = 0
    while begin < 200:
        count = int(rng.integers(1, 17))
        part = x.part(begin, begin + count)
        gdn_fold(*part.all()[1:], state, StateSlots((0,), (0,)), _segments([part.v.shape[0]]))
        begin += count
    assert same_bits(state[0], _whole(x, torch.zeros(2, 16, 16))[1])


def test_source_minus_one_is_a_zero_state() -> None:
    x = _sequence(5, 1, 2, 16, 16)
    state, out = torch.full((1, 2, 16, 16), float("nan")), poisoned(*x.v.shape)
    gdn(*x.all(), state, StateSlots((-1,), (0,)), _segments([5]), out)
    wanted, final = _whole(x, torch.zeros(2, 16, 16))
    assert same_bits(out, wanted)
    assert same_bits(state[0], final)


def test_bad_arguments_are_named() -> None:
    x = _sequence(2, 1, 2, 16, 16)
    state, out = torch.zeros(2, 2, 16, 16), poisoned(*x.v.shape)
    one, two = _segments([2]), _segments([1, 1])
    here = StateSlots((0,), (0,))
    with pytest.raises(ValueError, match="gdn: slots must lie below 2"):
        gdn(*x.all(), state, StateSlots((2,), (0,)), one, out)
    with pytest.raises(ValueError, match="gdn: slots must lie below 2"):
        gdn(*x.all(), state, StateSlots((0,), (2,)), one, out)
    with pytest.raises(ValueError, match="one pair per row"):
        gdn(*x.all(), state, here, two, out)
    with pytest.raises(ValueError, match="gdn: v"):
        gdn(x.q, x.k, x.v[:1], x.g, x.beta, state, here, one, out)
    with pytest.raises(ValueError, match="Nk dividing Nv"):
        gdn(x.q, torch.zeros(2, 3, 16), x.v, x.g, x.beta, state, here, one, out)
