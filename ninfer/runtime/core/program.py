"""The Program protocol: everything the control plane may ask of the physical side.

Program owns physical facts (pages, state images, reservations, model state) and decides feasibility; it never sees the
queue, sessions or users. The control plane owns order and policy; it never sees a page. Two implementations exist:
the real one in `runtime.program`, and a scripted fake in the tests that logs and can fail at every step.

Two kinds of transaction cross this border and never replace one another:

* a *resource transaction* changes global topology: `seal` → `start` → `advance`… → `ResourceResult`, at most one open;
* a *model transaction* changes one sequence set's state: `prefill`/`decode`/`control` → `PendingBatch` → `commit` or
  `abort_pending`, exactly one of them, for the whole batch.

Errors: `UnitFault` says that a model unit failed and that Program is back at the last committed state of every
sequence in it; `StalePlan` says that a plan was sealed under another `resource_revision` and that nothing happened.
Anything else that escapes means that physical state cannot be explained any more, and the whole Engine fails.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ninfer.types import PreparedPrompt, ResolvedSampling, TokenLogprob


class StalePlan(Exception):
    """The plan's `resource_revision` is no longer current; plan again. No side effect took place."""


class UnitFault(Exception):
    """A model unit failed and was rolled back; the sequences in it keep their last committed state.

    `culprits` are the sequences that made it fail; the others may run again. Empty means that it cannot be told.
    """

    def __init__(self, message: str, culprits: tuple[SequenceHandle, ...] = ()) -> None:
        super().__init__(message)
        self.culprits = culprits


@dataclass(frozen=True, slots=True)
class SequenceHandle:
    """An active sequence inside Program. A handle of a released sequence never becomes valid again."""

    index: int
    generation: int


@dataclass(frozen=True, slots=True)
class CheckpointHandle:
    """An immutable reusable continuation inside Program."""

    index: int
    generation: int


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """Fixed at start: lanes, context per request (tokens), KV pages in the shared pool, tokens per prefill chunk.

    Checkpoints have `checkpoint_images` device slots and `host_images` host slots for their state, and `host_kv_bytes`
    of host memory for their pages. With no device slot nothing is ever kept.
    """

    max_concurrency: int
    max_context: int
    kv_pages: int
    prefill_chunk: int
    page_tokens: int = 64
    checkpoint_images: int = 0
    host_images: int = 0
    host_kv_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SequenceDemand:
    """Everything one request can ever need: its prompt, its token budget, and how its tokens are chosen."""

    prompt: PreparedPrompt
    max_new_tokens: int
    sampling: ResolvedSampling
    top_logprobs: int | None = None


class Degradation(enum.Enum):
    """What may be done to an inactive checkpoint for the sake of another request. It only ever goes down this list.

    HOST_ONLY frees its device replicas, after transferring what the host does not hold yet.
    """

    HOST_ONLY = "host_only"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Victim:
    """One checkpoint and what is to be done to it."""

    checkpoint: CheckpointHandle
    degradation: Degradation


@dataclass(frozen=True, slots=True)
class MaterialisationTarget:
    """One complete choice for a waiting request.

    `checkpoint` None starts from root. With `consume` the source checkpoint ends and gives its state away; otherwise
    it is forked and stays. `victims` are degraded first; the source is none of them.
    """

    demand: SequenceDemand
    checkpoint: CheckpointHandle | None = None
    consume: bool = False
    victims: tuple[Victim, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """A checkpoint in brief: its frontier in tokens, where it is complete, and the device pages only it holds."""

    frontier: int
    on_device: bool
    on_host: bool
    exclusive_pages: int
    restore_bytes: int = 0
    """What restoring all of it from the host would move."""


class Readiness(enum.Enum):
    """What Program says of a target, from physical facts alone."""

    READY = "ready"
    NEEDS_TRANSFER = "needs_transfer"
    TEMPORARILY_BLOCKED = "temporarily_blocked"
    PERMANENTLY_INFEASIBLE = "permanently_infeasible"


@dataclass(frozen=True, slots=True)
class Assessment:
    """`reason` explains a refusal in numbers a user can act on. `reused_tokens` is what the source would save.

    `transfer_bytes` and `transfer_operations` are the copies that carrying the target out takes.
    """

    readiness: Readiness
    reason: str = ""
    reused_tokens: int = 0
    transfer_bytes: int = 0
    transfer_operations: int = 0

    @property
    def feasible(self) -> bool:
        """True if the target can be sealed now."""
        return self.readiness in (Readiness.READY, Readiness.NEEDS_TRANSFER)


class TerminalChoice(enum.Enum):
    """What becomes of a finished sequence's state."""

    RELEASE = "release"
    RETAIN = "retain"


class ResourcePlan(Protocol):
    """An opaque, fully decided transition, valid only under the revision it was sealed with."""

    @property
    def revision(self) -> int: ...


class ResourceOutcome(enum.Enum):
    """How a resource transaction ended."""

    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class ResourceResult:
    """The complete end state of one resource transaction: enough to update every logical record.

    `sequence` is the sequence that became active (materialisation), None otherwise. `published` is the checkpoint a
    RETAIN or a capture produced. `degraded` are the victims that were carried out, and `removed` the checkpoints that
    no longer exist: deleted ones and a consumed source.
    """

    outcome: ResourceOutcome
    sequence: SequenceHandle | None = None
    reused_tokens: int = 0
    published: CheckpointHandle | None = None
    removed: tuple[CheckpointHandle, ...] = ()
    degraded: tuple[Victim, ...] = ()


class RunningTransaction(Protocol):
    """An open resource transaction."""

    def advance(self) -> bool:
        """Do the next stage; True when the transaction is complete and `result` may be taken."""
        ...

    def abort(self) -> ResourceResult:
        """Undo what is not yet committed and close; the result says what became of everything."""
        ...

    def result(self) -> ResourceResult:
        """The committed result; closes the transaction. Only after `advance` returned True."""
        ...


@dataclass(frozen=True, slots=True)
class PendingRow:
    """One sequence's provisional output: `tokens` were chosen but are not yet part of its state."""

    sequence: SequenceHandle
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


class PendingBatch(Protocol):
    """Provisional output of one unit; consumed whole by one `commit` or one `abort_pending`."""

    @property
    def rows(self) -> tuple[PendingRow, ...]: ...


@dataclass(frozen=True, slots=True)
class RowDecision:
    """What to keep of a pending row: the first `accepted` tokens; 0 only for a cancelled row.

    `boundaries` are positions inside the accepted span, relative to its first token, where the history renderer could
    cut.
    """

    accepted: int
    terminal: bool
    cancelled: bool = False
    boundaries: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """One prefill unit consumed `consumed` prompt tokens; `pending` holds the first output once the prompt is done."""

    consumed: int
    pending: PendingBatch | None


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One member of a decode round and how many output tokens it may still produce (≥ 1)."""

    sequence: SequenceHandle
    budget: int


@dataclass(frozen=True, slots=True)
class AxisOccupancy:
    """One resource axis. `allocated + reserved + available == capacity` at every boundary."""

    name: str
    capacity: int
    allocated: int
    reserved: int
    available: int


@dataclass(frozen=True, slots=True)
class Occupancy:
    """All axes of Program at one boundary."""

    axes: tuple[AxisOccupancy, ...]


class Program(Protocol):
    """The physical side of one model instance. Called by the Engine worker only."""

    @property
    def limits(self) -> ProgramLimits: ...

    @property
    def resource_revision(self) -> int:
        """Advances when owners, references, inactive placement or free capacity change; not on ordinary decode."""
        ...

    def assess(self, target: MaterialisationTarget) -> Assessment:
        """Judge a complete target against real occupancy. No side effects."""
        ...

    def proves_backfill(
        self, head: SequenceDemand, donors: Sequence[SequenceHandle], borrower: MaterialisationTarget
    ) -> bool:
        """True if, with `borrower` holding its full reservation for ever, the end of `donors` alone lets `head` in.

        `head` is taken from root with every inactive checkpoint released.
        """
        ...

    def common_prefix(self, checkpoint: CheckpointHandle, prompt: PreparedPrompt) -> int:
        """Exactly how many leading tokens of the checkpoint's history the prompt repeats; 0 if anything else differs.

        A prompt may start from the checkpoint if this is its whole frontier and less than the prompt.
        """
        ...

    def facts(self, checkpoint: CheckpointHandle) -> CheckpointFacts: ...

    def assess_capture(self, sequence: SequenceHandle, victims: Sequence[Victim] = ()) -> Assessment:
        """Judge publishing a checkpoint of an active sequence at its committed frontier. No side effects."""
        ...

    def assess_retain(self, sequence: SequenceHandle, victims: Sequence[Victim] = ()) -> Assessment:
        """Judge ending an active sequence with RETAIN. No side effects."""
        ...

    def seal(self, target: MaterialisationTarget) -> ResourcePlan:
        """Fix a READY or NEEDS_TRANSFER target into a plan bound to the current revision."""
        ...

    def seal_capture(self, sequence: SequenceHandle, victims: Sequence[Victim] = ()) -> ResourcePlan:
        """Plan a checkpoint of an active sequence, which goes on."""
        ...

    def seal_terminal(
        self, sequence: SequenceHandle, choice: TerminalChoice, victims: Sequence[Victim] = ()
    ) -> ResourcePlan:
        """Plan the end of an active sequence: keep one complete checkpoint, or release everything."""
        ...

    def seal_reclaim(self, victims: Sequence[Victim]) -> ResourcePlan:
        """Plan degrading inactive checkpoints on their own."""
        ...

    def start(self, plan: ResourcePlan) -> RunningTransaction:
        """Open the plan's transaction (at most one at a time). Raises StalePlan without side effects."""
        ...

    def prefill(self, sequence: SequenceHandle, until: int | None = None) -> PrefillProgress:
        """Consume the next prompt chunk, not beyond position `until`; the last also chooses the first token."""
        ...

    def decode(self, rows: Sequence[DecodeRow]) -> PendingBatch:
        """One round: exactly these rows, in this order."""
        ...

    def control(self, sequence: SequenceHandle, tokens: Sequence[int]) -> PendingBatch:
        """Run forced tokens: no sampler, no RNG advance."""
        ...

    def commit(self, batch: PendingBatch, decisions: Sequence[RowDecision]) -> None:
        """Make the accepted prefix of every row part of its sequence's state, all rows at once."""
        ...

    def abort_pending(self, batch: PendingBatch) -> None:
        """Forget the batch; every sequence is as it was before the unit."""
        ...

    def occupancy(self) -> Occupancy: ...

    def close(self) -> None:
        """Release every physical resource, whatever is open. Never raises."""
        ...
