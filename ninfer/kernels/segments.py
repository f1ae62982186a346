"""How the query tokens of one call divide into rows (sequences)."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field
from itertools import accumulate

import torch


@dataclass(frozen=True, slots=True)
class Segments:
    """Query tokens of B rows, laid one row after another along the token axis.

    One description serves prefill (one row, many tokens), decode (many rows, one token each) and mixes.

    Attributes:
        counts: query tokens per row, each positive.
        starts: absolute position, in its own sequence, of each row's first query token.
        offsets: B + 1 token indices; row b owns tokens `[offsets[b], offsets[b + 1])`.
        total: T, the tokens of all rows.
        data: i32[3, B], the rows' first token indices, counts and starts: what compiled kernels read, at the time they
            run, where they run. Whoever runs a recording again writes the new starts here; `starts` stays as it was
            recorded.

    Raises:
        ValueError: lengths differ, a count is not positive or a start is negative.
    """

    counts: tuple[int, ...]
    starts: tuple[int, ...]
    offsets: tuple[int, ...] = field(init=False, compare=False)
    total: int = field(init=False, compare=False)
    data: torch.Tensor = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.starts):
            raise ValueError(f"segments: {len(self.counts)} counts but {len(self.starts)} starts")
        if any(count <= 0 for count in self.counts) or any(start < 0 for start in self.starts):
            raise ValueError(f"segments: counts must be > 0 and starts >= 0: {self.counts}, {self.starts}")
        object.__setattr__(self, "offsets", (0, *accumulate(self.counts)))
        object.__setattr__(self, "total", self.offsets[-1])
        data = torch.tensor((self.offsets[:-1], self.counts, self.starts), dtype=torch.int32)
        object.__setattr__(self, "data", data)

    def reading(self, data: torch.Tensor) -> Segments:
        """The same division, for kernels that read it from `data`, i32[3, B], into which the caller puts it."""
        moved = copy(self)
        object.__setattr__(moved, "data", data)
        return moved

    @property
    def batch(self) -> int:
        """B, the number of rows."""
        return len(self.counts)
