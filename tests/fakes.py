"""Fakes of the control plane's neighbours: a scripted Program that checks how it is used, and a clock.

`ScriptedProgram` keeps its own books of pages and sequences, writes every call into `log`, refuses misuse of the
protocol (and remembers it in `violations`, since the Engine would turn an AssertionError into a failure), and raises
whatever a test has armed for the next call of an operation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
    RunningTransaction,
    SequenceDemand,
    SequenceHandle,
    StalePlan,
    TerminalChoice,
    UnitFault,
)
from ninfer.types import PreparedPrompt, ResolvedSampling, TokenLogprob

GREEDY = ResolvedSampling(0.0, 1.0, 0, 0.0, 0.0, 0.0, 1.0, 0)
LogEntry = tuple[object, ...]


class FakeClock:
    """A clock that stands still until told otherwise."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def prompt_of(length: int, first: int = 1) -> PreparedPrompt:
    """A prompt of `length` distinct tokens; `first` tells prompts of one length apart."""
    return PreparedPrompt(tuple(range(first, first + length)), text=None, opens_thinking=False)


def scripted_token(prompt: PreparedPrompt, position: int) -> int:
    """The token that the scripted model chooses as output number `position`."""
    return 1000 + (sum(prompt.token_ids) * 31 + position * 7) % 9000


# --- Program ----------------------------------------------------------------------------------------------


@dataclass
class FakeSequence:
    """What the scripted Program knows of an active sequence."""

    handle: SequenceHandle
    demand: SequenceDemand
    pages: int
    prefilled: int = 0
    output: list[int] = field(default_factory=list)
    terminal: bool = False


@dataclass(frozen=True)
class FakePlan:
    revision: int
    pages: int
    target: MaterialisationTarget | None = None
    sequence: SequenceHandle | None = None


@dataclass(frozen=True)
class FakeBatch:
    serial: int
    rows: tuple[PendingRow, ...]


class FakeTransaction:
    """Takes `stages` advances. `commits_at` of them suffice for the end state to be fixed: a later abort commits."""

    def __init__(self, program: ScriptedProgram, plan: FakePlan, stages: int, commits_at: int | None) -> None:
        self._program = program
        self._plan = plan
        self._left = stages
        self._commits_at = commits_at
        self._stages = stages

    def advance(self) -> bool:
        self._program.enter("advance")
        self._program.require(self._program.transaction is self, "advance of a closed transaction")
        self._program.require(self._left > 0, "advance of a complete transaction")
        self._left -= 1
        return self._left == 0

    def abort(self) -> ResourceResult:
        self._program.enter("abort")
        self._program.require(self._program.transaction is self, "abort of a closed transaction")
        self._program.transaction = None
        done = self._stages - self._left
        if self._plan.target is None or (self._commits_at is not None and done >= self._commits_at):
            return self._program.apply(self._plan)
        self._program.undo(self._plan)
        return ResourceResult(ResourceOutcome.ABORTED)

    def result(self) -> ResourceResult:
        self._program.enter("result")
        self._program.require(self._program.transaction is self, "result of a closed transaction")
        self._program.require(self._left == 0, "result of an incomplete transaction")
        self._program.transaction = None
        return self._program.apply(self._plan)


class ScriptedProgram:
    """A Program whose physics are a page count and whose model is `scripted_token`.

    `span` tokens come with every decode row (as far as its budget goes). `observer` runs at the start of every call,
    right after the call was logged.
    """

    def __init__(
        self,
        lanes: int = 2,
        pages: int = 16,
        page_tokens: int = 4,
        max_context: int = 32,
        prefill_chunk: int = 4,
        span: int = 1,
        stages: int = 1,
        terminal_stages: int = 1,
        commits_at: int | None = None,
    ) -> None:
        self._limits = ProgramLimits(lanes, max_context, pages, prefill_chunk, page_tokens)
        self._span = span
        self._stages = stages
        self._terminal_stages = terminal_stages
        self._commits_at = commits_at
        self._revision = 0
        self._generation = 0
        self._batch: FakeBatch | None = None
        self._serial = 0
        self._held = 0
        self.stale_plans = 0
        self.transaction: FakeTransaction | None = None
        self.sequences: dict[SequenceHandle, FakeSequence] = {}
        self.log: list[LogEntry] = []
        self.violations: list[str] = []
        self.closed = False
        self.observer: Callable[[], None] = lambda: None
        self.committed: dict[tuple[int, ...], list[int]] = {}
        self._armed: dict[str, deque[Exception]] = {}

    # --- what tests may do ---

    def arm(self, operation: str, error: Exception) -> None:
        """Raise `error` at the next call of `operation`."""
        self._armed.setdefault(operation, deque()).append(error)

    def disarm(self) -> None:
        """Forget everything armed."""
        self._armed.clear()

    def calls(self, operation: str) -> list[LogEntry]:
        """Log entries of one operation."""
        return [entry for entry in self.log if entry[0] == operation]

    @property
    def free_pages(self) -> int:
        """Pages neither reserved by an active sequence nor held by an open transaction."""
        return self._limits.kv_pages - self._held - sum(sequence.pages for sequence in self.sequences.values())

    def pages_of(self, demand: SequenceDemand) -> int:
        """The full reservation of a demand."""
        return -(-(len(demand.prompt.token_ids) + demand.max_new_tokens) // self._limits.page_tokens)

    def require(self, condition: bool, message: str) -> None:
        """Note misuse, then raise as a real Program would."""
        if not condition:
            self.violations.append(message)
            raise AssertionError(message)

    def enter(self, operation: str, *details: object) -> None:
        """The beginning of every call."""
        self.log.append((operation, *details))
        self.observer()
        self.require(not self.closed, f"{operation} after close")
        armed = self._armed.get(operation)
        if armed:
            raise armed.popleft()

    # --- feasibility ---

    @property
    def limits(self) -> ProgramLimits:
        return self._limits

    @property
    def resource_revision(self) -> int:
        return self._revision

    def assess(self, target: MaterialisationTarget) -> Assessment:
        self.enter("assess", target.demand.prompt.token_ids[0])
        need = self.pages_of(target.demand)
        if need > self._limits.kv_pages:
            reason = f"the request needs {need} pages, kv_capacity is {self._limits.kv_pages}"
            return Assessment(Readiness.PERMANENTLY_INFEASIBLE, reason)
        if need > self.free_pages or len(self.sequences) >= self._limits.max_concurrency:
            return Assessment(Readiness.TEMPORARILY_BLOCKED, f"{need} pages needed, {self.free_pages} free")
        return Assessment(Readiness.NEEDS_TRANSFER if self._stages > 1 else Readiness.READY)

    def proves_backfill(
        self, head: SequenceDemand, donors: Sequence[SequenceHandle], borrower: MaterialisationTarget
    ) -> bool:
        self.enter("proves_backfill", head.prompt.token_ids[0], borrower.demand.prompt.token_ids[0])
        self.require(all(donor in self.sequences for donor in donors), "a donor is no longer active")
        freed = sum(self.sequences[donor].pages for donor in donors)
        lanes = len(self.sequences) - len(donors) + 2 <= self._limits.max_concurrency
        return lanes and self.free_pages - self.pages_of(borrower.demand) + freed >= self.pages_of(head)

    # --- resource transactions ---

    def seal(self, target: MaterialisationTarget) -> ResourcePlan:
        self.enter("seal", target.demand.prompt.token_ids[0])
        self.require(target.checkpoint is None, "there are no checkpoints")
        need = self.pages_of(target.demand)
        self.require(need <= self.free_pages, "sealed a target that does not fit")
        return FakePlan(self._revision, need, target=target)

    def seal_terminal(self, sequence: SequenceHandle, choice: TerminalChoice) -> ResourcePlan:
        self.enter("seal_terminal", sequence)
        self.require(choice is TerminalChoice.RELEASE, "nothing can be retained")
        return FakePlan(self._revision, self._sequence(sequence).pages, sequence=sequence)

    def start(self, plan: ResourcePlan) -> RunningTransaction:
        self.enter("start")
        self.require(self.transaction is None, "two open transactions")
        self.require(self._batch is None, "a transition was started with an open batch")
        assert isinstance(plan, FakePlan)
        if self.stale_plans > 0:
            self.stale_plans -= 1
            raise StalePlan("scripted")
        if plan.revision != self._revision:
            raise StalePlan(f"sealed under {plan.revision}, now {self._revision}")
        if plan.target is not None:
            self._held += plan.pages
        stages = self._stages if plan.target is not None else self._terminal_stages
        self._revision += 1
        self.transaction = FakeTransaction(self, plan, stages, self._commits_at)
        return self.transaction

    def apply(self, plan: FakePlan) -> ResourceResult:
        """The committed end state of a plan."""
        self._revision += 1
        if plan.target is None:
            assert plan.sequence is not None
            del self.sequences[plan.sequence]
            self.log.append(("released", plan.sequence))
            return ResourceResult(ResourceOutcome.COMMITTED)
        self._held -= plan.pages
        taken = {handle.index for handle in self.sequences}
        index = next(number for number in range(self._limits.max_concurrency) if number not in taken)
        self._generation += 1
        handle = SequenceHandle(index, self._generation)
        self.sequences[handle] = FakeSequence(handle, plan.target.demand, plan.pages)
        self.committed[plan.target.demand.prompt.token_ids] = self.sequences[handle].output
        self.log.append(("activated", handle))
        return ResourceResult(ResourceOutcome.COMMITTED, sequence=handle)

    def undo(self, plan: FakePlan) -> None:
        """The aborted end state of a plan."""
        self._revision += 1
        self._held -= plan.pages

    # --- model transactions ---

    def prefill(self, sequence: SequenceHandle) -> PrefillProgress:
        self.enter("prefill", sequence)
        state = self._runnable(sequence)
        left = len(state.demand.prompt.token_ids) - state.prefilled
        self.require(left > 0, "prefill of a complete prompt")
        consumed = min(left, self._limits.prefill_chunk)
        state.prefilled += consumed
        pending = self._open([self._row(state, 1)]) if consumed == left else None
        return PrefillProgress(consumed, pending)

    def decode(self, rows: Sequence[DecodeRow]) -> PendingBatch:
        self.enter("decode", tuple(row.sequence for row in rows))
        states = [self._runnable(row.sequence) for row in rows]
        self.require(0 < len(rows) <= self._limits.max_concurrency, "a round of impossible size")
        self.require(len({row.sequence for row in rows}) == len(rows), "a sequence is in a round twice")
        for row, state in zip(rows, states, strict=True):
            self.require(state.prefilled == len(state.demand.prompt.token_ids), "decode before the end of the prompt")
            self.require(row.budget == state.demand.max_new_tokens - len(state.output), "wrong budget")
            self.require(row.budget >= 1, "decode without budget")
        return self._open(
            [self._row(state, min(self._span, row.budget)) for row, state in zip(rows, states, strict=True)]
        )

    def control(self, sequence: SequenceHandle, tokens: Sequence[int]) -> PendingBatch:
        self.enter("control", sequence, tuple(tokens))
        self.require(len(tokens) >= 1, "control without tokens")
        state = self._runnable(sequence)
        self.require(len(tokens) <= state.demand.max_new_tokens - len(state.output), "control beyond the reservation")
        return self._open([PendingRow(sequence, tuple(tokens))])

    def commit(self, batch: PendingBatch, decisions: Sequence[RowDecision]) -> None:
        self.require(batch is self._batch, "commit of a batch that is not open")
        self.require(len(decisions) == len(batch.rows), "one decision per row")
        try:
            self.enter("commit", *[(row.sequence, d.accepted) for row, d in zip(batch.rows, decisions, strict=True)])
        except UnitFault:
            self._batch = None
            raise
        self._batch = None
        for row, decision in zip(batch.rows, decisions, strict=True):
            self._decide(self._sequence(row.sequence), row, decision)

    def _decide(self, state: FakeSequence, row: PendingRow, decision: RowDecision) -> None:
        if decision.cancelled:
            self.require(
                decision.accepted == 0 and decision.terminal, "a cancelled row accepts nothing and is terminal"
            )
        else:
            self.require(1 <= decision.accepted <= len(row.tokens), "accepted beyond the produced span")
            self.require(
                decision.terminal or decision.accepted == len(row.tokens), "a continuing row accepts everything"
            )
        self.require(all(0 <= cut <= decision.accepted for cut in decision.boundaries), "boundary outside the span")
        state.output.extend(row.tokens[: decision.accepted])
        state.terminal = decision.terminal
        self.require(len(state.output) <= state.demand.max_new_tokens, "more output than reserved")

    def abort_pending(self, batch: PendingBatch) -> None:
        self.enter("abort_pending", *[row.sequence for row in batch.rows])
        self.require(batch is self._batch, "abort of a batch that is not open")
        self._batch = None

    # --- the rest ---

    def occupancy(self) -> Occupancy:
        self.observer()
        self.require(not self.closed, "occupancy after close")
        allocated = sum(
            -(-(state.prefilled + len(state.output)) // self._limits.page_tokens) for state in self.sequences.values()
        )
        reserved = self._limits.kv_pages - self.free_pages - allocated
        return Occupancy((AxisOccupancy("main", self._limits.kv_pages, allocated, reserved, self.free_pages),))

    def close(self) -> None:
        self.observer()
        self.log.append(("close",))
        if self.closed:
            self.violations.append("closed twice")
        self.closed = True
        self.transaction, self._batch, self._held = None, None, 0
        self.sequences.clear()

    def _sequence(self, handle: SequenceHandle) -> FakeSequence:
        self.require(handle in self.sequences, f"use of a released sequence {handle}")
        return self.sequences[handle]

    def _runnable(self, handle: SequenceHandle) -> FakeSequence:
        self.require(self._batch is None, "a unit was started with an open batch")
        state = self._sequence(handle)
        self.require(not state.terminal, "a terminal sequence was run")
        return state

    def _row(self, state: FakeSequence, count: int) -> PendingRow:
        done = len(state.output)
        tokens = tuple(scripted_token(state.demand.prompt, done + number) for number in range(count))
        logprobs = tuple(TokenLogprob(token, -0.5) for token in tokens) if state.demand.top_logprobs is not None else ()
        return PendingRow(state.handle, tokens, logprobs)

    def _open(self, rows: list[PendingRow]) -> FakeBatch:
        self._serial += 1
        self._batch = FakeBatch(self._serial, tuple(rows))
        return self._batch
