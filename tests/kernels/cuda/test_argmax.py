"""argmax's CUDA route in the emulator: against the oracle, ties, masks, rows without an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from ninfer.kernels.argmax import argmax, cuda, oracle
from ninfer.kernels.argmax.cases import CASES, Case
from ninfer.kernels.argmax.plan import cuda_plan
from ninfer.kernels.bitset import allow_only
from ninfer.kernels.jit import record, using
from ninfer.kernels.routes import Route
from ninfer.kernels.tolerances import EXACT
from tests.kernels.emulator import NEEDS_EMULATOR, Emulator
from tests.kernels.harness import Trial, assert_rows_independent, conform, poisoned
from tests.kernels.test_argmax import _inputs

pytestmark = NEEDS_EMULATOR
SMALL = [case for case in CASES["argmax"] if case.vocab <= 1000]


@pytest.fixture
def emulated() -> Iterator[None]:
    with using(Emulator()):
        yield


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_matches_the_oracle(case: Case) -> None:
    _conform(case, Emulator(mode="check"))


def test_matches_the_oracle_at_the_official_size() -> None:
    _conform(next(case for case in CASES["argmax"] if case.name == "addressable"), Emulator(order="random", seed=1))


def _conform(case: Case, emulator: Emulator) -> None:
    logits, mask = _inputs(case)
    out = poisoned(case.batch, dtype=torch.int64)
    trial = Trial(
        {"logits": logits} if mask is None else {"logits": logits, "mask": mask},
        {"out": out},
        lambda _: cuda.argmax(logits, mask, out),
        {"out": oracle.argmax(logits.numpy(), None if mask is None else mask.numpy())},
        {"out": EXACT},
    )
    with using(emulator):
        conform(trial, [Route.CUDA])


@pytest.mark.usefixtures("emulated")
def test_the_lowest_of_equal_maxima_wins_wherever_it_stands() -> None:
    out = poisoned(1, dtype=torch.int64)
    for vocab in (2, 31, 64, 255, 257, 3000):
        for first in (0, 1, vocab // 2, vocab - 2):
            logits = torch.zeros(1, vocab)
            logits[0, [first, vocab - 1]] = 1.0
            argmax(logits, None, out)
            assert out.item() == first
    logits = torch.full((1, 600), -0.0)
    logits[0, 300] = 0.0
    argmax(logits, None, out)
    assert out.item() == 0


@pytest.mark.usefixtures("emulated")
def test_rows_are_their_own() -> None:
    logits = torch.randn(5, 700, generator=torch.Generator().manual_seed(1))

    def run(rows: torch.Tensor) -> tuple[torch.Tensor]:
        out = poisoned(len(rows), dtype=torch.int64)
        cuda.choose(rows, None, out)
        return (out,)

    assert_rows_independent(run, logits, counts=(1, 3, 9))


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("spoil", [lambda row: row[299:].fill_(torch.nan), lambda row: row.fill_(-torch.inf)])
def test_rows_without_an_answer_are_errors_that_name_them(spoil: Callable[[torch.Tensor], object]) -> None:
    logits, out = torch.zeros(3, 300), poisoned(3, dtype=torch.int64)
    spoil(logits[1])
    with pytest.raises(ValueError, match="row 1"):
        argmax(logits, None, out)
    assert out.tolist() == [0, -1, 0]
    with pytest.raises(ValueError, match="row 0"):
        argmax(torch.zeros(1, 40), torch.zeros(1, 2, dtype=torch.int32), out[:1])


@pytest.mark.usefixtures("emulated")
def test_what_is_masked_is_not_looked_at() -> None:
    logits, out = torch.tensor([[0.0, torch.nan, torch.inf, 1.0, 2.0]]), poisoned(1, dtype=torch.int64)
    argmax(logits, allow_only([0, 3], 5)[None], out)
    assert out.item() == 3


@pytest.mark.usefixtures("emulated")
def test_a_recording_reads_logits_when_it_runs() -> None:
    logits, out = torch.zeros(2, 300), poisoned(2, dtype=torch.int64)
    recording = record(lambda: cuda.choose(logits, None, out))
    logits[0, 7] = logits[1, 290] = 1.0
    recording.run()
    assert out.tolist() == [7, 290]


def test_the_plan_covers_every_column() -> None:
    for columns in (1, 256, 257, 248320):
        plan = cuda_plan(3, columns)
        assert plan.spans * 256 >= columns > (plan.spans - 1) * 256
        assert plan.grid[0] == 3
        assert plan.grid[1] * 8 >= plan.spans
        assert plan.workspace == 3 * plan.spans * 8
