"""Time that a run may take, and what was left out for want of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Budget:
    """Counts from its making."""

    seconds: float
    left_out: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def allows(self, what: str, share: float = 1.0) -> bool:
        """Whether less than `share` of the time is used; else `what` is noted as left out."""
        if self.used < share * self.seconds:
            return True
        self.left_out.append(what)
        return False

    @property
    def used(self) -> float:
        return time.monotonic() - self.started
