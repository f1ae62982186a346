"""Logical pages of keys and values, the device pool behind them, and one sequence's window on them.

A logical page holds 64 token columns in every attention layer at once. It may have a device replica (a page of the
pools) and a host replica (packed bytes in the arena). Committed columns never change, so that a page may be shared by
any number of holders; at most one address space, its writer, appends columns beyond them.

`allocated + reserved + available == capacity` holds for the device pool at every boundary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ninfer.runtime.core.program import AxisOccupancy
from ninfer.runtime.program.host_arena import Extent

PAGE_TOKENS = 64


def pages_for(tokens: int) -> int:
    """Pages that hold this many tokens."""
    return -(-tokens // PAGE_TOKENS)


@dataclass(frozen=True, slots=True)
class HostReplica:
    """Packed bytes of a page in the host arena: valid for `columns` columns of content `epoch`."""

    extent: Extent
    epoch: int
    columns: int


@dataclass(slots=True, eq=False)
class LogicalPage:
    """64 columns of content and where they are.

    `holders` are the address spaces and checkpoints that need the page, each with the columns it needs; the page dies
    with the last one. `epoch` counts rewrites of columns that once were committed: a replica of another epoch is void.
    """

    device: int | None
    epoch: int = 0
    host: HostReplica | None = None
    holders: dict[object, int] = field(default_factory=dict)
    writer: AddressSpace | None = None

    @property
    def columns(self) -> int:
        """Committed columns: those that somebody needs."""
        return max(self.holders.values())

    def host_covers(self, columns: int) -> bool:
        """True if the host replica holds the first `columns` columns as they are now."""
        return self.host is not None and self.host.epoch == self.epoch and self.host.columns >= columns

    def extendable(self, columns: int) -> bool:
        """True if a new writer may append right after `columns` without disturbing any holder."""
        return self.writer is None and self.columns == columns

    def extend(self, writer: AddressSpace, columns: int) -> None:
        """Let `writer` append after `columns`. What a replica holds beyond them will be rewritten, which voids it."""
        assert self.extendable(columns), "one writer, and only behind what is committed"
        self.writer = writer
        if self.host is not None and self.host.columns > columns:
            self.epoch += 1


class PagePool:
    """Which device pages are allocated, and how many more are promised."""

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

    def unreserve(self, pages: int) -> None:
        """Take back a promise."""
        assert 0 <= pages <= self._reserved, "more than was reserved"
        self._reserved -= pages

    def take(self) -> int:
        """Turn one promised page into an allocated one and return its id."""
        self.unreserve(1)
        return self._free.pop()

    def give_back(self, page: int) -> None:
        """Return an allocated page."""
        self._free.append(page)
        assert len(self._free) <= self._capacity, "a page was returned twice"

    def occupancy(self) -> AxisOccupancy:
        """The pool as one resource axis."""
        allocated = self._capacity - len(self._free)
        return AxisOccupancy("kv_pages", self._capacity, allocated, self._reserved, self.available)


@dataclass(frozen=True, slots=True)
class FrozenPages:
    """The pages of one checkpoint: the first `frontier` tokens' keys and values, never to change."""

    pages: tuple[LogicalPage, ...] = ()
    frontier: int = 0

    def columns(self, index: int) -> int:
        """Columns that page `index` contributes."""
        return min(PAGE_TOKENS, self.frontier - index * PAGE_TOKENS)

    @property
    def full(self) -> tuple[LogicalPage, ...]:
        """Pages whose 64 columns all belong to the checkpoint."""
        return self.pages[: self.frontier // PAGE_TOKENS]

    @property
    def tail(self) -> LogicalPage | None:
        """The page that is only partly the checkpoint's, if its frontier is no multiple of 64."""
        return self.pages[-1] if self.frontier % PAGE_TOKENS else None

    def missing(self) -> Iterator[tuple[LogicalPage, int]]:
        """Pages without a device replica, and the columns needed of them."""
        return ((page, self.columns(i)) for i, page in enumerate(self.pages) if page.device is None)


class PageStore:
    """All logical pages of one Program: who holds them, and which device page each one uses."""

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool

    def create(self, holder: AddressSpace) -> LogicalPage:
        """A new empty page out of a reservation, written by `holder`."""
        return LogicalPage(self.pool.take(), holders={holder: 0}, writer=holder)

    def drop(self, pages: Iterable[LogicalPage], holder: object) -> list[Extent]:
        """`holder` needs these pages no more. Returns the host extents of pages that died."""
        extents = []
        for page in pages:
            del page.holders[holder]
            if page.writer is holder:
                page.writer = None
            if not page.holders:
                extents.extend(self._die(page))
        return extents

    def _die(self, page: LogicalPage) -> list[Extent]:
        if page.device is not None:
            self.pool.give_back(page.device)
        extents = [page.host.extent] if page.host is not None else []
        page.device, page.host = None, None
        return extents


@dataclass(slots=True, eq=False)
class AddressSpace:
    """One sequence's pages: `pages[i]` holds positions [64 i, 64 i + 64); `frontier` tokens are committed."""

    store: PageStore
    reservation: int
    pages: list[LogicalPage] = field(default_factory=list)
    frontier: int = 0

    @staticmethod
    def reserve(store: PageStore, tokens: int) -> AddressSpace:
        """An empty address space that is promised room for `tokens` tokens."""
        pages = pages_for(tokens)
        store.pool.reserve(pages)
        return AddressSpace(store, pages)

    @staticmethod
    def attach(store: PageStore, source: FrozenPages, tokens: int) -> tuple[AddressSpace, LogicalPage | None]:
        """Continue after a checkpoint whose pages are all on the device, with room for `tokens` tokens in all.

        Full pages are shared. The partial tail is extended in place if nobody is disturbed; otherwise the second value
        is the tail to be copied into the new space's own last page (copy on write).
        """
        tail, columns = source.tail, source.frontier % PAGE_TOKENS
        extended = tail is not None and tail.extendable(columns)
        space = AddressSpace.reserve(store, tokens - (len(source.full) + extended) * PAGE_TOKENS)
        for page in source.full:
            page.holders[space] = PAGE_TOKENS
        space.pages, space.frontier = list(source.full), source.frontier
        if tail is None:
            return space, None
        if extended:
            tail.extend(space, columns)
            space.pages.append(tail)
        else:
            space.grow(source.frontier)
        space.pages[-1].holders[space] = columns
        return space, None if space.pages[-1] is tail else tail

    @property
    def exclusive_pages(self) -> int:
        """Device pages that come free, or lose their promise, when this space alone is released."""
        return self.reservation + sum(1 for page in self.pages if page.holders.keys() == {self})

    def grow(self, tokens: int) -> None:
        """Allocate, from the reservation, every page that positions below `tokens` need."""
        while len(self.pages) * PAGE_TOKENS < tokens:
            assert self.reservation > 0, "growth beyond the reservation"
            self.reservation -= 1
            self.pages.append(self.store.create(self))

    def slot(self, position: int) -> int:
        """Where the token at `position` goes in the pools: page * 64 + offset."""
        device = self.pages[position // PAGE_TOKENS].device
        assert device is not None, "an active sequence's pages are on the device"
        return device * PAGE_TOKENS + position % PAGE_TOKENS

    def table(self, begin: int = 0) -> list[int]:
        """Device page ids in order of position, from page `begin` on."""
        return [-1 if page.device is None else page.device for page in self.pages[begin:]]

    def advance(self, frontier: int) -> None:
        """Commit every column below `frontier`."""
        for index in range(self.frontier // PAGE_TOKENS, pages_for(frontier)):
            page = self.pages[index]
            assert page.writer is self, "only the writer commits columns"
            page.holders[self] = min(PAGE_TOKENS, frontier - index * PAGE_TOKENS)
        self.frontier = frontier

    def freeze(self, holder: object) -> FrozenPages:
        """What is committed, held by `holder` from now on."""
        frozen = FrozenPages(tuple(self.pages[: pages_for(self.frontier)]), self.frontier)
        for index, page in enumerate(frozen.pages):
            page.holders[holder] = frozen.columns(index)
        return frozen

    def release(self) -> list[Extent]:
        """Give everything back. Returns the host extents of pages that died."""
        self.store.pool.unreserve(self.reservation)
        extents = self.store.drop(self.pages, self)
        self.pages, self.reservation, self.frontier = [], 0, 0
        return extents
