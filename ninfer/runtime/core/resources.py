"""ResourceManager: logical lanes and cache policy. It chooses; Program decides what is possible and does it.

Today every request starts from root and every terminal sequence is released: there are no checkpoints to list or keep.
No physical quantity is mirrored here.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from ninfer.runtime.core.program import (
    Assessment,
    MaterialisationTarget,
    Program,
    Readiness,
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


@dataclass(frozen=True, slots=True)
class Choice:
    """The best complete target for one request, and what Program says of it."""

    target: MaterialisationTarget
    assessment: Assessment

    @property
    def adoptable(self) -> bool:
        """True if the target can be sealed now."""
        return self.assessment.readiness in (Readiness.READY, Readiness.NEEDS_TRANSFER)


class ResourceManager:
    """Lanes Free → Materialising → Active → TerminalPending → Free, one global resource transition at a time."""

    def __init__(self, program: Program) -> None:
        self._program = program
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
        target = MaterialisationTarget(record.demand)
        return Choice(target, self._program.assess(target))

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
        self._lanes[lane].state = LaneState.MATERIALISING
        return lane, transaction

    def adopt_materialisation(self, lane: int, result: ResourceResult) -> SequenceHandle | None:
        """Adopt the complete result: the sequence that became active, or None after an abort."""
        place = self._lanes[lane]
        assert place.state is LaneState.MATERIALISING, f"lane {lane} is {place.state}"
        if result.outcome is ResourceOutcome.ABORTED:
            place.state = LaneState.FREE
            return None
        if result.sequence is None or result.sequence in self.incumbents():
            raise InvariantBroken(f"materialisation committed without a new sequence: {result}")
        place.state, place.sequence = LaneState.ACTIVE, result.sequence
        return result.sequence

    # --- the end of an active sequence ---

    def stop(self, lane: int) -> None:
        """The lane's request executes no more; its resources stay its own until they are settled."""
        place = self._lanes[lane]
        assert place.state is LaneState.ACTIVE, f"lane {lane} is {place.state}"
        place.state = LaneState.TERMINAL_PENDING

    def begin_terminal(self, lane: int) -> RunningTransaction:
        """Start settling a stopped lane. Raises StalePlan without side effects."""
        place = self._lanes[lane]
        assert place.state is LaneState.TERMINAL_PENDING, f"lane {lane} is {place.state}"
        assert place.sequence is not None, "a stopped lane still owns its sequence"
        return self._program.start(self._program.seal_terminal(place.sequence, TerminalChoice.RELEASE))

    def adopt_terminal(self, lane: int, result: ResourceResult) -> None:
        """Adopt the complete result; the lane is free again."""
        if result.outcome is not ResourceOutcome.COMMITTED or result.published is not None:
            raise InvariantBroken(f"a release must commit and publish nothing: {result}")
        self._lanes[lane] = Lane()

    def clear(self) -> None:
        """Forget every lane (Engine failure; Program has released everything)."""
        self._lanes = [Lane() for _ in self._lanes]
