"""Wide rows on a GPU: columns in spans, one per warp, as `include/columns.cuh` divides them."""

from __future__ import annotations

SPAN = 256
WARPS = 8
"""Of a block that looks at spans."""
THREADS = 32 * WARPS


def spans_of(columns: int) -> int:
    """The spans of a row."""
    return -(-columns // SPAN)


def span_grid(rows: int, columns: int) -> tuple[int, int, int]:
    """Blocks of `THREADS` that give every span of every row a warp. Rows come first, because a grid's x has room."""
    return rows, -(-spans_of(columns) // WARPS), 1
