"""Numbered slots: state images on the device and the host, and execution rows.

A unit reads a sequence's committed image and writes a provisional one; commit swaps the two, abort frees the
provisional one. So a failed or cancelled unit never needs undoing.
"""

from __future__ import annotations

from ninfer.runtime.core.program import AxisOccupancy


class SlotPool:
    """Which of `capacity` slots are taken."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._free = list(range(capacity - 1, -1, -1))

    @property
    def available(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """A free slot; its contents are undefined."""
        assert self._free, "no slot is free"
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        assert slot not in self._free, "a slot was returned twice"
        self._free.append(slot)

    def occupancy(self, name: str) -> AxisOccupancy:
        """The pool as one resource axis."""
        free = len(self._free)
        return AxisOccupancy(name, self._capacity, self._capacity - free, 0, free)
