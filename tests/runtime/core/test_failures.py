"""Failures: of one unit, of one output session, and of the whole Engine at every call into Program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from ninfer.errors import EngineFailure, RequestError, RequestErrorKind
from ninfer.runtime.core.handle import GenerationHandle
from ninfer.runtime.core.program import (
    DecodeRow,
    PendingBatch,
    PendingRow,
    PrefillProgress,
    ResourceOutcome,
    ResourceResult,
    UnitFault,
)
from ninfer.runtime.core.stats import Availability
from ninfer.types import FinishReason, TokenLogprob
from tests.fakes import GREEDY, FakeBatch, ScriptedProgram, prompt_of
from tests.runtime.core.outputs import FakeOutput
from tests.runtime.core.support import Bench, bench, expected, finish_of, tokens_of


def _two_active(b: Bench) -> tuple[GenerationHandle, GenerationHandle]:
    handles = b.submit(new=8), b.submit(new=8, first=9)
    b.run_until(lambda: len(b.program.calls("decode")) == 3)
    return handles


@pytest.mark.parametrize("operation", ["decode", "commit"])
def test_a_unit_fault_ends_the_requests_of_that_unit_only(operation: str) -> None:
    b = bench()
    handles = _two_active(b)
    waiting = b.submit(new=3, first=20)
    published = [tokens_of(handle.published) for handle in handles]
    b.program.arm(operation, UnitFault("scripted"))
    b.settle()
    for handle, before in zip(handles, published, strict=True):
        assert finish_of(handle).reason is FinishReason.ERROR
        assert tokens_of(handle.published) == before
        with pytest.raises(RequestError, match="decode failed: scripted") as error:
            handle.result()
        assert error.value.kind is RequestErrorKind.FAILED
    assert waiting.result().token_ids == expected(3, 3, first=20)
    assert b.core.stats().unit_faults == 1
    b.check_clean()


def test_a_fault_with_culprits_spares_the_others() -> None:
    b = bench()
    guilty, innocent = _two_active(b)
    culprit = next(
        handle for handle in b.program.sequences if b.program.sequences[handle].demand.prompt.token_ids[0] == 1
    )
    b.program.arm("decode", UnitFault("scripted", (culprit,)))
    b.settle()
    assert finish_of(guilty).reason is FinishReason.ERROR
    assert innocent.result().token_ids == expected(3, 8, first=9)
    b.check_clean()


@pytest.mark.parametrize("operation", ["prefill", "commit"])
def test_a_fault_during_prefill(operation: str) -> None:
    b = bench()
    handle = b.submit()
    b.program.arm(operation, UnitFault("scripted"))
    b.settle()
    with pytest.raises(RequestError, match="prefill failed: scripted"):
        handle.result()
    b.check_clean()


def test_a_fault_during_control() -> None:
    b = bench()
    handle = b.submit(output=FakeOutput(controls={1: (5,)}))
    b.program.arm("control", UnitFault("scripted"))
    b.settle()
    with pytest.raises(RequestError, match="control failed: scripted"):
        handle.result()
    assert tokens_of(handle.published) == expected(3, 1)
    b.check_clean()


def test_a_fault_of_a_request_already_cancelled_is_a_cancellation() -> None:
    b = bench()
    handle = b.submit()
    b.step()
    b.program.arm("decode", UnitFault("scripted"))
    b.program.observer = handle.cancel
    b.settle()
    assert finish_of(handle).reason is FinishReason.CANCELLED
    b.check_clean()


# --- output sessions --------------------------------------------------------------------------------------


def test_a_failing_preview_ends_its_own_row_only() -> None:
    b = bench()
    bad = b.submit(new=8, output=FakeOutput(fail_preview_at=2))
    good = b.submit(new=8, first=9)
    b.settle()
    with pytest.raises(RequestError, match="scripted preview failure"):
        bad.result()
    assert tokens_of(bad.published) == expected(3, 2)
    assert good.result().token_ids == expected(3, 8, first=9)
    b.check_clean()


@pytest.mark.parametrize("position", [1, 3])
def test_a_failing_output_commit_publishes_nothing_of_its_span(position: int) -> None:
    b = bench()
    bad = b.submit(new=4, output=FakeOutput(fail_commit_at=position))
    good = b.submit(new=8, first=9)
    b.settle()
    with pytest.raises(RequestError, match="scripted commit failure") as error:
        bad.result()
    assert error.value.kind is RequestErrorKind.FAILED
    assert tokens_of(bad.published) == expected(3, position)
    assert good.result().token_ids == expected(3, 8, first=9)
    b.check_clean()


def test_a_failing_flush_keeps_the_committed_span() -> None:
    b = bench()
    bad = b.submit(new=2, output=FakeOutput(fail_flush=True))
    b.settle()
    with pytest.raises(RequestError, match="scripted flush failure"):
        bad.result()
    assert tokens_of(bad.published) == expected(3, 2)
    b.check_clean()


@dataclass(frozen=True)
class _Preview:
    accepted: int
    finish: FinishReason | None = None
    control: tuple[int, ...] = ()
    boundaries: tuple[int, ...] = ()
    events: tuple[()] = ()


class _WrongOutput:
    def __init__(self, preview: _Preview) -> None:
        self._preview = preview

    def preview(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob], forced: bool) -> _Preview:
        return self._preview

    def commit(self, preview: _Preview) -> None:
        raise AssertionError("a wrong preview was committed")

    def flush(self) -> tuple[()]:
        return ()


@pytest.mark.parametrize(
    "preview",
    [
        _Preview(0),
        _Preview(2),
        _Preview(0, FinishReason.STOP),
        _Preview(1, boundaries=(2,)),
        _Preview(1, boundaries=(-1,)),
    ],
)
def test_a_preview_outside_its_contract_is_refused_before_the_commit(preview: _Preview) -> None:
    b = bench()
    handle = b.core.submit(prompt_of(3), _WrongOutput(preview), 4, GREEDY)
    b.settle()
    with pytest.raises(RequestError, match="could not be previewed"):
        handle.result()
    assert b.program.calls("commit") == []
    b.check_clean()


# --- the whole Engine -------------------------------------------------------------------------------------

OPERATIONS = ["assess", "seal", "start", "advance", "result", "prefill", "decode", "commit", "seal_terminal"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_any_other_exception_fails_the_engine_and_answers_everyone(operation: str) -> None:
    b = bench(program=ScriptedProgram(lanes=1, stages=2))
    handles = [b.submit(new=3, first=first) for first in (1, 9, 20)]
    b.program.arm(operation, RuntimeError("scripted"))
    b.settle()
    assert b.core.availability is Availability.FAILED
    for handle in handles:
        assert finish_of(handle).reason is FinishReason.ERROR
        with pytest.raises(EngineFailure, match="RuntimeError: scripted"):
            handle.result()
    with pytest.raises(EngineFailure):
        b.submit()
    assert b.program.violations == []
    assert b.program.closed
    assert b.core.stats().active == b.core.stats().waiting == 0
    assert b.core.stats().occupancy is None
    assert not b.core.step()
    b.core.close()
    assert b.program.calls("close") == [("close",)]


def test_backfill_proof_failure_fails_the_engine() -> None:
    b = bench(program=ScriptedProgram(lanes=3, pages=8))
    handles = b.submit(prompt=8, new=16), b.submit(prompt=8, new=16, first=9), b.submit(first=30)
    b.program.arm("proves_backfill", RuntimeError("scripted"))
    b.settle()
    assert all(finish_of(handle).reason is FinishReason.ERROR for handle in handles)


def test_cleanup_ends_the_model_transaction_then_program_then_responses() -> None:
    b = bench()
    handle = b.submit()
    b.program.arm("commit", RuntimeError("scripted"))
    finished_at_close: list[bool] = []

    def observe() -> None:
        finished_at_close.append(handle.finished)

    b.program.observer = observe
    b.settle()
    assert [entry[0] for entry in b.program.log][-3:] == ["commit", "abort_pending", "close"]
    assert finished_at_close[-1] is False
    assert handle.finished


def test_cleanup_aborts_the_open_resource_transition() -> None:
    b = bench(program=ScriptedProgram(stages=3))
    handle = b.submit()
    b.program.arm("advance", RuntimeError("scripted"))
    b.settle()
    assert [entry[0] for entry in b.program.log][-3:] == ["advance", "abort", "close"]
    assert handle.finished
    assert b.program.violations == []


def test_cleanup_leaves_a_batch_alone_that_a_fault_already_rolled_back() -> None:
    b = bench()
    handle = b.submit()
    b.program.arm("commit", UnitFault("scripted"))
    b.program.arm("seal_terminal", RuntimeError("scripted"))
    b.settle()
    assert finish_of(handle).reason is FinishReason.ERROR
    assert b.program.calls("abort_pending") == []
    assert b.program.violations == []


def test_cleanup_survives_a_program_that_cannot_even_abort() -> None:
    b = bench()
    handle = b.submit()
    b.program.arm("commit", RuntimeError("scripted"))
    b.program.arm("abort_pending", RuntimeError("again"))
    b.settle()
    with pytest.raises(EngineFailure, match="scripted"):
        handle.result()


@pytest.mark.parametrize(
    "progress",
    [
        PrefillProgress(0, None),
        PrefillProgress(3, None),
        PrefillProgress(4, None),
        PrefillProgress(1, FakeBatch(1, ())),
        PrefillProgress(3, FakeBatch(1, ())),
    ],
)
def test_prefill_that_breaks_its_contract_fails_the_engine(
    progress: PrefillProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench()
    monkeypatch.setattr(b.program, "prefill", lambda sequence, until: progress)
    handle = b.submit()
    b.settle()
    with pytest.raises(EngineFailure, match="InvariantBroken"):
        handle.result()


@pytest.mark.parametrize("fault", ["order", "missing", "empty", "logprobs"])
def test_a_batch_of_other_members_fails_the_engine(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    b = bench()
    handles = _two_active(b)
    original = b.program.decode

    def decode(rows: Sequence[DecodeRow]) -> PendingBatch:
        batch = original(rows)
        first, second = batch.rows
        wrong = {
            "order": (second, first),
            "missing": (first,),
            "empty": (first, PendingRow(second.sequence, ())),
            "logprobs": (first, PendingRow(second.sequence, (1, 2), (TokenLogprob(1, 0.0),))),
        }
        return FakeBatch(0, wrong[fault])

    monkeypatch.setattr(b.program, "decode", decode)
    b.settle()
    assert all(finish_of(handle).reason is FinishReason.ERROR for handle in handles)
    assert b.core.availability is Availability.FAILED


@pytest.mark.parametrize(
    "result",
    [
        ResourceResult(ResourceOutcome.COMMITTED),
        ResourceResult(ResourceOutcome.ABORTED),
    ],
)
def test_a_materialisation_without_a_sequence_fails_the_engine(
    result: ResourceResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench()
    monkeypatch.setattr(b.program, "apply", lambda plan: result)
    handle = b.submit()
    b.settle()
    with pytest.raises(EngineFailure, match="InvariantBroken"):
        handle.result()


def test_blocked_with_nothing_active_is_a_leak_and_fails_the_engine() -> None:
    b = bench()
    b.program.stores.held = list(range(b.program.limits.kv_pages))
    handle = b.submit()
    b.settle()
    with pytest.raises(EngineFailure, match="nothing is active"):
        handle.result()


# --- stale plans ------------------------------------------------------------------------------------------


def test_a_stale_plan_is_planned_again_without_side_effect() -> None:
    b = bench()
    b.program.stale_plans = 2
    handle = b.submit(new=2)
    b.run_until(lambda: bool(b.program.calls("decode")))
    b.program.stale_plans = 1
    b.settle()
    assert handle.result().token_ids == expected(3, 2)
    b.check_clean()


def test_plans_that_stay_stale_fail_the_engine() -> None:
    b = bench()
    b.program.stale_plans = 1000
    handle = b.submit(new=2)
    b.settle()
    with pytest.raises(EngineFailure, match="stale"):
        handle.result()


# --- close ------------------------------------------------------------------------------------------------


def test_close_cancels_everyone_and_closes_program_last_and_once() -> None:
    b = bench()
    handles = [b.submit(new=20, first=first) for first in (1, 9, 20)]
    b.step(4)
    late = b.submit(first=30)
    b.core.close()
    b.core.close()
    assert all(finish_of(handle).reason is FinishReason.CANCELLED for handle in (*handles, late))
    assert b.program.log[-1] == ("close",)
    assert b.program.calls("close") == [("close",)]
    assert b.program.violations == []
    assert b.core.availability is Availability.CLOSED
    with pytest.raises(RequestError) as refusal:
        b.submit()
    assert refusal.value.kind is RequestErrorKind.CLOSED
    assert not b.core.step()


def test_close_with_drain_lets_everyone_finish() -> None:
    b = bench()
    handles = [b.submit(new=5, first=first) for first in (1, 9, 20)]
    b.step(2)
    b.core.close(drain=True)
    for handle, first in zip(handles, (1, 9, 20), strict=True):
        assert handle.result().token_ids == expected(3, 5, first)
    assert b.program.log[-1] == ("close",)


def test_a_program_that_raises_from_close_does_not_keep_the_engine_open(monkeypatch: pytest.MonkeyPatch) -> None:
    b = bench()

    def close() -> None:
        raise RuntimeError("scripted")

    monkeypatch.setattr(b.program, "close", close)
    b.core.close()
    assert b.core.availability is Availability.CLOSED
