"""The cancellation table: every state in which a cancel or a deadline can be observed, and what follows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ninfer.runtime.core.handle import GenerationHandle
from ninfer.types import FinishReason, GenerationStart, Reuse, ReuseReason
from tests.fakes import ScriptedProgram
from tests.runtime.core.outputs import FakeOutput
from tests.runtime.core.support import Bench, bench, expected, finish_of, rounds, tokens_of

Trigger = Callable[[Bench, GenerationHandle], None]


def _cancel(_: Bench, handle: GenerationHandle) -> None:
    handle.cancel()


def _expire(b: Bench, _: GenerationHandle) -> None:
    b.clock.advance(100.0)


both = pytest.mark.parametrize(
    ("trigger", "reason"),
    [(_cancel, FinishReason.CANCELLED), (_expire, FinishReason.DEADLINE)],
    ids=["cancel", "deadline"],
)


@both
def test_waiting_ends_without_any_program_state(trigger: Trigger, reason: FinishReason) -> None:
    b = bench(program=ScriptedProgram(lanes=1))
    first = b.submit(new=20)
    b.step(2)
    second = b.submit(first=50, deadline=50.0)
    b.step()
    trigger(b, second)
    b.step()
    assert finish_of(second).reason is reason
    assert second.published == (finish_of(second),)
    assert ("assess", 50) not in b.program.log
    assert not first.finished
    result = second.result()
    assert (result.finish_reason, result.token_ids) == (reason, ())


@both
def test_materialising_is_aborted(trigger: Trigger, reason: FinishReason) -> None:
    b = bench(program=ScriptedProgram(stages=3))
    handle = b.submit(deadline=50.0)
    b.step()
    assert b.program.transaction is not None
    trigger(b, handle)
    b.step()
    assert len(b.program.calls("abort")) == 1
    assert finish_of(handle).reason is reason
    assert handle.published == (finish_of(handle),)
    b.settle()
    b.check_clean()


@both
def test_an_abort_that_finds_the_transition_committed_adopts_it_first(trigger: Trigger, reason: FinishReason) -> None:
    b = bench(program=ScriptedProgram(stages=3, commits_at=1))
    handle = b.submit(deadline=50.0)
    b.step()
    trigger(b, handle)
    b.settle()
    names = [entry[0] for entry in b.program.log]
    assert names[names.index("abort") :] == [
        *("abort", "activated", "seal_terminal", "start", "advance", "result", "released", "flush")
    ]
    assert handle.published[0] == GenerationStart(3, 0, Reuse(ReuseReason.DISABLED))
    assert finish_of(handle).reason is reason
    b.check_clean()


@both
@pytest.mark.parametrize("boundaries", range(2, 7))
def test_active_stops_after_its_unit_and_keeps_its_text(
    trigger: Trigger, reason: FinishReason, boundaries: int
) -> None:
    b = bench(program=ScriptedProgram(prefill_chunk=2))
    handle = b.submit(prompt=5, new=20, output=FakeOutput(b.program.log, hold=True), deadline=50.0)
    b.step(boundaries)
    units = len(b.program.calls("decode")) + len(b.program.calls("prefill"))
    trigger(b, handle)
    b.settle()
    assert len(b.program.calls("decode")) + len(b.program.calls("prefill")) == units
    result = handle.result()
    assert result.finish_reason is reason
    assert result.text == "".join(f"<{token}>" for token in result.token_ids)
    assert result.token_ids == expected(5, max(0, boundaries - 2))
    b.check_clean()


@both
def test_pending_batch_row_is_cancelled_and_the_others_commit(trigger: Trigger, reason: FinishReason) -> None:
    b = bench()
    stopped = b.submit(new=20, deadline=50.0)
    going = b.submit(new=8, first=9)
    b.run_until(lambda: len(rounds(b.program)) > 0 and len(rounds(b.program)[-1]) == 2)
    done = len(tokens_of(stopped.published))
    _during(b, "decode", lambda: trigger(b, stopped))
    b.step()
    cancelled, continuing = rounds(b.program)[-1]
    assert b.program.calls("commit")[-1] == ("commit", (cancelled, 0), (continuing, 1))
    b.settle()
    assert finish_of(stopped).reason is reason
    assert tokens_of(stopped.published) == expected(3, done)
    assert going.result().token_ids == expected(3, 8, first=9)
    b.check_clean()


@both
def test_pending_batch_of_cancelled_rows_only_is_aborted(trigger: Trigger, reason: FinishReason) -> None:
    b = bench()
    handle = b.submit(new=20, deadline=50.0)
    b.step(2)
    commits = len(b.program.calls("commit"))
    _during(b, "decode", lambda: trigger(b, handle))
    b.step()
    assert len(b.program.calls("abort_pending")) == 1
    assert len(b.program.calls("commit")) == commits
    b.settle()
    assert finish_of(handle).reason is reason
    b.check_clean()


@both
def test_cancelled_during_the_last_prefill_chunk(trigger: Trigger, reason: FinishReason) -> None:
    b = bench()
    handle = b.submit(deadline=50.0)
    _during(b, "prefill", lambda: trigger(b, handle))
    b.settle()
    assert (finish_of(handle).reason, tokens_of(handle.published)) == (reason, ())
    b.check_clean()


@both
def test_terminal_pending_keeps_the_ending_it_has(trigger: Trigger, reason: FinishReason) -> None:
    b = bench(program=ScriptedProgram(terminal_stages=4))
    handle = b.submit(new=2, deadline=50.0)
    b.run_until(lambda: bool(b.program.calls("seal_terminal")))
    trigger(b, handle)
    b.settle()
    assert handle.result().finish_reason is FinishReason.LENGTH
    assert b.program.calls("abort") == []
    b.check_clean()


def test_forced_control_can_be_cancelled() -> None:
    b = bench()
    handle = b.submit(new=9, output=FakeOutput(controls={1: (5, 6)}))
    b.step()
    handle.cancel()
    b.settle()
    assert b.program.calls("control") == []
    assert finish_of(handle).reason is FinishReason.CANCELLED
    b.check_clean()


def test_cancel_wins_over_a_deadline_and_after_the_end_does_nothing() -> None:
    b = bench()
    handle = b.submit(new=9, deadline=1.0)
    b.step()
    b.clock.advance(5.0)
    handle.cancel()
    b.settle()
    assert finish_of(handle).reason is FinishReason.CANCELLED
    handle.cancel()
    b.settle()
    assert finish_of(handle).reason is FinishReason.CANCELLED


def test_a_deadline_of_zero_ends_at_the_first_boundary() -> None:
    b = bench()
    handle = b.submit(deadline=0.0)
    b.step()
    assert finish_of(handle).reason is FinishReason.DEADLINE
    assert b.program.log == []


def _during(b: Bench, operation: str, action: Callable[[], None]) -> None:
    """Do `action` once, when the next unit of this kind has run and its output is not judged yet."""
    original = getattr(b.program, operation)

    def wrapped(*arguments: object) -> object:
        outcome = original(*arguments)
        delattr(b.program, operation)
        action()
        return outcome

    setattr(b.program, operation, wrapped)
