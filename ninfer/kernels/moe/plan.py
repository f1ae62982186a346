"""Which routes serve the mixture-of-experts ops, best first; and how CUDA serves a call.

Floors of moe_experts on CUDA: a decode round reads the chosen experts' stored bytes once, at the bandwidth of memory,
of which the narrow kernel is built to reach what linear's reaches; a prefill has 6 T k H I operations.
"""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.kernels.jit import DeviceFacts
from ninfer.kernels.linear.plan import UNIT, segments
from ninfer.kernels.routes import COMPILED_OR_TORCH, Problem, Route

_WARP = 32
_TILE_ROWS = 16
_TILES = 2
_SUMS_BYTES = _TILES * _TILE_ROWS * 8 * 4  # of one segment
_LEAST_WARPS, _MOST_WARPS = 4, 8
_LARGE_SHARED = 160 * 1024
_NARROW_PLACES = 8
_WIDE_PLACES = (16, 32, 64)
_WIDE_ROWS = 128
WIDE_THREADS = 128


def plan(problem: Problem) -> tuple[Route, ...]:
    """The routes for `problem`, best first. Experts that are not kept as they are stored have no body."""
    return COMPILED_OR_TORCH[problem]


def held_per_lane(experts: int) -> int:
    """Logits that each lane of a routing warp keeps: a power of two, so that few kernels serve all models."""
    held = 1
    while held * _WARP < experts:
        held *= 2
    return held


@dataclass(frozen=True, slots=True)
class Grouping:
    """The slots of a call, grouped by expert.

    Attributes:
        slots: T * k.
        tile: most places of an item.
        items: no call has more of them.
    """

    slots: int
    tile: int
    items: int

    @property
    def is_wide(self) -> bool:
        """Whether items are tiles of expert_wide."""
        return self.tile > _NARROW_PLACES


def grouping(rows: int, top_k: int, experts: int) -> Grouping:
    """By numbers that a recording knows; which experts are chosen, only the kernels see.

    An item has room for what an expert gets if all get the same. Products have the same bits in all of them.
    """
    slots = rows * top_k
    wide = (tile for tile in _WIDE_PLACES if slots <= tile * experts)
    tile = _NARROW_PLACES if slots <= _NARROW_PLACES * experts else next(wide, _WIDE_PLACES[-1])
    active = min(experts, slots)
    return Grouping(slots, tile, (slots + (tile - 1) * active) // tile)


@dataclass(frozen=True, slots=True)
class WidePlan:
    """expert_wide: blocks of 128 rows, or 64 gate and 64 up rows, by the places of an item.

    Attributes:
        stages: units of rows and inputs in shared memory.
        shared: bytes of shared memory.
        blocks: that cover the rows of a product.
    """

    stages: int
    shared: int
    blocks: int


def wide_plan(rows: int, row_bytes: int, tile: int, paired: bool, facts: DeviceFacts) -> WidePlan:
    """For products [.., rows] of items of `tile` places.

    Args:
        row_bytes: the most stored bytes that 128 columns of a row take, of all formats.
    """
    stage = _WIDE_ROWS * row_bytes + tile * UNIT * 2
    stages = 3 if 3 * stage <= facts.shared_bytes else 2
    tile_rows = _WIDE_ROWS // 2 if paired else _WIDE_ROWS
    return WidePlan(stages, stages * stage, -(-rows // tile_rows))


@dataclass(frozen=True, slots=True)
class NarrowPlan:
    """expert_narrow: blocks of teams of warps; a team has 32 rows, or 16 gate and 16 up rows, and shares the segments.

    Attributes:
        team: warps of a team.
        teams: of a block.
        ring: bytes of weights that a warp aims to have on their way.
        shared: bytes of shared memory.
        blocks: that cover the rows of a product.
    """

    team: int
    teams: int
    ring: int
    shared: int
    blocks: int


def narrow_plan(rows: int, columns: int, row_bytes: int, paired: bool, facts: DeviceFacts) -> NarrowPlan:
    """For products [.., rows] of inputs [.., columns].

    Args:
        row_bytes: the most stored bytes that 128 columns of a row take, of all formats.
    """
    parts = segments(columns)
    team = min(parts, _MOST_WARPS)
    teams = max(1, _LEAST_WARPS // team)
    ring = 8192 if facts.shared_bytes >= _LARGE_SHARED else 4096
    per_warp = max(ring, 2 * _TILES * _TILE_ROWS * row_bytes)
    while teams * (parts * _SUMS_BYTES + team * per_warp) > facts.shared_bytes and teams * team > 1:
        teams, team = (teams - 1, team) if teams > 1 else (1, team - 1)
    shared = teams * (parts * _SUMS_BYTES + team * per_warp)
    tile_rows = teams * _TILE_ROWS * (1 if paired else _TILES)
    return NarrowPlan(team, teams, ring, shared, -(-rows // tile_rows))


def units(columns: int) -> int:
    """Pieces of K."""
    return -(-columns // UNIT)
