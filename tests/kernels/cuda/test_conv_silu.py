"""conv_silu on CUDA, in the emulator: oracle, histories replaced in place, bits over chunks, batches and orders."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from ninfer.kernels.conv_silu import IMPLEMENTATIONS, conv_silu, oracle
from ninfer.kernels.conv_silu.cases import CASES, Case
from ninfer.kernels.conv_silu.plan import CudaPlan, cuda_plan
from ninfer.kernels.jit import using
from ninfer.kernels.routes import Route
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import ZERO, StateSlots
from ninfer.kernels.tolerances import CONVOLUTION, EXACT
from tests.kernels.emulator import NEEDS_EMULATOR, Emulator
from tests.kernels.harness import Trial, conform, poisoned, same_bits
from tests.kernels.weight_samples import normal

pytestmark = NEEDS_EMULATOR
_LONG = (
    Case("runs", 24, 4, 2, (1, 2, 15, 16, 17, 33), (0,) * 6, (1, 2, 3, 4, 5, 6)),
    Case("runs_in_place", 7, 4, 2, (40, 3, 16), (2, ZERO, 0), (2, 1, 0)),
    Case("long_history", 8, 20, 2, (1, 19, 45), (ZERO, 1, 0), (2, 1, 0)),
)


def _segments(counts: Sequence[int]) -> Segments:
    return Segments(tuple(counts), (0,) * len(counts))


@pytest.mark.parametrize("case", [*CASES["conv_silu"], *_LONG], ids=lambda case: case.name)
def test_matches_the_oracle(case: Case) -> None:
    slots = max(case.slots, *(slot + 1 for slot in case.targets))
    x, weight = normal(sum(case.counts), case.channels), normal(case.taps, case.channels, seed=1)
    before = normal(slots, case.taps - 1, case.channels, seed=2)
    history, out = before.clone(), poisoned(*x.shape)
    wanted, after = oracle.conv_silu(x.numpy(), weight.numpy(), before.numpy(), case.sources, case.targets, case.counts)

    def run(route: Route) -> None:
        history.copy_(before)
        where = StateSlots(case.sources, case.targets), _segments(case.counts)
        IMPLEMENTATIONS["conv_silu"][route](x, weight, history, *where, out)

    trial = Trial(
        {"x": x, "weight": weight},
        {"out": out, "history": history},
        run,
        {"out": wanted, "history": after},
        {"out": CONVOLUTION, "history": EXACT},
    )
    with using(Emulator("check")):
        conform(trial, (Route.CUDA,))
    for slot in set(range(slots)) - set(case.targets):
        assert same_bits(history[slot], before[slot]), "a slot that is no target was modified"


@pytest.mark.parametrize("order", ["lifo", "random"])
def test_bits_do_not_depend_on_chunks_batch_or_order(order: str) -> None:
    weight, x = normal(4, 24, seed=3), normal(60, 24)
    history, wanted = normal(1, 3, 24, seed=4), poisoned(60, 24)
    start = history.clone()
    with using(Emulator()):
        conv_silu(x, weight, history, StateSlots((0,), (0,)), _segments([60]), wanted)
    for chunk in (1, 2, 16, 23):
        state, pieces = torch.cat((start, start, start)), []
        for begin in range(0, 60, chunk):
            part = x[begin : begin + chunk]
            out, counts = poisoned(2 * len(part), 24), [len(part), len(part)]
            with using(Emulator(order=order, seed=begin)):
                where = StateSlots((0, 2), (0, 2))
                conv_silu(torch.cat((part, part)), weight, state, where, _segments(counts), out)
            assert same_bits(*out.chunk(2))
            pieces.append(out[: len(part)])
        assert same_bits(torch.cat(pieces), wanted)
        assert same_bits(state, torch.cat((history, start, history)))


def test_slots_and_segments_are_read_when_the_kernel_runs() -> None:
    x, weight, history = normal(3, 20), normal(4, 20, seed=1), normal(5, 3, 20, seed=2)
    out, slots = poisoned(3, 20), StateSlots((ZERO, ZERO), (0, 1))
    wanted_history, wanted = history.clone(), poisoned(3, 20)
    with using(Emulator()):
        conv_silu(x, weight, wanted_history, StateSlots((3, 0), (4, 0)), _segments([1, 2]), wanted)
        slots.data.copy_(torch.tensor([[3, 0], [4, 0]]))
        conv_silu(x, weight, history, slots, _segments([1, 2]), out)
    assert same_bits(out, wanted)
    assert same_bits(history, wanted_history)


def test_a_non_finite_row_stays_alone() -> None:
    x, weight, history = normal(6, 8), normal(4, 8, seed=1), normal(2, 3, 8, seed=2)
    alone, out, where = poisoned(6, 8), poisoned(6, 8), (StateSlots((0, 1), (0, 1)), _segments([3, 3]))
    with using(Emulator()):
        conv_silu(x, weight, history.clone(), *where, alone)
        x[0].fill_(float("nan"))
        conv_silu(x, weight, history, *where, out)
    assert out[:3].isnan().all()
    assert same_bits(out[3:], alone[3:])
    assert history[1].isfinite().all()


def test_runs_cover_every_token_and_are_never_shorter_than_the_history() -> None:
    assert cuda_plan((1,) * 8, 10240, 4) == CudaPlan(blocks=40, run=16, runs=1)
    assert cuda_plan((2048,), 10240, 4) == CudaPlan(blocks=40, run=16, runs=128)
    assert cuda_plan((1, 50), 257, 20) == CudaPlan(blocks=2, run=19, runs=3)
    assert cuda_plan((), 8, 4).runs == 0
