"""State slots: each row of a call starts from one slot of a store and leaves its result in another."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field

import torch

ZERO = -1
"""As a source: the row starts from zeros."""


@dataclass(frozen=True, slots=True)
class StateSlots:
    """Where the rows of a call read and write their state.

    Attributes:
        sources: one slot per row, or `ZERO`; rows may share one.
        targets: one slot per row, all different. A row's target may be its own source, never another row's.
        data: i32[2, B], sources and targets: what compiled kernels read, at the time they run, where they run. Whoever
            runs a recording again writes the new slots here; the tuples stay as they were recorded.

    Raises:
        ValueError: lengths differ, a slot is negative where it may not be, or a target is used twice or by another row.
    """

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    data: torch.Tensor = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.targets):
            raise ValueError(f"slots: {len(self.sources)} sources but {len(self.targets)} targets")
        if any(slot < ZERO for slot in self.sources) or any(slot < 0 for slot in self.targets):
            raise ValueError(f"slots: sources must be >= {ZERO} and targets >= 0: {self.sources}, {self.targets}")
        if len(set(self.targets)) != len(self.targets):
            raise ValueError(f"slots: targets must be distinct, got {list(self.targets)}")
        for row, target in enumerate(self.targets):
            if target in self.sources[:row] + self.sources[row + 1 :]:
                raise ValueError(f"slots: target {target} of row {row} is another row's source")
        object.__setattr__(self, "data", torch.tensor((self.sources, self.targets), dtype=torch.int32))

    def reading(self, data: torch.Tensor) -> StateSlots:
        """The same slots, for kernels that read them from `data`, i32[2, B], into which the caller puts them."""
        moved = copy(self)
        object.__setattr__(moved, "data", data)
        return moved


def check_slots(op: str, slots: int, batch: int, chosen: StateSlots) -> None:
    """Require one pair of slots below `slots` per row.

    Raises:
        ValueError: naming the op.
    """
    if len(chosen.targets) != batch:
        raise ValueError(f"{op}: slots must have one pair per row ({batch}), got {len(chosen.targets)}")
    if any(slot >= slots for slot in chosen.sources + chosen.targets):
        raise ValueError(f"{op}: slots must lie below {slots}, got {list(chosen.sources)} and {list(chosen.targets)}")


def take_starts(store: torch.Tensor, chosen: StateSlots) -> None:
    """Bring each row's start into its target slot: store[targets[b]] = store[sources[b]], or zeros for ZERO."""
    for source, target in zip(chosen.sources, chosen.targets, strict=True):
        if source == ZERO:
            store[target].zero_()
        elif source != target:
            store[target].copy_(store[source])
