"""Could a complete target be reached from the real occupancy? Counting only; nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ninfer.runtime.program.checkpoints import Checkpoint
from ninfer.runtime.program.host_arena import Extent, HostArena
from ninfer.runtime.program.pages import LogicalPage


@dataclass(frozen=True, slots=True)
class Freed:
    """What carrying out some degradations gives back, and what it needs of the host first."""

    device_pages: frozenset[LogicalPage]
    device_images: int
    host_images: int
    stored_pages: tuple[LogicalPage, ...]
    stored_images: int
    host_extents: tuple[Extent, ...]


def freed(deleted: Iterable[Checkpoint], host_only: Iterable[Checkpoint]) -> Freed:
    """The combined effect: a page is free when every holder goes; it leaves the device when every holder does.

    Ordered stages: deletions first (they free host memory), then the stores of host-only victims.
    """
    gone, leaving = tuple(deleted), tuple(host_only)
    holders: set[object] = {*gone, *leaving}
    pages = dict.fromkeys(page for checkpoint in (*gone, *leaving) for page in checkpoint.pages.pages)
    lost = [page for page in pages if page.holders.keys() <= set(gone)]
    moved = [page for page in pages if page.holders.keys() <= holders and not page.holders.keys() <= set(gone)]
    return Freed(
        device_pages=frozenset(page for page in (*lost, *moved) if page.device is not None),
        device_images=sum(checkpoint.device_image is not None for checkpoint in (*gone, *leaving)),
        host_images=sum(checkpoint.host_image is not None for checkpoint in gone),
        stored_pages=tuple(page for page in moved if page.device is not None and not page.host_covers(page.columns)),
        stored_images=sum(checkpoint.host_image is None for checkpoint in leaving),
        host_extents=tuple(page.host.extent for page in lost if page.host is not None),
    )


def host_takes(arena: HostArena, freed_: Freed, page_bytes: int) -> bool:
    """True if the arena, after the deletions, has a place for the stored pages as one extent."""
    size = len(freed_.stored_pages) * page_bytes
    return size == 0 or arena.fits((size,), freed_.host_extents)
