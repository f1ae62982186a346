"""One thing to time, and what it must read and compute at least."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ninfer.kernels.placement import HOST, Placement
from ninfer.kernels.segments import Segments
from ops.geometry import Geometry

MOST_ROWS = 8
MOST_COPIES = 640
"""Of one operand: enough that the smallest matrices of the official models together fill no cache."""


@dataclass(frozen=True, slots=True)
class Work:
    """One op at one shape.

    Attributes:
        calls: the same op on memory of its own each, run in turns: enough of it that no cache holds all.
        nbytes: what one call has to read and write in memory.
        flops: additions and multiplications of one call.
        launches_only: whether a call launches kernels and does nothing else, so that it can be recorded.
    """

    op: str
    shape: str
    calls: tuple[Callable[[], None], ...]
    nbytes: int
    flops: int = 0
    launches_only: bool = True


@dataclass(frozen=True, slots=True)
class Setting:
    """What works are made for.

    Attributes:
        geometry: of the model.
        tokens: how many. Up to `MOST_ROWS` they are rows of one token each, as in decoding; more are one prompt.
        formats: of weights, in lower case; one may end in `-a8`: activations may be quantised.
        placement: where tensors live. Works are made with torch's default device set to the same.
        cold_bytes: copies of an operand take so many bytes together that no cache holds them.
    """

    geometry: Geometry
    tokens: Sequence[int]
    formats: Sequence[str]
    placement: Placement = HOST
    cold_bytes: int = 96 << 20

    def segments(self, count: int, depth: int = 0) -> Segments:
        """Rows of one token each, or one prompt, after `depth` tokens."""
        if count <= MOST_ROWS:
            return Segments((1,) * count, (depth,) * count)
        return Segments((count,), (depth,))
