"""Plans and staged transactions that change who owns what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ninfer.runtime.core.program import (
    Degradation,
    MaterialisationTarget,
    ResourceOutcome,
    ResourceResult,
    SequenceHandle,
    TerminalChoice,
    Victim,
)


@dataclass(frozen=True, slots=True)
class MaterialisePlan:
    """Bring a waiting request to life. Implements ResourcePlan."""

    revision: int
    target: MaterialisationTarget

    @property
    def victims(self) -> tuple[Victim, ...]:
        return self.target.victims


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """Publish a checkpoint of an active sequence, which goes on. Implements ResourcePlan."""

    revision: int
    sequence: SequenceHandle
    victims: tuple[Victim, ...]


@dataclass(frozen=True, slots=True)
class TerminalPlan:
    """End an active sequence, keeping a checkpoint of it or not. Implements ResourcePlan."""

    revision: int
    sequence: SequenceHandle
    choice: TerminalChoice
    victims: tuple[Victim, ...]


@dataclass(frozen=True, slots=True)
class ReclaimPlan:
    """Degrade inactive checkpoints, nothing else. Implements ResourcePlan."""

    revision: int
    victims: tuple[Victim, ...]


Plan = MaterialisePlan | CapturePlan | TerminalPlan | ReclaimPlan

Stage = Callable[[ResourceResult], ResourceResult]
"""Does one physical step and returns the result with that step added."""


class Transaction:
    """An open resource transaction. Implements RunningTransaction.

    Its stages run one per `advance`. What a finished stage did to inactive checkpoints stays done when the transaction
    is aborted: it was a safe degradation, and the result tells of it.
    """

    def __init__(self, stages: list[Stage], closed: Callable[[], None]) -> None:
        self._stages = stages
        self._closed = closed
        self._result = ResourceResult(ResourceOutcome.ABORTED)

    def advance(self) -> bool:
        assert self._stages, "the transaction is already complete"
        self._result = self._stages[0](self._result)
        self._stages.pop(0)
        if self._stages:
            return False
        self._result = replace(self._result, outcome=ResourceOutcome.COMMITTED)
        return True

    def abort(self) -> ResourceResult:
        """A complete transaction can no longer be undone: its committed result is to be adopted."""
        self._stages.clear()
        self._closed()
        return self._result

    def result(self) -> ResourceResult:
        assert not self._stages, "the transaction is not complete"
        self._closed()
        return self._result


def degraded(result: ResourceResult, victims: tuple[Victim, ...]) -> ResourceResult:
    """The result with these degradations carried out."""
    removed = tuple(victim.checkpoint for victim in victims if victim.degradation is Degradation.DELETE)
    return replace(result, degraded=(*result.degraded, *victims), removed=(*result.removed, *removed))
