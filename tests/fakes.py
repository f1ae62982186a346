"""Fakes of the control plane's neighbours: a scripted Program that checks how it is used, and a clock.

`ScriptedProgram` keeps its own books of pages and sequences, writes every call into `log`, refuses misuse of the
protocol (and remembers it in `violations`, since the Engine would turn an AssertionError into a failure), and raises
whatever a test has armed for the next call of an operation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from ninfer.runtime.core.program import (
    Assessment,
    CheckpointFacts,
    CheckpointHandle,
    DecodeRow,
    Degradation,
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
    Victim,
)
from ninfer.types import PreparedPrompt, ResolvedSampling, TokenLogprob
from tests.fake_stores import FakeCheckpoint, FakeSequence, FakeStores
from tests.fake_transactions import FakeBatch, FakePlan, FakeTransaction

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


class ScriptedProgram:
    """A Program whose physics are `FakeStores` and whose model is `scripted_token`.

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
        images: int = 0,
        host_images: int = 0,
    ) -> None:
        self._limits = ProgramLimits(lanes, max_context, pages, prefill_chunk, page_tokens, images, host_images)
        self._span = span
        self._stages = stages
        self._terminal_stages = terminal_stages
        self._commits_at = commits_at
        self._revision = 0
        self._batch: FakeBatch | None = None
        self._serial = 0
        self.stores = FakeStores(self._limits)
        self.stale_plans = 0
        self.transaction: FakeTransaction | None = None
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
    def sequences(self) -> dict[SequenceHandle, FakeSequence]:
        """Active sequences."""
        return self.stores.sequences

    @property
    def checkpoints(self) -> dict[CheckpointHandle, FakeCheckpoint]:
        """Checkpoints that exist."""
        return self.stores.checkpoints

    @property
    def free_pages(self) -> int:
        """Pages that no sequence, open transaction or checkpoint on the device holds."""
        return self._limits.kv_pages - len(self.stores.used())

    @property
    def reclaimable_pages(self) -> int:
        """Free pages once every checkpoint is gone."""
        return self._limits.kv_pages - len(self.stores.used(self.checkpoints))

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
        self._check_victims(target.victims)
        need = self.stores.pages_of(target.demand)
        if need > self._limits.kv_pages:
            reason = f"the request needs {need} pages, kv_capacity is {self._limits.kv_pages}"
            return Assessment(Readiness.PERMANENTLY_INFEASIBLE, reason)
        used = self.stores.used([victim.checkpoint for victim in target.victims])
        if target.checkpoint is not None:
            self._check_source(target)
            used.update(self.checkpoints[target.checkpoint].pages or ())
            need = self.stores.need(target)
        free = self._limits.kv_pages - len(used)
        if need > free or len(self.sequences) >= self._limits.max_concurrency:
            return Assessment(Readiness.TEMPORARILY_BLOCKED, f"{need} pages needed, {free} free")
        return self._ready(target.victims, self._stages > 1 or target.checkpoint is not None)

    def assess_capture(self, sequence: SequenceHandle, victims: Sequence[Victim] = ()) -> Assessment:
        self.enter("assess_capture", sequence)
        self.require(self._sequence(sequence).frontier > 0, "capture of an empty state")
        return self._assess_image(victims)

    def assess_retain(self, sequence: SequenceHandle, victims: Sequence[Victim] = ()) -> Assessment:
        self.enter("assess_retain", sequence)
        self.require(self._sequence(sequence).frontier > 0, "retention of an empty state")
        return self._assess_image(victims)

    def _assess_image(self, victims: Sequence[Victim]) -> Assessment:
        self._check_victims(victims)
        if self.stores.images([victim.checkpoint for victim in victims]) >= self._limits.checkpoint_images:
            return Assessment(Readiness.TEMPORARILY_BLOCKED, "no image slot")
        return self._ready(victims, False)

    def _ready(self, victims: Sequence[Victim], copies: bool) -> Assessment:
        if not self.stores.host_fits(victims):
            return Assessment(Readiness.TEMPORARILY_BLOCKED, "no host slot")
        moved = sum(victim.degradation is Degradation.HOST_ONLY for victim in victims) + copies
        readiness = Readiness.NEEDS_TRANSFER if moved else Readiness.READY
        return Assessment(readiness, transfer_bytes=100 * moved, transfer_operations=moved)

    def _check_victims(self, victims: Sequence[Victim]) -> None:
        known = [self.checkpoints.get(victim.checkpoint) for victim in victims]
        self.require(None not in known, "a victim does not exist")
        self.require(len({victim.checkpoint for victim in victims}) == len(victims), "a victim is named twice")
        for victim, checkpoint in zip(victims, known, strict=True):
            moved = victim.degradation is Degradation.HOST_ONLY
            self.require(not (moved and checkpoint and checkpoint.pages is None), "nothing is left to move")

    def _check_source(self, target: MaterialisationTarget) -> None:
        assert target.checkpoint is not None
        self.require(target.checkpoint in self.checkpoints, "the source does not exist")
        source, prompt = self.checkpoints[target.checkpoint], target.demand.prompt
        self.require(source.identity == prompt.identity, "the source has another identity")
        self.require(prompt.token_ids[: len(source.tokens)] == source.tokens, "the source has another history")
        self.require(len(source.tokens) < len(prompt.token_ids), "no token is left to recompute")
        self.require(target.checkpoint not in [v.checkpoint for v in target.victims], "the source is a victim")

    def common_prefix(self, checkpoint: CheckpointHandle, prompt: PreparedPrompt) -> int:
        self.require(checkpoint in self.checkpoints, "comparison with a checkpoint that does not exist")
        source = self.checkpoints[checkpoint]
        pairs = zip(source.tokens, prompt.token_ids, strict=False)
        equal = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(source.tokens), len(prompt.token_ids)))
        return equal if source.identity == prompt.identity else 0

    def facts(self, checkpoint: CheckpointHandle) -> CheckpointFacts:
        self.require(checkpoint in self.checkpoints, "facts of a checkpoint that does not exist")
        return self.stores.facts(checkpoint)

    def proves_backfill(
        self, head: SequenceDemand, donors: Sequence[SequenceHandle], borrower: MaterialisationTarget
    ) -> bool:
        self.enter("proves_backfill", head.prompt.token_ids[0], borrower.demand.prompt.token_ids[0])
        self.require(all(donor in self.sequences for donor in donors), "a donor is no longer active")
        lanes = len(self.sequences) - len(donors) + 2 <= self._limits.max_concurrency
        shared = self.stores.shared(borrower)
        staying = {page for s in self.sequences.values() if s.handle not in donors for page in s.pages}
        fresh = self.stores.pages_of(borrower.demand) - len(shared)
        free = self._limits.kv_pages - len(staying.union(shared)) - fresh
        return lanes and free >= self.stores.pages_of(head)

    # --- resource transactions ---

    def seal(self, target: MaterialisationTarget) -> ResourcePlan:
        self.enter("seal", target.demand.prompt.token_ids[0])
        self._check_victims(target.victims)
        if target.checkpoint is not None:
            self._check_source(target)
        return FakePlan(self._revision, target.victims, target=target)

    def seal_capture(self, sequence: SequenceHandle, victims: Sequence[Victim] = ()) -> ResourcePlan:
        self.enter("seal_capture", sequence)
        self.require(self._assess_image(victims).feasible, "sealed a capture without an image slot")
        self.require(not self._sequence(sequence).terminal, "capture of a terminal sequence")
        return FakePlan(self._revision, tuple(victims), sequence=sequence)

    def seal_terminal(
        self, sequence: SequenceHandle, choice: TerminalChoice, victims: Sequence[Victim] = ()
    ) -> ResourcePlan:
        self.enter("seal_terminal", sequence)
        if choice is TerminalChoice.RETAIN:
            self.require(self._assess_image(victims).feasible, "retained without an image slot")
        return FakePlan(self._revision, tuple(victims), sequence=self._sequence(sequence).handle, choice=choice)

    def seal_reclaim(self, victims: Sequence[Victim]) -> ResourcePlan:
        self.enter("seal_reclaim")
        self._check_victims(victims)
        return FakePlan(self._revision, tuple(victims))

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
        self._revision += 1
        self.transaction = FakeTransaction(
            self, plan, self._terminal_stages if plan.ends else self._stages, self._commits_at
        )
        return self.transaction

    def begin(self, plan: FakePlan) -> None:
        """Carry out a plan's degradations, and hold what its end state needs."""
        self.stores.degrade(plan.victims)
        if plan.target is not None:
            used = self.stores.used()
            need = self.stores.need(plan.target)
            self.require(need <= self._limits.kv_pages - len(used), "started a target that does not fit")
            self.stores.held = self.stores.take(need)

    def apply(self, plan: FakePlan) -> ResourceResult:
        """The committed end state of a plan that has begun."""
        self._revision += 1
        result = replace(_degraded(plan), outcome=ResourceOutcome.COMMITTED)
        if plan.target is not None:
            return self._activate(plan.target, result)
        if plan.sequence is None:
            return result
        sequence = self.sequences[plan.sequence]
        if plan.choice is not TerminalChoice.RELEASE:
            result = replace(result, published=self.stores.publish(sequence))
            self.log.append(("published", plan.sequence, sequence.frontier))
        if plan.ends:
            del self.sequences[plan.sequence]
            self.log.append(("released", plan.sequence))
        return result

    def _activate(self, target: MaterialisationTarget, result: ResourceResult) -> ResourceResult:
        sequence = self.stores.open(target)
        self.committed[target.demand.prompt.token_ids] = sequence.output
        self.log.append(("activated", sequence.handle))
        removed = result.removed if target.checkpoint is None or not target.consume else (target.checkpoint,)
        return replace(
            result,
            sequence=sequence.handle,
            reused_tokens=sequence.prefilled,
            removed=tuple(dict.fromkeys((*result.removed, *removed))),
        )

    def undo(self, plan: FakePlan, begun: bool) -> ResourceResult:
        """The aborted end state of a plan."""
        self._revision += 1
        self.stores.held = []
        return _degraded(plan) if begun else ResourceResult(ResourceOutcome.ABORTED)

    # --- model transactions ---

    def prefill(self, sequence: SequenceHandle, until: int | None = None) -> PrefillProgress:
        self.enter("prefill", sequence)
        state = self._runnable(sequence)
        left = len(state.demand.prompt.token_ids) - state.prefilled
        self.require(left > 0, "prefill of a complete prompt")
        limit = left if until is None else until - state.prefilled
        self.require(limit > 0, "prefill of nothing")
        consumed = min(left, limit, self._limits.prefill_chunk)
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
        return Occupancy(self.stores.axes())

    def close(self) -> None:
        self.observer()
        self.log.append(("close",))
        if self.closed:
            self.violations.append("closed twice")
        self.closed = True
        self.transaction, self._batch = None, None
        self.stores.clear()

    def _sequence(self, handle: SequenceHandle) -> FakeSequence:
        self.require(handle in self.sequences, f"use of a released sequence {handle}")
        return self.sequences[handle]

    def _runnable(self, handle: SequenceHandle) -> FakeSequence:
        self.require(self._batch is None, "a unit was started with an open batch")
        self.require(
            self.transaction is None or self.transaction.sequence != handle, "a sequence in transition was run"
        )
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


def _degraded(plan: FakePlan) -> ResourceResult:
    """A plan whose degradations alone were carried out."""
    removed = tuple(v.checkpoint for v in plan.victims if v.degradation is Degradation.DELETE)
    return ResourceResult(ResourceOutcome.ABORTED, removed=removed, degraded=plan.victims)
