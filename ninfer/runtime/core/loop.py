"""The control loop: what the one worker does at each boundary, in the one order that is safe.

Only the worker calls anything here. Every step returns whether it did something; a boundary in which nothing happened
will stay without effect until a request arrives, a flag is set or a deadline passes, so the worker may sleep.
"""

from __future__ import annotations

import contextlib
import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ninfer.errors import RequestErrorKind
from ninfer.runtime.core.cache.context_cache import Choice, ContextCache
from ninfer.runtime.core.cache.cost import CostModel
from ninfer.runtime.core.cache.options import CacheOptions
from ninfer.runtime.core.channel import Failure
from ninfer.runtime.core.program import (
    PendingBatch,
    Program,
    Readiness,
    ResourceResult,
    RunningTransaction,
    StalePlan,
    UnitFault,
)
from ninfer.runtime.core.request import Ending, RequestRecord, RequestState
from ninfer.runtime.core.resources import InvariantBroken, ResourceManager
from ninfer.runtime.core.scheduler import Candidate, Scheduler, Unit
from ninfer.runtime.core.stats import Counters, log_end
from ninfer.runtime.core.units import Publication, UnitRunner, at_fault, failed, stopped
from ninfer.types import Event, Finish, FinishReason, GenerationStart

logger = logging.getLogger("ninfer.engine")

MAX_REPLANS = 8
"""Consecutive stale plans of one request after which replanning is hopeless: only the worker moves the revision."""


class Purpose(enum.Enum):
    """What a resource transition is for."""

    MATERIALISATION = "materialisation"
    CAPTURE = "capture"
    TERMINAL = "terminal"


@dataclass(frozen=True, slots=True)
class OpenTransition:
    """The one global resource transition under way, on behalf of `record`."""

    purpose: Purpose
    record: RequestRecord
    transaction: RunningTransaction


class ControlLoop:
    """Owns every record, the Scheduler, the ResourceManager and all calls to Program."""

    def __init__(
        self,
        program: Program,
        concurrent_prefill: bool,
        clock: Callable[[], float],
        cache: CacheOptions | None = None,
        cost: CostModel | None = None,
    ) -> None:
        self.counters = Counters()
        self._program = program
        self._clock = clock
        self._scheduler = Scheduler(concurrent_prefill)
        self._cache = ContextCache(program, self.counters, cache, cost)
        self._resources = ResourceManager(program, self._cache)
        self._runner = UnitRunner(program, clock, self.counters)
        self._transition: OpenTransition | None = None
        self._unfinished: dict[int, RequestRecord] = {}

    def boundary(self) -> bool:
        """One boundary: at most one model unit. True if anything happened."""
        self.counters.boundaries += 1
        moved = self._end_waiting(self._clock())
        moved |= self._advance_transition(self._clock())
        moved |= self._settle_terminals()
        moved |= self._stop_active(self._clock())
        moved |= self._make_captures()
        moved |= self._try_admission()
        unit = self._scheduler.next_unit()
        if unit is not None:
            batch = self._run(unit)
            publications = self._commit(unit, batch)
            self._publish(publications)
        return moved or unit is not None

    # --- 1. waiting requests ---

    def receive(self, arrivals: Sequence[RequestRecord]) -> bool:
        """New requests join the queue."""
        for record in arrivals:
            self._unfinished[record.order] = record
            self._scheduler.enqueue(record)
        return bool(arrivals)

    def _end_waiting(self, now: float) -> bool:
        """Cancelled and overdue requests end without ever touching Program."""
        ended = [(record, reason) for record in self._scheduler.waiting if (reason := record.stop_reason(now))]
        for record, reason in ended:
            self._scheduler.remove_waiting(record)
            self._finish(record, Ending(reason))
        return bool(ended)

    # --- 2. the open resource transition ---

    def _advance_transition(self, now: float) -> bool:
        """One stage of the open transition, or its abort if its request is cancelled while it could do without."""
        if self._transition is None:
            return False
        purpose, record, transaction = self._transition.purpose, self._transition.record, self._transition.transaction
        reason = None if purpose is Purpose.TERMINAL else record.stop_reason(now)
        if reason is not None:
            self._transition = None
            self._adopt_aborted(purpose, record, transaction.abort(), reason)
        elif transaction.advance():
            result = transaction.result()
            self._transition = None
            self._adopt(purpose, record, result)
        return True

    def _adopt(self, purpose: Purpose, record: RequestRecord, result: ResourceResult) -> None:
        """Adopt a completed transition: a sequence became active, left a checkpoint, or is settled for good."""
        match purpose:
            case Purpose.MATERIALISATION:
                if not self._adopt_materialisation(record, result):
                    raise InvariantBroken(f"materialisation was aborted without being asked to: {result}")
            case Purpose.CAPTURE:
                if result.published is None:
                    raise InvariantBroken(f"a capture published nothing: {result}")
                self._resources.adopt_capture(record, result)
            case Purpose.TERMINAL:
                self._resources.adopt_terminal(record, result)
                self._scheduler.retire(record)
                assert record.ending is not None, "a terminal request knows its ending"
                self._finish(record, record.ending)

    def _adopt_aborted(
        self, purpose: Purpose, record: RequestRecord, result: ResourceResult, reason: FinishReason
    ) -> None:
        """Adopt what an abort left. A sequence that is active, or was already committed, takes the terminal path."""
        if purpose is Purpose.CAPTURE:
            self._resources.adopt_capture(record, result)
        elif self._adopt_materialisation(record, result):
            self._stop(record, stopped(reason))
        else:
            self._scheduler.facts_changed()
            self._finish(record, Ending(reason))

    def _adopt_materialisation(self, record: RequestRecord, result: ResourceResult) -> bool:
        """True if a sequence became active: it joins the prefill, and its start is announced before any output."""
        sequence = self._resources.adopt_materialisation(record, result)
        if sequence is None:
            return False
        record.sequence, record.admitted_at = sequence, self._clock()
        record.move(RequestState.PREFILL)
        self._scheduler.activate(record)
        record.channel.publish([GenerationStart(record.prompt_tokens, record.reused_tokens, record.reuse)])
        return True

    def _begin(self, purpose: Purpose, record: RequestRecord, transaction: RunningTransaction) -> None:
        assert self._transition is None, "one global resource transition at a time"
        self._transition = OpenTransition(purpose, record, transaction)
        self.counters.resource_transitions += 1
        record.stale_plans = 0

    def _replan(self, record: RequestRecord, stale: StalePlan) -> None:
        """A stale plan had no effect: plan again at the next boundary."""
        record.stale_plans += 1
        self._scheduler.facts_changed()
        if record.stale_plans > MAX_REPLANS:
            raise InvariantBroken(f"plans for request {record.order} keep going stale: {stale}") from stale

    # --- 3. terminal requests ---

    def _settle_terminals(self) -> bool:
        """Keep or release stopped sequences, one transition after another, as far as this boundary completes them."""
        moved = False
        while self._transition is None and (record := self._scheduler.next_terminal()) is not None:
            moved = True
            try:
                self._begin(Purpose.TERMINAL, record, self._resources.begin_terminal(record))
            except StalePlan as stale:
                self._replan(record, stale)
                break
            self._advance_transition(self._clock())
        return moved

    # --- 4. active cancellations ---

    def _stop_active(self, now: float) -> bool:
        """Freeze who is cancelled or overdue now: they are in no further unit."""
        active = [record for record in self._scheduler.active if record.state is not RequestState.TERMINAL_PENDING]
        ended = [(record, reason) for record in active if (reason := record.stop_reason(now))]
        for record, reason in ended:
            self._stop(record, stopped(reason))
        return bool(ended)

    def _stop(self, record: RequestRecord, ending: Ending) -> None:
        record.end(ending)
        self._stop_lane(record)

    def _stop_lane(self, record: RequestRecord) -> None:
        assert record.lane is not None, "an active request has a lane"
        self._resources.stop(record.lane)

    # --- 5. checkpoints that a prefill has come to ---

    def _make_captures(self) -> bool:
        """Publish due checkpoints, one transition after another. Their sequences run no unit until this is settled."""
        moved = False
        while self._transition is None and (record := self._scheduler.next_capture()) is not None:
            moved = True
            try:
                transaction = self._resources.begin_capture(record)
            except StalePlan as stale:
                self._replan(record, stale)
                break
            if transaction is not None:
                self._begin(Purpose.CAPTURE, record, transaction)
                self._advance_transition(self._clock())
        return moved

    # --- 6. admission ---

    def _try_admission(self) -> bool:
        """One attempt, if some fact changed since the last verdict and the gates are open."""
        if self._transition is not None or not self._resources.lane_free:
            return False
        candidate = self._scheduler.admission_candidate(self._program.resource_revision)
        if candidate is None:
            return False
        self.counters.admission_attempts += 1
        self._decide(candidate, self._resources.choose(candidate.record))
        return True

    def _decide(self, candidate: Candidate, choice: Choice) -> None:
        record = candidate.record
        if choice.assessment.readiness is Readiness.PERMANENTLY_INFEASIBLE:
            self._scheduler.remove_waiting(record)
            failure = Failure(RequestErrorKind.INFEASIBLE, choice.assessment.reason)
            self._finish(record, Ending(FinishReason.ERROR, failure))
        elif choice.adoptable and self._may_pass(candidate, choice):
            self._materialise(candidate, choice)
        elif self._scheduler.active:
            self._scheduler.turned_away(candidate, self._resources.incumbents())
        else:
            raise InvariantBroken(f"nothing is active, yet a request is blocked: {choice.assessment.reason}")

    def _may_pass(self, candidate: Candidate, choice: Choice) -> bool:
        """The head needs no leave; a borrower needs Program's proof that the protected head loses nothing."""
        protection = candidate.protection
        if protection is None:
            return True
        return self._resources.proves_backfill(protection.head, tuple(protection.donors), choice)

    def _materialise(self, candidate: Candidate, choice: Choice) -> None:
        record = candidate.record
        try:
            record.lane, transaction = self._resources.begin_materialisation(choice, candidate.revision)
        except StalePlan as stale:
            self._replan(record, stale)
            return
        self._begin(Purpose.MATERIALISATION, record, transaction)
        self._scheduler.admitted(record)
        self.counters.backfills += candidate.protection is not None
        record.move(RequestState.MATERIALISING)
        self._advance_transition(self._clock())

    # --- 7. run the unit that the Scheduler chose ---

    def _run(self, unit: Unit) -> PendingBatch | None:
        """Execute the unit; None if it produced no output or was rolled back."""
        try:
            return self._runner.run(unit)
        except UnitFault as fault:
            self._fault(unit, fault)
            return None

    # --- 8. commit model, budgets and output sessions ---

    def _commit(self, unit: Unit, batch: PendingBatch | None) -> list[Publication]:
        """Consume the batch; what is committed everywhere and may now be seen is returned."""
        if batch is None:
            return []
        try:
            verdicts = self._runner.commit(unit, batch)
        except UnitFault as fault:
            self._fault(unit, fault)
            return []
        publications = [publication for verdict in verdicts if (publication := self._runner.settle(verdict))]
        self._stop_lanes(unit)
        return publications

    def _fault(self, unit: Unit, fault: UnitFault) -> None:
        """Program is back at the last commit: those at fault (all, if unknown) end, the others may run again."""
        self.counters.unit_faults += 1
        logger.warning("%s unit failed and was rolled back: %s", unit.kind.value, fault)
        now = self._clock()
        for record in at_fault(unit, fault):
            reason = record.stop_reason(now)
            record.end(stopped(reason) if reason else failed(f"{unit.kind.value} failed: {fault}"))
        self._stop_lanes(unit)

    def _stop_lanes(self, unit: Unit) -> None:
        for record in unit.records:
            if record.state is RequestState.TERMINAL_PENDING:
                self._stop_lane(record)

    # --- 9. publish ---

    def _publish(self, publications: Sequence[Publication]) -> None:
        for publication in publications:
            publication.record.channel.publish(publication.events)

    # --- the end of one request ---

    def _finish(self, record: RequestRecord, ending: Ending) -> None:
        """Resources are settled: budget, output session, publication, in this order; then the response is done."""
        now = self._clock()
        ending, events = self._final_output(record, ending, now)
        record.move(RequestState.FINISHED)
        record.channel.publish(events)
        error = None if ending.failure is None else ending.failure.message
        finish = Finish(ending.reason, record.usage(), record.timings(now), error)
        self._account(record, finish)
        del self._unfinished[record.order]
        record.channel.finish(finish, ending.failure)

    def _final_output(self, record: RequestRecord, ending: Ending, now: float) -> tuple[Ending, tuple[Event, ...]]:
        """Adopt the final span and take what the output session held back. Its failure becomes the request's."""
        events: tuple[Event, ...] = ()
        try:
            if ending.last is not None:
                record.accept(ending.last.accepted, now)
                record.output.commit(ending.last)
                events = ending.last.events
            if ending.flush:
                events += record.output.flush()
        except Exception as error:
            return failed(f"output could not be completed: {error}"), events
        return ending, events

    def _account(self, record: RequestRecord, finish: Finish) -> None:
        self.counters.finished[finish.reason] += 1
        self.counters.prompt_tokens += finish.usage.prompt_tokens
        self.counters.reused_tokens += finish.usage.reused_tokens
        self.counters.completion_tokens += finish.usage.completion_tokens
        log_end(record.order, finish, record.reuse)

    # --- the whole Engine ---

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._scheduler.waiting)

    @property
    def active(self) -> int:
        """Requests with an active sequence."""
        return len(self._scheduler.active)

    @property
    def checkpoints(self) -> int:
        """Checkpoints in the catalog."""
        return len(self._cache.catalog)

    @property
    def idle(self) -> bool:
        """True if every request received has ended."""
        return not self._unfinished

    def next_deadline(self) -> float | None:
        """The clock time at which some request becomes overdue."""
        deadlines = (record.deadline_at for record in self._unfinished.values())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def cancel_all(self) -> None:
        """Every request stops at the next boundary that sees it."""
        for record in self._unfinished.values():
            record.channel.cancel_requested = True

    def fail(self, failure: Failure, arrivals: Sequence[RequestRecord]) -> None:
        """Shared state is unexplained: end what Program has open, release it, forget the lanes, answer everyone."""
        records = (*self._unfinished.values(), *arrivals)
        self._unfinished.clear()
        self._runner.abandon_pending()
        if self._transition is not None:
            with contextlib.suppress(Exception):
                self._transition.transaction.abort()
            self._transition = None
        self.close()
        self._scheduler.clear()
        for record in records:
            self._answer_failure(record, failure)

    def close(self) -> None:
        """Release Program, forget what it held. It promises not to raise; if it does, requests are still answered."""
        try:
            self._program.close()
        except Exception:
            logger.exception("Program could not be closed cleanly")
        self._resources.clear()

    def _answer_failure(self, record: RequestRecord, failure: Failure) -> None:
        now = self._clock()
        finish = Finish(FinishReason.ERROR, record.usage(), record.timings(now), failure.message)
        self._account(record, finish)
        record.channel.finish(finish, failure)
