"""Program: the physical side of one model instance. One class for every device; only the ops differ."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TypeVar

from ninfer.runtime.core.program import (
    Assessment,
    CheckpointFacts,
    CheckpointHandle,
    DecodeRow,
    MaterialisationTarget,
    Occupancy,
    PendingBatch,
    PendingRow,
    PrefillProgress,
    ProgramLimits,
    Readiness,
    ResourcePlan,
    RowDecision,
    SequenceDemand,
    SequenceHandle,
    StalePlan,
    TerminalChoice,
    UnitFault,
    Victim,
)
from ninfer.runtime.program.admission import Admission
from ninfer.runtime.program.sequence import ZERO_IMAGE, Sequence
from ninfer.runtime.program.spans import Span
from ninfer.runtime.program.stores import Stores
from ninfer.runtime.program.transactions import (
    CapturePlan,
    MaterialisePlan,
    Plan,
    ReclaimPlan,
    TerminalPlan,
    Transaction,
)
from ninfer.runtime.program.transfers import Transfers
from ninfer.runtime.program.transitions import Transitions
from ninfer.runtime.program.units import Executor, PendingUnit, ProvisionalRow
from ninfer.types import PreparedPrompt

T = TypeVar("T")


class Program:
    """Implements `runtime.core.program.Program` on real stores and a real model."""

    def __init__(self, executor: Executor, transfers: Transfers, limits: ProgramLimits) -> None:
        self._executor = executor
        self._limits = limits
        self._stores = Stores(limits, transfers)
        self._admission = Admission(limits, self._stores)
        self._transitions = Transitions(self._stores, self._changed)
        self._revision = 0
        self._open: Transaction | None = None
        self._pending: PendingUnit | None = None

    @property
    def limits(self) -> ProgramLimits:
        return self._limits

    @property
    def resource_revision(self) -> int:
        return self._revision

    # --- what could be done -----------------------------------------------------------------------------

    def assess(self, target: MaterialisationTarget) -> Assessment:
        return self._admission.assess(target)

    def assess_capture(self, sequence: SequenceHandle, victims: Seq[Victim] = ()) -> Assessment:
        assert sequence in self._stores.sequences, "the sequence is not active"
        return self._admission.assess_checkpoint(victims)

    def assess_retain(self, sequence: SequenceHandle, victims: Seq[Victim] = ()) -> Assessment:
        s = self._stores.sequences[sequence]
        if s.image == ZERO_IMAGE:
            return Assessment(Readiness.PERMANENTLY_INFEASIBLE, "the sequence has consumed nothing")
        return self._admission.assess_checkpoint(victims)

    def proves_backfill(
        self, head: SequenceDemand, donors: Seq[SequenceHandle], borrower: MaterialisationTarget
    ) -> bool:
        return self._admission.proves_backfill(head, donors, borrower)

    def common_prefix(self, checkpoint: CheckpointHandle, prompt: PreparedPrompt) -> int:
        identity = self._stores.checkpoints[checkpoint].identity
        return identity.common_prefix(array("i", prompt.token_ids), prompt.identity)

    def facts(self, checkpoint: CheckpointHandle) -> CheckpointFacts:
        transfers = self._stores.transfers
        return self._stores.checkpoints[checkpoint].facts(transfers.page_bytes, transfers.image_bytes)

    # --- resource transactions --------------------------------------------------------------------------

    def seal(self, target: MaterialisationTarget) -> ResourcePlan:
        _require_possible(self.assess(target))
        return MaterialisePlan(self._revision, target)

    def seal_capture(self, sequence: SequenceHandle, victims: Seq[Victim] = ()) -> ResourcePlan:
        _require_possible(self.assess_capture(sequence, victims))
        return CapturePlan(self._revision, sequence, tuple(victims))

    def seal_terminal(
        self, sequence: SequenceHandle, choice: TerminalChoice, victims: Seq[Victim] = ()
    ) -> ResourcePlan:
        if choice is TerminalChoice.RETAIN:
            _require_possible(self.assess_retain(sequence, victims))
        return TerminalPlan(self._revision, sequence, choice, tuple(victims))

    def seal_reclaim(self, victims: Seq[Victim]) -> ResourcePlan:
        return ReclaimPlan(self._revision, tuple(victims))

    def start(self, plan: ResourcePlan) -> Transaction:
        assert self._open is None, "one resource transaction at a time"
        assert isinstance(plan, Plan), "a plan of another Program"
        if plan.revision != self._revision:
            raise StalePlan(f"sealed under revision {plan.revision}, now {self._revision}")
        self._open = Transaction(self._transitions.stages(plan), self._close_transaction)
        return self._open

    def _close_transaction(self) -> None:
        self._open = None

    def _changed(self) -> None:
        self._revision += 1

    # --- model transactions -----------------------------------------------------------------------------

    def prefill(self, sequence: SequenceHandle, until: int | None = None) -> PrefillProgress:
        s = self._stores.sequences[sequence]
        begin = s.space.frontier
        end = min(begin + self._limits.prefill_chunk, len(s.prompt), until or len(s.prompt))
        assert begin < end, "nothing of the prompt is left to consume"
        span = self._span(s, s.prompt[begin:end])
        if end == len(s.prompt):
            return PrefillProgress(end - begin, self._choose((s,), (span,)))
        self._guarded((span,), lambda: self._executor.consume(span))
        self._advance(s, span)
        return PrefillProgress(end - begin, None)

    def decode(self, rows: Seq[DecodeRow]) -> PendingUnit:
        sequences = tuple(self._stores.sequences[row.sequence] for row in rows)
        return self._choose(sequences, tuple(self._span(s, (_anchor(s),)) for s in sequences))

    def control(self, sequence: SequenceHandle, tokens: Seq[int]) -> PendingUnit:
        s = self._stores.sequences[sequence]
        span = self._span(s, (_anchor(s), *tokens[:-1]))
        self._guarded((span,), lambda: self._executor.consume(span))
        return self._hold((ProvisionalRow(s, span, PendingRow(sequence, tuple(tokens))),))

    def commit(self, batch: PendingBatch, decisions: Seq[RowDecision]) -> None:
        for provisional, decision in zip(self._consume_pending(batch), decisions, strict=True):
            row = provisional.row
            assert decision.terminal or decision.accepted == len(row.tokens), "a live row keeps all its tokens"
            if decision.accepted == 0:
                self._stores.images.give_back(provisional.span.target)
                continue
            self._advance(provisional.sequence, provisional.span)
            provisional.sequence.append(row.tokens[: decision.accepted])

    def abort_pending(self, batch: PendingBatch) -> None:
        for provisional in self._consume_pending(batch):
            self._stores.images.give_back(provisional.span.target)

    def _choose(self, sequences: Seq[Sequence], spans: Seq[Span]) -> PendingUnit:
        rows = self._guarded(spans, lambda: self._executor.choose(sequences, spans))
        return self._hold(tuple(map(ProvisionalRow, sequences, spans, rows)))

    def _span(self, sequence: Sequence, tokens: tuple[int, ...]) -> Span:
        assert self._pending is None, "the previous unit's batch is not consumed"
        return Span(sequence.space, tokens, sequence.image, self._stores.images.take())

    def _guarded(self, spans: Seq[Span], unit: Callable[[], T]) -> T:
        """Run a unit. If it raises, only provisional images were written: free them, and nothing has happened.

        Unless the device itself has failed: then nothing on it is known any more, and what it says goes up as it is.
        """
        try:
            return unit()
        except Exception as error:
            self._executor.synchronise()
            for span in spans:
                self._stores.images.give_back(span.target)
            if isinstance(error, UnitFault):
                raise
            raise UnitFault(f"{type(error).__name__}: {error}") from error

    def _hold(self, rows: tuple[ProvisionalRow, ...]) -> PendingUnit:
        self._pending = PendingUnit(rows)
        return self._pending

    def _consume_pending(self, batch: PendingBatch) -> tuple[ProvisionalRow, ...]:
        assert self._pending is batch, "not the pending batch, or it was consumed before"
        pending, self._pending = self._pending, None
        return pending.provisional

    def _advance(self, sequence: Sequence, span: Span) -> None:
        """Adopt the span's provisional image as the committed one."""
        if sequence.image != ZERO_IMAGE:
            self._stores.images.give_back(sequence.image)
        sequence.image = span.target
        sequence.space.advance(span.end)

    # --- observation and end ----------------------------------------------------------------------------

    def occupancy(self) -> Occupancy:
        return self._stores.occupancy()

    def close(self) -> None:
        self._open = None
        self._pending = None
        self._stores.clear()


def _require_possible(assessment: Assessment) -> None:
    possible = assessment.readiness in (Readiness.READY, Readiness.NEEDS_TRANSFER)
    assert possible, f"only a feasible target is sealed: {assessment.reason}"


def _anchor(sequence: Sequence) -> int:
    assert sequence.anchor is not None, "the prompt is not consumed yet"
    return sequence.anchor
