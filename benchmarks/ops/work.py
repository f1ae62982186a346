"""One thing to time, and what it must read and compute at least."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """One op at one shape.

    Attributes:
        calls: the same op on memory of its own each, run in turns: enough of it that no cache holds all.
        nbytes: what one call has to read and write in memory.
        flops: fp32 additions and multiplications of one call.
    """

    op: str
    shape: str
    calls: tuple[Callable[[], None], ...]
    nbytes: int
    flops: int = 0
