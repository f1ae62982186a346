"""One model unit from call to commit: run it, preview every row's output, and commit the decisions as one batch.

The order is the whole point: preview (no effect) → Program commits → only then budgets, output sessions and consumers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ninfer.errors import RequestErrorKind
from ninfer.runtime.core.channel import Failure
from ninfer.runtime.core.output import OutputPreview
from ninfer.runtime.core.program import DecodeRow, PendingBatch, PendingRow, Program, RowDecision, UnitFault
from ninfer.runtime.core.request import Ending, RequestRecord, RequestState
from ninfer.runtime.core.resources import InvariantBroken
from ninfer.runtime.core.scheduler import Unit, UnitKind
from ninfer.runtime.core.stats import Counters
from ninfer.types import Event, FinishReason


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """What becomes of one row: Program's decision, the output's preview if it counts, the ending if it is one."""

    record: RequestRecord
    decision: RowDecision
    preview: OutputPreview | None
    ending: Ending | None


@dataclass(frozen=True, slots=True)
class Publication:
    """Events of one request, committed everywhere and ready to be seen."""

    record: RequestRecord
    events: tuple[Event, ...]


class UnitRunner:
    """Runs units and commits their output. Holds the one unconsumed PendingBatch, if there is one."""

    def __init__(self, program: Program, clock: Callable[[], float], counters: Counters) -> None:
        self._program = program
        self._clock = clock
        self._counters = counters
        self._pending: PendingBatch | None = None

    def run(self, unit: Unit) -> PendingBatch | None:
        """Execute one unit; None if it produced no output. Raises UnitFault if Program rolled it back."""
        match unit.kind:
            case UnitKind.PREFILL:
                self._counters.prefill_units += 1
                self._pending = self._prefill(unit.records[0])
            case UnitKind.CONTROL:
                self._counters.control_units += 1
                self._pending = self._control(unit.records[0])
            case UnitKind.DECODE:
                self._counters.decode_rounds += 1
                self._counters.decode_rows += len(unit.records)
                self._pending = self._decode(unit.records)
        if self._pending is not None:
            _check_membership(unit, self._pending)
        return self._pending

    def commit(self, unit: Unit, batch: PendingBatch) -> list[RowVerdict]:
        """Judge every row and consume the batch once. Raises UnitFault if Program rolled the commit back."""
        now = self._clock()
        forced = unit.kind is UnitKind.CONTROL
        verdicts = [_judge(record, row, forced, now) for record, row in zip(unit.records, batch.rows, strict=True)]
        try:
            self._consume(batch, [verdict.decision for verdict in verdicts])
        except UnitFault:
            self._pending = None
            raise
        self._pending = None
        for verdict, row in zip(verdicts, batch.rows, strict=True):
            verdict.record.outputs.extend(row.tokens[: verdict.decision.accepted])
        return verdicts

    def _consume(self, batch: PendingBatch, decisions: Sequence[RowDecision]) -> None:
        if all(decision.cancelled for decision in decisions):
            self._program.abort_pending(batch)
        else:
            self._program.commit(batch, decisions)

    def settle(self, verdict: RowVerdict) -> Publication | None:
        """After Program's commit: stop a terminal row, or let a continuing row's budget and output session follow."""
        record, preview = verdict.record, verdict.preview
        if verdict.ending is not None:
            record.end(verdict.ending)
            return None
        assert preview is not None, "a continuing row has a preview"
        record.accept(preview.accepted, self._clock())
        record.control = preview.control
        record.move(RequestState.CONTROL_READY if preview.control else RequestState.DECODE_READY)
        try:
            record.output.commit(preview)
        except Exception as error:
            record.end(failed(f"output could not be committed: {error}"))
            return None
        return Publication(record, preview.events)

    def abandon_pending(self) -> None:
        """Engine failure: give an unconsumed batch back, if Program still can."""
        batch, self._pending = self._pending, None
        if batch is not None:
            with contextlib.suppress(Exception):
                self._program.abort_pending(batch)

    def _prefill(self, record: RequestRecord) -> PendingBatch | None:
        assert record.sequence is not None, "only active requests run"
        until = record.next_capture
        progress = self._program.prefill(record.sequence, until)
        self._pending = progress.pending
        record.prefilled_tokens += progress.consumed
        if (
            progress.consumed < 1
            or record.unread_prompt < 0
            or (until is not None and record.prompt_tokens - record.unread_prompt > until)
            or (progress.pending is None) != (record.unread_prompt > 0)
        ):
            raise InvariantBroken(
                f"prefill consumed {progress.consumed} tokens, {record.unread_prompt} remain, "
                f"output {'missing' if progress.pending is None else 'given'}"
            )
        return progress.pending

    def _control(self, record: RequestRecord) -> PendingBatch:
        assert record.sequence is not None, "only active requests run"
        return self._program.control(record.sequence, record.control[: record.budget])

    def _decode(self, records: Sequence[RequestRecord]) -> PendingBatch:
        rows = []
        for record in records:
            assert record.sequence is not None, "only active requests run"
            rows.append(DecodeRow(record.sequence, record.budget))
        return self._program.decode(rows)


def failed(message: str) -> Ending:
    """The ending of a request that alone failed."""
    return Ending(FinishReason.ERROR, failure=Failure(RequestErrorKind.FAILED, message))


def stopped(reason: FinishReason) -> Ending:
    """The ending of a request that is cancelled or overdue."""
    return Ending(reason, flush=True)


def at_fault(unit: Unit, fault: UnitFault) -> list[RequestRecord]:
    """The requests that a fault is put down to: its culprits, or the whole unit if it names none."""
    if not fault.culprits:
        return list(unit.records)
    records = [record for record in unit.records if record.sequence in fault.culprits]
    if len(records) != len(set(fault.culprits)):
        raise InvariantBroken(f"a {unit.kind.value} unit blames sequences outside it: {fault.culprits}")
    return records


def _check_membership(unit: Unit, batch: PendingBatch) -> None:
    expected = [record.sequence for record in unit.records]
    if [row.sequence for row in batch.rows] != expected or any(not row.tokens for row in batch.rows):
        raise InvariantBroken(f"{unit.kind.value} of {expected} gave rows {batch.rows}")
    if any(row.logprobs and len(row.logprobs) != len(row.tokens) for row in batch.rows):
        raise InvariantBroken(f"{unit.kind.value} gave log-probabilities for some of a row's tokens only: {batch.rows}")


def _judge(record: RequestRecord, row: PendingRow, forced: bool, now: float) -> RowVerdict:
    """One row's fate: stopped from outside, failed in its output session, or a previewed accepted prefix."""
    reason = record.stop_reason(now)
    if reason is not None:
        return _dropped(record, stopped(reason))
    tokens = row.tokens[: record.budget]
    try:
        preview = record.output.preview(tokens, row.logprobs[: len(tokens)], forced)
        _check_preview(preview, len(tokens))
    except Exception as error:
        return _dropped(record, failed(f"output could not be previewed: {error}"))
    ending = _natural_ending(preview, record.budget)
    decision = RowDecision(preview.accepted, terminal=ending is not None, boundaries=preview.boundaries)
    return RowVerdict(record, decision, preview, ending)


def _dropped(record: RequestRecord, ending: Ending) -> RowVerdict:
    return RowVerdict(record, RowDecision(0, terminal=True, cancelled=True), None, ending)


def _natural_ending(preview: OutputPreview, budget: int) -> Ending | None:
    """The session's own ending first; else the token budget's."""
    if preview.finish is not None:
        return Ending(preview.finish, last=preview)
    if preview.accepted == budget:
        return Ending(FinishReason.LENGTH, last=preview, flush=True)
    return None


def _check_preview(preview: OutputPreview, produced: int) -> None:
    least = 1 if preview.finish is not None else produced
    if not least <= preview.accepted <= produced:
        raise ValueError(f"{preview.accepted} of {produced} tokens accepted, finish {preview.finish}")
    if preview.boundaries and not all(0 <= boundary <= preview.accepted for boundary in preview.boundaries):
        raise ValueError(f"boundaries {preview.boundaries} leave the accepted span of {preview.accepted} tokens")
