"""Which routes serve a gated delta-net recurrence, best first, and which CUDA kernels run over which rows.

Floors on CUDA for a row of T tokens, per value head: 8 dv dk bytes of state, read and written once, and 4 (2 dk + 2 dv)
bytes per token; 6 dv dk operations per token. So a token of decoding costs what its state costs: 6.3 MB per layer of
48 heads of 128 x 128, 2 us at 3.3 TB/s. The chunked form has, per 64 tokens and head, 2 * 64 (3 dk dv + 64 (1.5 dk +
1.5 dv)) operations of mathematics, 9.4 million for 128 x 128, of which tensor cores do all but the triangular system's,
three times each (operands are split); its records, 144 KB, are written once and read dv / 64 times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ninfer.kernels.routes import COMPILED_OR_TORCH, Problem, Route

CHUNK = 64
"""Tokens of a chunk. A row of fewer goes token by token: it would pay for a whole chunk, and its bits stay those of
decoding, which verification of drafts relies on."""
MOST_ROWS = 8
"""Rows of one wave."""
_WAVE_RECORDS = 192
"""Chunks of all rows and heads of a wave: two blocks of preparation for each multiprocessor of a big GPU, and 28 MB of
records, which its second-level cache keeps until they are read."""
_TILE_BYTES = 512
_SLAB = 16
_MOST_KEYS = 128
"""The state of a slab has to fit in a warp's registers."""


@dataclass(frozen=True, slots=True)
class Wave:
    """One launch of each chunk kernel.

    Attributes:
        rows: of the call, at most MOST_ROWS.
        first: the first chunk of each row; a row without it takes no part.
        chunks: of each row.
    """

    rows: tuple[int, ...]
    first: int
    chunks: int


@dataclass(frozen=True, slots=True)
class CudaPlan:
    """What runs, in this order.

    Attributes:
        most: rows of at most so many tokens go token by token, in one launch.
        stepped: whether there are any.
        waves: over all other rows.
    """

    most: int
    stepped: bool
    waves: tuple[Wave, ...]


def plan(problem: Problem) -> tuple[Route, ...]:
    """The routes for `problem`, best first."""
    return COMPILED_OR_TORCH[problem]


def cuda_plan(counts: Sequence[int], heads: int, dk: int, dv: int, shared_bytes: int) -> CudaPlan:
    """Which kernels run over rows of `counts` tokens. A row's kernels depend on no other row.

    Args:
        heads: value heads.
        shared_bytes: the most shared memory that a block may have.
    """
    chunked = has_chunks(dk, dv) and max(prepare_bytes(dk, dv), advance_bytes(dk, 4)) <= shared_bytes
    most = CHUNK - 1 if chunked else max(counts, default=0)
    rows = tuple(row for row, count in enumerate(counts) if count > most)
    return CudaPlan(most, len(rows) < len(counts), tuple(_waves(rows, counts, heads)))


def _waves(rows: tuple[int, ...], counts: Sequence[int], heads: int) -> Iterator[Wave]:
    most = max(1, _WAVE_RECORDS // heads)
    together = min(MOST_ROWS, most)
    for begin in range(0, len(rows), together):
        group = rows[begin : begin + together]
        chunks = -(-max(counts[row] for row in group) // CHUNK)
        size = min(most // len(group), chunks)
        for first in range(0, chunks, size):
            yield Wave(group, first, size)


def has_chunks(dk: int, dv: int) -> bool:
    """Whether the chunk kernels serve heads of this shape: whole tiles, and a slab that fits in registers."""
    return dk % 16 == 0 and dv % _SLAB == 0 and dk <= _MOST_KEYS


def slab_warps(dv: int, heads: int, multiprocessors: int) -> int:
    """Slabs of a state of dv rows that share a block, each one warp's: no more than blocks for all need, four at most.

    The warps of a block share one fetch of the records, and one multiprocessor's shared memory, which is what limits
    them. Bits do not depend on it.

    Args:
        heads: of all rows together.
    """
    slabs = dv // _SLAB
    dividing = [warps for warps in (1, 2, 4) if slabs % warps == 0]
    return next((warps for warps in dividing if slabs // warps * heads <= multiprocessors), dividing[-1])


def record_bytes(dk: int, dv: int) -> int:
    """What gdn_prepare leaves about one chunk of one head; see chunks.cuh."""
    tiles = dk // 16 * 2 * (CHUNK // 8) + CHUNK // 16 * (CHUNK // 8 + dk // 8) + dv // _SLAB * (CHUNK // 8)
    return tiles * _TILE_BYTES + 4 * (2 * CHUNK + 32)


def prepare_bytes(dk: int, dv: int) -> int:
    """Shared memory of gdn_prepare: padded keys and values, the triangle in blocks of 16, and numbers per token."""
    return 4 * (CHUNK * (dk + 4 + dv + 4) + 16 * 16 * (1 + 2 + 3 + 4) + 5 * CHUNK)


def advance_bytes(dk: int, warps: int) -> int:
    """Shared memory of gdn_advance: four stages of the larger kind of piece, and the slabs of values of its warps."""
    return (4 * (CHUNK // 8 + max(CHUNK // 8, dk // 8)) + warps * (CHUNK // 8)) * _TILE_BYTES
