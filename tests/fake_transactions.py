"""What ScriptedProgram hands out: plans, pending batches and transactions of several stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ninfer.runtime.core.program import (
    MaterialisationTarget,
    PendingRow,
    ResourceResult,
    SequenceHandle,
    TerminalChoice,
    Victim,
)

if TYPE_CHECKING:
    from tests.fakes import ScriptedProgram


@dataclass(frozen=True)
class FakePlan:
    """Exactly one of a target (materialisation), a sequence (capture or end) or neither (reclaim)."""

    revision: int
    victims: tuple[Victim, ...] = ()
    target: MaterialisationTarget | None = None
    sequence: SequenceHandle | None = None
    choice: TerminalChoice | None = None

    @property
    def ends(self) -> bool:
        """True for the end of a sequence."""
        return self.choice is not None


@dataclass(frozen=True)
class FakeBatch:
    serial: int
    rows: tuple[PendingRow, ...]


class FakeTransaction:
    """Takes `stages` advances; the first one degrades the victims, which stays done.

    `commits_at` advances suffice for the end state to be fixed: a later abort commits. The end of a sequence always
    does.
    """

    def __init__(self, program: ScriptedProgram, plan: FakePlan, stages: int, commits_at: int | None) -> None:
        self._program = program
        self._plan = plan
        self._left = stages
        self._commits_at = commits_at
        self._stages = stages
        self._degraded = False

    @property
    def sequence(self) -> SequenceHandle | None:
        """The active sequence that the transaction is about."""
        return self._plan.sequence

    def advance(self) -> bool:
        self._program.enter("advance")
        self._program.require(self._program.transaction is self, "advance of a closed transaction")
        self._program.require(self._left > 0, "advance of a complete transaction")
        if not self._degraded:
            self._program.begin(self._plan)
            self._degraded = True
        self._left -= 1
        return self._left == 0

    def abort(self) -> ResourceResult:
        self._program.enter("abort")
        self._program.require(self._program.transaction is self, "abort of a closed transaction")
        self._program.transaction = None
        done = self._stages - self._left
        if self._plan.ends or (self._commits_at is not None and done >= self._commits_at):
            if not self._degraded:
                self._program.begin(self._plan)
            return self._program.apply(self._plan)
        return self._program.undo(self._plan, self._degraded)

    def result(self) -> ResourceResult:
        self._program.enter("result")
        self._program.require(self._program.transaction is self, "result of a closed transaction")
        self._program.require(self._left == 0, "result of an incomplete transaction")
        self._program.transaction = None
        return self._program.apply(self._plan)
