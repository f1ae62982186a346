"""Plans and transactions that change who owns what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ninfer.runtime.core.program import (
    MaterialisationTarget,
    ResourceOutcome,
    ResourceResult,
    SequenceHandle,
)


@dataclass(frozen=True, slots=True)
class MaterialisePlan:
    """Bring a waiting request to life. Implements ResourcePlan."""

    revision: int
    target: MaterialisationTarget


@dataclass(frozen=True, slots=True)
class TerminalPlan:
    """End an active sequence. Implements ResourcePlan."""

    revision: int
    sequence: SequenceHandle


class Transaction:
    """An open resource transaction of one stage. Implements RunningTransaction.

    `transition` does all of it at once, so that before it nothing has happened and after it everything has.
    """

    def __init__(self, transition: Callable[[], ResourceResult], closed: Callable[[], None]) -> None:
        self._transition = transition
        self._closed = closed
        self._result: ResourceResult | None = None

    def advance(self) -> bool:
        assert self._result is None, "the transaction is already complete"
        self._result = self._transition()
        return True

    def abort(self) -> ResourceResult:
        result = self._result or ResourceResult(ResourceOutcome.ABORTED)
        self._closed()
        return result

    def result(self) -> ResourceResult:
        assert self._result is not None, "the transaction is not complete"
        self._closed()
        return self._result
