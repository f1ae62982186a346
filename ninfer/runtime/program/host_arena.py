"""Bounded host memory for packed pages: contiguous extents with their real geometry.

A run of pages is packed into one extent, so that it moves in one transfer. Free bytes that lie in pieces may be too
small for a run: `fits` answers for the arena as it is, not for the sum of its free bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ninfer.runtime.core.program import AxisOccupancy


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes [begin, begin + size) of the arena."""

    begin: int
    size: int

    @property
    def end(self) -> int:
        return self.begin + self.size


class HostArena:
    """First-fit allocation of extents; a part of an extent may be freed on its own. Neighbouring free extents merge."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._free = [Extent(0, capacity)] if capacity else []

    @property
    def free_bytes(self) -> int:
        return sum(extent.size for extent in self._free)

    @property
    def free_extents(self) -> tuple[Extent, ...]:
        """Maximal free extents, by position."""
        return tuple(self._free)

    def fits(self, sizes: Iterable[int], freed: Iterable[Extent] = ()) -> bool:
        """True if extents of these sizes could be allocated in this order, after `freed` were given back."""
        trial = HostArena(0)
        trial._free = list(self._free)
        for extent in freed:
            trial.free(extent)
        return all(trial.allocate(size) is not None for size in sizes)

    def allocate(self, size: int) -> Extent | None:
        """The first free place of `size` bytes, or None if there is none."""
        for index, extent in enumerate(self._free):
            if extent.size >= size:
                rest = Extent(extent.begin + size, extent.size - size)
                self._free[index : index + 1] = [rest] if rest.size else []
                return Extent(extent.begin, size)
        return None

    def free(self, extent: Extent) -> None:
        """Give an extent, or a part of one, back."""
        index = next((i for i, other in enumerate(self._free) if other.begin > extent.begin), len(self._free))
        before, after = self._free[:index], self._free[index:]
        assert not before or before[-1].end <= extent.begin, "the extent is already free"
        assert not after or extent.end <= after[0].begin, "the extent is already free"
        if before and before[-1].end == extent.begin:
            previous = before.pop()
            extent = Extent(previous.begin, previous.size + extent.size)
        if after and extent.end == after[0].begin:
            extent = Extent(extent.begin, extent.size + after.pop(0).size)
        self._free = [*before, extent, *after]

    def occupancy(self) -> AxisOccupancy:
        """The arena as one resource axis, in bytes."""
        free = self.free_bytes
        return AxisOccupancy("host_kv_bytes", self._capacity, self._capacity - free, 0, free)
