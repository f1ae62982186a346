"""The shared pool of key/value pages and one sequence's window on it.

A page holds 64 tokens in every attention layer at once. An active sequence owns the pages that it has filled and a reservation
for all that it may still need, so that it can always finish. `allocated + reserved + available == capacity` always.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ninfer.runtime.core.program import AxisOccupancy

PAGE_TOKENS = 64


def pages_for(tokens: int) -> int:
    """Pages that hold this many tokens."""
    return -(-tokens // PAGE_TOKENS)


class PagePool:
    """Which physical pages are allocated, and how many more are promised."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._free = list(range(capacity - 1, -1, -1))
        self._reserved = 0

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def available(self) -> int:
        """Pages neither allocated nor promised."""
        return len(self._free) - self._reserved

    def reserve(self, pages: int) -> None:
        """Promise pages; the caller has checked `available`."""
        assert 0 <= pages <= self.available, "reservation beyond what is available"
        self._reserved += pages

    def take_reserved(self) -> int:
        """Turn one promised page into an allocated one and return its id."""
        assert self._reserved > 0, "no page was promised"
        self._reserved -= 1
        return self._free.pop()

    def give_back(self, pages: list[int], reserved: int) -> None:
        """Return allocated pages and an unused reservation."""
        assert 0 <= reserved <= self._reserved, "returns more than was reserved"
        self._reserved -= reserved
        self._free.extend(reversed(pages))
        assert len(self._free) <= self._capacity, "a page was returned twice"

    def occupancy(self) -> AxisOccupancy:
        """The pool as one resource axis."""
        allocated = self._capacity - len(self._free)
        return AxisOccupancy("kv_pages", self._capacity, allocated, self._reserved, self.available)


@dataclass(slots=True)
class AddressSpace:
    """One sequence's pages: `pages[i]` holds positions [64 i, 64 i + 64); `frontier` tokens are committed."""

    pool: PagePool
    reservation: int
    pages: list[int] = field(default_factory=list)
    frontier: int = 0

    @staticmethod
    def reserve(pool: PagePool, tokens: int) -> AddressSpace:
        """An empty address space that is promised room for `tokens` tokens."""
        pages = pages_for(tokens)
        pool.reserve(pages)
        return AddressSpace(pool, pages)

    @property
    def held_pages(self) -> int:
        """Pages allocated or promised to this sequence."""
        return len(self.pages) + self.reservation

    def grow(self, tokens: int) -> None:
        """Allocate, from the reservation, every page that positions below `tokens` need."""
        while len(self.pages) * PAGE_TOKENS < tokens:
            assert self.reservation > 0, "growth beyond the reservation"
            self.reservation -= 1
            self.pages.append(self.pool.take_reserved())

    def slot(self, position: int) -> int:
        """Where the token at `position` goes: page * 64 + offset."""
        return self.pages[position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS

    def release(self) -> None:
        """Give everything back."""
        self.pool.give_back(self.pages, self.reservation)
        self.pages, self.reservation, self.frontier = [], 0, 0
