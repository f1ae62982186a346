"""ResourceManager: logical lanes, and every resource transaction. The cache policy chooses; Program decides and does.

No physical quantity is mirrored here.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from ninfer.runtime.core.cache.context_cache import Choice, ContextCache
from ninfer.runtime.core.program import (
    Program,
    ResourceOutcome,
    ResourceResult,
    RunningTransaction,
    SequenceHandle,
    StalePlan,
    TerminalChoice,
)
from ninfer.runtime.core.request import RequestRecord


class InvariantBroken(Exception):
    """Program and control plane no longer agree about shared physical state; the whole Engine must stop."""


class LaneState(enum.Enum):
    """Life of one logical lane."""

    FREE = "free"
    MATERIALISING = "materialising"
    ACTIVE = "active"
    TERMINAL_PENDING = "terminal_pending"


@dataclass(slots=True)
class Lane:
    """A long-lived place for one active request. It is neither a state slot nor a row of a batch."""

    state: LaneState = LaneState.FREE
    sequence: SequenceHandle | None = None
    choice: Choice | None = None
    retains: bool = False


class ResourceManager:
    """Lanes Free → Materialising → Active → TerminalPending → Free, one global resource transition at a time."""

    def __init__(self, program: Program, cache: ContextCache) -> None:
        self._program = program
        self._cache = cache
        self._lanes = [Lane() for _ in range(program.limits.max_concurrency)]

    @property
    def lane_free(self) -> bool:
        """True if one more request could become active."""
        return any(lane.state is LaneState.FREE for lane in self._lanes)

    @property
    def lane_states(self) -> tuple[LaneState, ...]:
        """State of every lane, by lane number."""
        return tuple(lane.state for lane in self._lanes)

    def incumbents(self) -> tuple[SequenceHandle, ...]:
        """Every sequence that holds an active reservation."""
        return tuple(lane.sequence for lane in self._lanes if lane.sequence is not None)

    # --- admission ---

    def choose(self, record: RequestRecord) -> Choice:
        """Choose source and end state for a waiting request. No side effects."""
        return self._cache.choose(record)

    def proves_backfill(self, head: RequestRecord, donors: Sequence[SequenceHandle], borrower: Choice) -> bool:
        """May `borrower` pass the blocked head? Program's word holds for the present revision."""
        return self._program.proves_backfill(head.demand, donors, borrower.target)

    def begin_materialisation(self, choice: Choice, revision: int) -> tuple[int, RunningTransaction]:
        """Claim a lane and start the transition that `choice` was judged for under `revision`.

        Raises StalePlan, with nothing claimed, if the revision moved on.
        """
        lane = next(number for number, lane in enumerate(self._lanes) if lane.state is LaneState.FREE)
        plan = self._program.seal(choice.target)
        if plan.revision != revision:
            raise StalePlan(f"judged under revision {revision}, sealed under {plan.revision}")
        transaction = self._program.start(plan)
        self._lanes[lane] = Lane(LaneState.MATERIALISING, choice=choice)
        return lane, transaction

    def adopt_materialisation(self, record: RequestRecord, result: ResourceResult) -> SequenceHandle | None:
        """Adopt the complete result: the sequence that became active, or None after an abort."""
        place = self._place(record, LaneState.MATERIALISING)
        self._cache.adopt_losses(result)
        choice, place.choice = place.choice, None
        if result.outcome is ResourceOutcome.ABORTED:
            place.state = LaneState.FREE
            return None
        if result.sequence is None or result.sequence in self.incumbents():
            raise InvariantBroken(f"materialisation committed without a new sequence: {result}")
        assert choice is not None, "a materialising lane knows what was chosen for it"
        if result.reused_tokens != choice.reuse.frontier or result.reused_tokens >= record.prompt_tokens:
            raise InvariantBroken(
                f"{result.reused_tokens} of {record.prompt_tokens} prompt tokens reused, not {choice.reuse.frontier}"
            )
        place.state, place.sequence = LaneState.ACTIVE, result.sequence
        record.reused_tokens, record.reuse = result.reused_tokens, choice.reuse
        self._cache.materialised(record, choice)
        return result.sequence

    # --- checkpoints of an active sequence ---

    def begin_capture(self, record: RequestRecord) -> RunningTransaction | None:
        """Start publishing the checkpoint that is due; None if it is not worth it. Raises StalePlan without effect."""
        sequence = self._sequence(record, LaneState.ACTIVE)
        victims = self._cache.capture_victims(record, sequence)
        if victims is None:
            self._cache.captured(record, None)
            return None
        return self._program.start(self._program.seal_capture(sequence, victims))

    def adopt_capture(self, record: RequestRecord, result: ResourceResult) -> None:
        """Adopt the complete result; after an abort there may be no checkpoint."""
        self._cache.adopt_losses(result)
        if (result.published is None) != (result.outcome is ResourceOutcome.ABORTED):
            raise InvariantBroken(f"a capture must publish exactly if it commits: {result}")
        self._cache.captured(record, result.published)

    # --- the end of an active sequence ---

    def stop(self, lane: int) -> None:
        """The lane's request executes no more; its resources stay its own until they are settled."""
        place = self._lanes[lane]
        assert place.state is LaneState.ACTIVE, f"lane {lane} is {place.state}"
        place.state = LaneState.TERMINAL_PENDING

    def begin_terminal(self, record: RequestRecord) -> RunningTransaction:
        """Start settling a stopped request: keep its continuation, or release it. Raises StalePlan without effect."""
        sequence = self._sequence(record, LaneState.TERMINAL_PENDING)
        victims = self._cache.retain_victims(record, sequence)
        choice = TerminalChoice.RELEASE if victims is None else TerminalChoice.RETAIN
        transaction = self._program.start(self._program.seal_terminal(sequence, choice, victims or ()))
        self._place(record, LaneState.TERMINAL_PENDING).retains = victims is not None
        return transaction

    def adopt_terminal(self, record: RequestRecord, result: ResourceResult) -> None:
        """Adopt the complete result; the lane is free again."""
        place = self._place(record, LaneState.TERMINAL_PENDING)
        if result.outcome is not ResourceOutcome.COMMITTED or (result.published is not None and not place.retains):
            raise InvariantBroken(f"the end of a sequence must commit, and publish only what is retained: {result}")
        self._cache.adopt_losses(result)
        if result.published is not None:
            self._cache.retained(record, result.published)
        place.state, place.sequence, place.retains = LaneState.FREE, None, False

    def clear(self) -> None:
        """Forget every lane and checkpoint (Engine failure; Program has released everything)."""
        self._lanes = [Lane() for _ in self._lanes]
        self._cache.clear()

    def _sequence(self, record: RequestRecord, state: LaneState) -> SequenceHandle:
        sequence = self._place(record, state).sequence
        assert sequence is not None, "an active lane owns its sequence"
        return sequence

    def _place(self, record: RequestRecord, state: LaneState) -> Lane:
        assert record.lane is not None, "a transition belongs to a lane"
        place = self._lanes[record.lane]
        assert place.state is state, f"lane {record.lane} is {place.state}"
        return place
