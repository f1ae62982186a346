"""gdn and gdn_fold on CUDA, in the emulator: both kernels against the oracle, and whose bits depend on what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from ninfer.kernels.gdn import IMPLEMENTATIONS, gdn, gdn_fold, oracle
from ninfer.kernels.gdn.cases import CASES, Case
from ninfer.kernels.gdn.plan import (
    CHUNK,
    MOST_ROWS,
    Wave,
    advance_bytes,
    cuda_plan,
    has_chunks,
    prepare_bytes,
    record_bytes,
    slab_warps,
)
from ninfer.kernels.jit import using
from ninfer.kernels.routes import Route
from ninfer.kernels.slots import ZERO, StateSlots
from ninfer.kernels.tolerances import RECURRENCE
from tests.kernels.emulator import NEEDS_EMULATOR, Emulator
from tests.kernels.gdn_samples import Tokens, joined, segments_of, sequence, states
from tests.kernels.harness import Trial, conform, same_bits

pytestmark = NEEDS_EMULATOR
SMALL = (1, 2, 32, 32)
STEPS = (1, 2, 16, 24)
SHARED = 99 * 1024

_CHUNKED = (
    Case("exactly_one", 1, 2, 32, 32, 1, (64,), (ZERO,), (0,)),
    Case("one_more", 1, 2, 32, 32, 2, (65,), (0,), (1,)),
    Case("mixed", 1, 2, 32, 32, 8, (1, 64, 2, 63, 130, 65), (0, 0, 1, ZERO, 2, 0), (3, 4, 1, 5, 2, 6)),
    Case("odd_slabs", 2, 2, 16, 48, 1, (70,), (0,), (0,)),
)


def _check(x: Tokens, before: torch.Tensor, case: Case, device: Emulator, op: str = "gdn") -> None:
    state, out = before.clone(), x.out()
    wanted, after = oracle.gdn(*x.arrays(), before.numpy(), case.sources, case.targets, case.counts)
    where = (StateSlots(case.sources, case.targets), segments_of(*case.counts))

    def run(route: Route) -> None:
        state.copy_(before)
        IMPLEMENTATIONS[op][route](*x.all(), state, *where, *([out] if op == "gdn" else []))

    outputs = {"state": state, "out": out} if op == "gdn" else {"state": state}
    expected = {"state": after, "out": wanted}
    inputs = dict(zip(("qkv", "g", "beta"), x.all(), strict=True))
    trial = Trial(inputs, outputs, run, {n: expected[n] for n in outputs}, dict.fromkeys(outputs, RECURRENCE))
    with using(device):
        conform(trial, (Route.CUDA,))
    for slot in set(range(case.slots)) - set(case.targets):
        assert same_bits(state[slot], before[slot]), "a slot that is no target was modified"


def _tokens(case: Case) -> Tokens:
    return sequence(sum(case.counts), case.key_heads, case.value_heads, case.dk, case.dv)


@pytest.mark.parametrize("op", ["gdn", "gdn_fold"])
@pytest.mark.parametrize("case", [c for c in CASES["gdn"] if c.name != "long"], ids=lambda case: case.name)
def test_steps_match_the_oracle(case: Case, op: str) -> None:
    x = _tokens(case)
    device = Emulator("check") if sum(case.counts) * case.dk < 400 else Emulator()
    _check(x, states(case.slots, x.geometry), case, device, op)


@pytest.mark.parametrize("op", ["gdn", "gdn_fold"])
@pytest.mark.parametrize("case", _CHUNKED, ids=lambda case: case.name)
def test_chunks_match_the_oracle(case: Case, op: str) -> None:
    x = _tokens(case)
    device = Emulator("check", cp_async="late" if op == "gdn" else "eager")
    _check(x, states(case.slots, x.geometry), case, device, op)


def test_chunks_of_official_heads_match_the_oracle() -> None:
    case = Case("official", 1, 2, 128, 128, 1, (130,), (0,), (0,))
    x = _tokens(case)
    _check(x, states(1, x.geometry), case, Emulator(order="sticky", cp_async="eager"))


@pytest.mark.parametrize("decay", [0.0, 1e-3, 5.0, 80.0])
def test_chunks_stand_weak_and_strong_decays(decay: float) -> None:
    x = sequence(200, *SMALL, seed=3)
    x.g.mul_(decay / 0.3)
    case = Case("decays", *SMALL, 1, (200,), (0,), (0,))
    _check(x, states(1, SMALL), case, Emulator())


def test_chunks_stand_decays_of_one_head_and_gaps() -> None:
    x = sequence(200, *SMALL, seed=3)
    x.g[::7] = -300.0
    x.g[:, 1] = -1e-6
    x.beta[100:, 0] = 0.0
    _check(x, states(1, SMALL), Case("gaps", *SMALL, 1, (200,), (0,), (0,)), Emulator())


@pytest.mark.parametrize("spread", [0.02, 0.3])
def test_chunks_stand_keys_that_are_much_alike(spread: float) -> None:
    x = sequence(256, *SMALL, seed=4)
    x.qkv[:, 32:64] = x.qkv[:1, 32:64] + spread * x.qkv[:, 32:64]
    x.beta.fill_(0.99)
    _check(x, states(1, SMALL), Case("alike", *SMALL, 1, (256,), (ZERO,), (0,)), Emulator())


@pytest.mark.parametrize("factor", [1e-12, 1e12])
def test_chunks_stand_values_and_states_of_any_magnitude(factor: float) -> None:
    x, state = sequence(130, *SMALL, seed=5), states(1, SMALL) * factor
    x.qkv[:, 64:] *= factor
    _check(x, state, Case("magnitude", *SMALL, 1, (130,), (0,), (0,)), Emulator())


def _run(x: Tokens, state: torch.Tensor, slots: StateSlots, counts: Sequence[int], device: Emulator) -> torch.Tensor:
    out = x.out()
    with using(device):
        gdn(*x.all(), state, slots, segments_of(*counts), out)
    return out


@pytest.mark.parametrize("order", ["fifo", "lifo", "random", "sticky"])
def test_bits_do_not_depend_on_the_order_of_threads(order: str) -> None:
    x, counts, slots = sequence(133, *SMALL), (1, 130, 2), StateSlots((0, 0, ZERO), (1, 2, 3))
    first, second = states(4, SMALL), states(4, SMALL)
    out = _run(x, first, slots, counts, Emulator())
    for seed, copies in ((1, "late"), (2, "eager")):
        state = second.clone()
        assert same_bits(_run(x, state, slots, counts, Emulator(order=order, seed=seed, cp_async=copies)), out)
        assert same_bits(state, first)


@pytest.mark.parametrize("chunk", [1, 7, 63])
def test_bits_of_short_rows_do_not_depend_on_how_they_are_cut(chunk: int) -> None:
    x, state = sequence(63, *STEPS, seed=2), states(1, STEPS)
    pieces, cut = [], torch.cat((state, state))
    out = _run(x, state, StateSlots((0,), (0,)), (63,), Emulator())
    for i, begin in enumerate(range(0, 63, chunk)):
        part = x.part(begin, begin + chunk)
        pieces.append(_run(part, cut, StateSlots((i % 2,), ((i + 1) % 2,)), (len(part.g),), Emulator(order="random")))
    assert same_bits(torch.cat(pieces), out)
    assert same_bits(cut[len(pieces) % 2], state[0])


def test_bits_of_long_rows_do_not_depend_on_cuts_at_whole_chunks() -> None:
    x, state = sequence(64 * 9 + 70, 1, 1, 32, 32, seed=2), states(1, (1, 1, 32, 32))
    cut, pieces, begin = state.clone(), [], 0
    out = _run(x, state, StateSlots((0,), (0,)), (64 * 9 + 70,), Emulator())
    for count in (64, 128, 64 * 6, 70):
        pieces.append(_run(x.part(begin, begin + count), cut, StateSlots((0,), (0,)), (count,), Emulator()))
        begin += count
    assert same_bits(torch.cat(pieces), out)
    assert same_bits(cut, state)


def test_bits_of_a_row_do_not_depend_on_the_batch() -> None:
    counts = (1, 64, 5, 130, 63)
    xs = [sequence(n, *SMALL, seed=i) for i, n in enumerate(counts)]
    alone, starts = [], states(5, SMALL)
    for i, x in enumerate(xs):
        state = starts[i : i + 1].clone()
        alone.append((_run(x, state, StateSlots((0,), (0,)), (counts[i],), Emulator()), state))
    for order in ((0, 1, 2, 3, 4), (3, 1, 4, 0, 2)):
        where, state = StateSlots(order, order), starts.clone()
        chosen = [counts[i] for i in order]
        out = _run(joined([xs[i] for i in order]), state, where, chosen, Emulator())
        for i, piece in zip(order, out.split(chosen), strict=True):
            assert same_bits(piece, alone[i][0])
            assert same_bits(state[i : i + 1], alone[i][1])


@pytest.mark.parametrize("count", [7, 130])
def test_folding_gives_the_bits_that_verification_computed(count: int) -> None:
    x = sequence(count, *SMALL)
    state = states(2, SMALL)
    _run(x, state, StateSlots((0,), (1,)), (count,), Emulator())
    x.qkv[:, :32].fill_(float("nan"))  # the queries are not read
    with using(Emulator(order="random")):
        gdn_fold(*x.all(), state, StateSlots((0,), (0,)), segments_of(count))
    assert same_bits(state[0], state[1])


def test_slots_and_segments_are_read_when_the_kernel_runs() -> None:
    x, slots = sequence(66, *SMALL), StateSlots((ZERO, ZERO), (0, 1))
    state, wanted_state = states(5, SMALL), states(5, SMALL)
    wanted = _run(x, wanted_state, StateSlots((3, 0), (4, 0)), (1, 65), Emulator())
    slots.data.copy_(torch.tensor([[3, 0], [4, 0]]))
    assert same_bits(_run(x, state, slots, (1, 65), Emulator()), wanted)
    assert same_bits(state, wanted_state)


@pytest.mark.parametrize("counts", [(3, 3), (64, 65)])
def test_a_non_finite_row_stays_alone(counts: tuple[int, int]) -> None:
    x, where = sequence(sum(counts), *SMALL), StateSlots((0, 1), (0, 1))
    alone, state = _run(x, states(2, SMALL), where, counts, Emulator()), states(2, SMALL)
    x.qkv[0].fill_(float("inf"))
    out = _run(x, state, where, counts, Emulator())
    assert not out[0].isfinite().all()
    assert same_bits(out[counts[0] :], alone[counts[0] :])
    assert state[1].isfinite().all()


def test_source_minus_one_is_a_zero_state() -> None:
    for count in (5, 64):
        x, state = sequence(count, *SMALL), torch.full((1, 2, 32, 32), float("nan"))
        zeros = torch.zeros(1, 2, 32, 32)
        out = _run(x, state, StateSlots((ZERO,), (0,)), (count,), Emulator())
        assert same_bits(out, _run(x, zeros, StateSlots((0,), (0,)), (count,), Emulator()))
        assert same_bits(state, zeros)


def test_bits_of_short_rows_do_not_depend_on_alignment() -> None:
    x, state = sequence(3, *STEPS), states(1, STEPS)
    shifted = torch.zeros(x.qkv.numel() + 1)[1:].view(x.qkv.shape).copy_(x.qkv)
    moved = state.clone()
    out = _run(x, state, StateSlots((0,), (0,)), (3,), Emulator())
    assert same_bits(_run(replace(x, qkv=shifted), moved, StateSlots((0,), (0,)), (3,), Emulator()), out)
    assert same_bits(moved, state)


def test_rows_of_a_chunk_and_more_are_chunked() -> None:
    assert cuda_plan((1,) * 8, 48, 128, 128, SHARED).waves == ()
    plan = cuda_plan((1, 64, 63, 700), 24, 128, 128, SHARED)
    assert (plan.most, plan.stepped) == (CHUNK - 1, True)
    assert plan.waves == (Wave((1, 3), 0, 4), Wave((1, 3), 4, 4), Wave((1, 3), 8, 4))
    assert cuda_plan((512,), 48, 128, 128, SHARED).waves == (Wave((0,), 0, 4), Wave((0,), 4, 4))
    assert cuda_plan((64,), 400, 128, 128, SHARED).waves == (Wave((0,), 0, 1),)
    assert not cuda_plan((64, 65), 48, 128, 128, SHARED).stepped
    assert cuda_plan((), 48, 128, 128, SHARED).waves == ()


def test_waves_have_every_chunk_once_and_bounded_records() -> None:
    counts = (*range(50, 90), 1000)
    plan = cuda_plan(counts, 30, 32, 32, SHARED)
    seen = [
        (row, chunk)
        for wave in plan.waves
        for row in wave.rows
        for chunk in range(wave.first, wave.first + wave.chunks)
    ]
    assert len(seen) == len(set(seen))
    wanted = {(row, chunk) for row, n in enumerate(counts) if n >= CHUNK for chunk in range(-(-n // CHUNK))}
    assert wanted <= set(seen)
    assert all(len(wave.rows) <= MOST_ROWS and len(wave.rows) * wave.chunks <= 6 for wave in plan.waves)


def test_what_does_not_fit_goes_token_by_token() -> None:
    for dk, dv, shared in ((128, 128, 64 * 1024), (24, 32, SHARED), (32, 20, SHARED), (256, 128, SHARED)):
        plan = cuda_plan((300, 2), 2, dk, dv, shared)
        assert (plan.most, plan.stepped, plan.waves) == (300, True, ())
    assert has_chunks(128, 128)


def test_official_heads_fit_every_target() -> None:
    assert prepare_bytes(128, 128) <= 81 * 1024, "two blocks would not fit in an sm_80"
    assert advance_bytes(128, 4) == 64 * 1024
    assert record_bytes(128, 128) % 128 == 0


def test_slabs_share_blocks_where_there_are_more_than_multiprocessors() -> None:
    assert [slab_warps(dv, 48, 132) for dv in (16, 32, 48, 64, 128)] == [1, 1, 1, 2, 4]
    assert [slab_warps(128, heads, 132) for heads in (16, 32, 48, 96)] == [1, 2, 4, 4]
