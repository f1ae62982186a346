"""Program: the physical side of one model instance. One class for every device; only the ops differ."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TypeVar

from ninfer.runtime.core.program import (
    Assessment,
    AxisOccupancy,
    DecodeRow,
    MaterialisationTarget,
    Occupancy,
    PendingBatch,
    PendingRow,
    PrefillProgress,
    ProgramLimits,
    Readiness,
    ResourceOutcome,
    ResourcePlan,
    ResourceResult,
    RowDecision,
    SequenceDemand,
    SequenceHandle,
    StalePlan,
    TerminalChoice,
    UnitFault,
)
from ninfer.runtime.program.images import ImagePool
from ninfer.runtime.program.pages import AddressSpace, PagePool, pages_for
from ninfer.runtime.program.sequence import ZERO_IMAGE, Sequence
from ninfer.runtime.program.transactions import MaterialisePlan, TerminalPlan, Transaction
from ninfer.runtime.program.units import Executor, PendingUnit, ProvisionalRow, Span


T = TypeVar("T")


def image_slots(max_concurrency: int) -> int:
    """State-image slots that a Program of this many lanes needs: a committed and a provisional one per lane."""
    return 2 * max_concurrency


class Program:
    """Implements `runtime.core.program.Program` on real stores and a real model."""

    def __init__(self, executor: Executor, limits: ProgramLimits) -> None:
        self._executor = executor
        self._limits = limits
        self._pages = PagePool(limits.kv_pages)
        self._images = ImagePool(image_slots(limits.max_concurrency))
        self._sequences: dict[SequenceHandle, Sequence] = {}
        self._free_rows = list(range(limits.max_concurrency - 1, -1, -1))
        self._generation = 0
        self._revision = 0
        self._open: Transaction | None = None
        self._pending: PendingUnit | None = None

    @property
    def limits(self) -> ProgramLimits:
        return self._limits

    @property
    def resource_revision(self) -> int:
        return self._revision

    # --- feasibility ------------------------------------------------------------------------------------

    def assess(self, target: MaterialisationTarget) -> Assessment:
        need = _pages_needed(target.demand)
        if need > self._pages.capacity:
            return Assessment(
                Readiness.PERMANENTLY_INFEASIBLE,
                f"the request needs {need} KV pages of {self._limits.page_tokens} tokens, the pool has "
                f"{self._pages.capacity}; ask for fewer tokens or start with a larger --kv-capacity",
            )
        if not self._free_rows or need > self._pages.available:
            return Assessment(
                Readiness.TEMPORARILY_BLOCKED,
                f"needs {need} KV pages and a lane; {self._pages.available} pages and {len(self._free_rows)} lanes are free",
            )
        return Assessment(Readiness.READY)

    def proves_backfill(
        self, head: SequenceDemand, donors: Seq[SequenceHandle], borrower: MaterialisationTarget
    ) -> bool:
        ended = [self._sequences[handle] for handle in donors]
        pages = self._pages.available + sum(s.space.held_pages for s in ended) - _pages_needed(borrower.demand)
        rows = len(self._free_rows) + len(ended) - 1
        return pages >= _pages_needed(head) and rows >= 1

    # --- resource transactions --------------------------------------------------------------------------

    def seal(self, target: MaterialisationTarget) -> ResourcePlan:
        assert self.assess(target).readiness is Readiness.READY, "only a feasible target is sealed"
        return MaterialisePlan(self._revision, target)

    def seal_terminal(self, sequence: SequenceHandle, choice: TerminalChoice) -> ResourcePlan:
        """No checkpoint can be formed yet, so RETAIN ends as RELEASE does: the result publishes nothing."""
        assert sequence in self._sequences, "the sequence is not active"
        return TerminalPlan(self._revision, sequence)

    def start(self, plan: ResourcePlan) -> Transaction:
        assert self._open is None, "one resource transaction at a time"
        if plan.revision != self._revision:
            raise StalePlan(f"sealed under revision {plan.revision}, now {self._revision}")
        self._open = Transaction(self._transition(plan), self._close_transaction)
        return self._open

    def _transition(self, plan: ResourcePlan) -> Callable[[], ResourceResult]:
        if isinstance(plan, MaterialisePlan):
            return lambda: self._materialise(plan.target.demand)
        assert isinstance(plan, TerminalPlan), "a plan of another Program"
        return lambda: self._release(plan.sequence)

    def _materialise(self, demand: SequenceDemand) -> ResourceResult:
        self._generation += 1
        handle = SequenceHandle(self._free_rows.pop(), self._generation)
        space = AddressSpace.reserve(self._pages, _tokens_consumed(demand))
        self._sequences[handle] = Sequence(handle, demand, space)
        self._revision += 1
        return ResourceResult(ResourceOutcome.COMMITTED, sequence=handle)

    def _release(self, handle: SequenceHandle) -> ResourceResult:
        sequence = self._sequences.pop(handle)
        sequence.space.release()
        if sequence.image != ZERO_IMAGE:
            self._images.give_back(sequence.image)
        self._free_rows.append(handle.index)
        self._revision += 1
        return ResourceResult(ResourceOutcome.COMMITTED)

    def _close_transaction(self) -> None:
        self._open = None

    # --- model transactions -----------------------------------------------------------------------------

    def prefill(self, sequence: SequenceHandle) -> PrefillProgress:
        s = self._sequences[sequence]
        begin = s.space.frontier
        tokens = s.prompt[begin : begin + self._limits.prefill_chunk]
        assert tokens, "the prompt is already consumed"
        span = self._span(s, tokens)
        if begin + len(tokens) == len(s.prompt):
            return PrefillProgress(len(tokens), self._choose((s,), (span,)))
        self._guarded((span,), lambda: self._executor.consume(span))
        self._advance(s, span)
        return PrefillProgress(len(tokens), None)

    def decode(self, rows: Seq[DecodeRow]) -> PendingUnit:
        sequences = tuple(self._sequences[row.sequence] for row in rows)
        return self._choose(sequences, tuple(self._span(s, (_anchor(s),)) for s in sequences))

    def control(self, sequence: SequenceHandle, tokens: Seq[int]) -> PendingUnit:
        s = self._sequences[sequence]
        span = self._span(s, (_anchor(s), *tokens[:-1]))
        self._guarded((span,), lambda: self._executor.consume(span))
        return self._hold((ProvisionalRow(s, span, PendingRow(sequence, tuple(tokens))),))

    def commit(self, batch: PendingBatch, decisions: Seq[RowDecision]) -> None:
        for provisional, decision in zip(self._consume_pending(batch), decisions, strict=True):
            row = provisional.row
            assert decision.terminal or decision.accepted == len(row.tokens), "a live row keeps all its tokens"
            if decision.accepted == 0:
                self._images.give_back(provisional.span.target)
                continue
            self._advance(provisional.sequence, provisional.span)
            provisional.sequence.append(row.tokens[: decision.accepted])

    def abort_pending(self, batch: PendingBatch) -> None:
        for provisional in self._consume_pending(batch):
            self._images.give_back(provisional.span.target)

    def _choose(self, sequences: Seq[Sequence], spans: Seq[Span]) -> PendingUnit:
        rows = self._guarded(spans, lambda: self._executor.choose(sequences, spans))
        return self._hold(tuple(map(ProvisionalRow, sequences, spans, rows)))

    def _span(self, sequence: Sequence, tokens: tuple[int, ...]) -> Span:
        assert self._pending is None, "the previous unit's batch is not consumed"
        return Span(sequence.space, tokens, sequence.image, self._images.take())

    def _guarded(self, spans: Seq[Span], unit: Callable[[], T]) -> T:
        """Run a unit. If it raises, only provisional images were written: free them, and nothing has happened."""
        try:
            return unit()
        except Exception as error:
            for span in spans:
                self._images.give_back(span.target)
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
            self._images.give_back(sequence.image)
        sequence.image = span.target
        sequence.space.frontier = span.end

    # --- observation and end ----------------------------------------------------------------------------

    def occupancy(self) -> Occupancy:
        lanes, free = self._limits.max_concurrency, len(self._free_rows)
        rows = AxisOccupancy("lanes", lanes, lanes - free, 0, free)
        return Occupancy((rows, self._pages.occupancy(), self._images.occupancy()))

    def close(self) -> None:
        self._open = None
        self._pending = None
        for handle in tuple(self._sequences):
            self._release(handle)


def _tokens_consumed(demand: SequenceDemand) -> int:
    """Tokens whose keys and values a request can ever need: its last output token is never consumed."""
    return len(demand.prompt.token_ids) + demand.max_new_tokens - 1


def _pages_needed(demand: SequenceDemand) -> int:
    return pages_for(_tokens_consumed(demand))


def _anchor(sequence: Sequence) -> int:
    assert sequence.anchor is not None, "the prompt is not consumed yet"
    return sequence.anchor
