"""Which routes serve a linear, best first, looked at once, when its weight is prepared; and how CUDA serves a call.

What a CUDA call should reach is judged by its floor. Up to some 200 tokens that is to read the weight: N K bits / 8 at
the bandwidth of memory, of which `narrow` is built to reach 80 % where a weight has some 20 MB or more. Beyond, it is
2 T N K operations at the bf16 peak of the tensor cores. `wide` decodes in the threads that multiply, by mma.sync, which
alone reaches no more than some 60 % of the peak of sm_90 and sm_100; it is built to reach half of the peak elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ninfer.kernels.jit import DeviceFacts
from ninfer.kernels.routes import COMPILED_OR_TORCH, DeviceKind, Route
from ninfer.kernels.routes import Problem as Machine


class Problem(NamedTuple):
    """What decides about one weight.

    Attributes:
        body: the best body of the C++ source that would serve it; None where that cannot be compiled.
        onednn: whether torch was built with oneDNN.
        a8: whether its Uses permit 8-bit activations and all its formats have a kernel for them.
    """

    device: DeviceKind
    body: Route | None
    onednn: bool
    a8: bool


class Plan(NamedTuple):
    """A route, and whether it quantises the activations to 8 bits."""

    route: Route
    a8: bool = False

    @property
    def dense(self) -> bool:
        """Whether the route multiplies by decoded fp32 values instead of stored planes."""
        return self.route in _DENSE


_DENSE = (Route.CPU_ONEDNN, Route.CPU_TORCH)


def _plans(machine: Machine, onednn: bool, a8: bool) -> tuple[Plan, ...]:
    if machine.device is DeviceKind.CUDA:
        return (Plan(Route.CUDA),)
    compiled = (Plan(route, a8) for route in COMPILED_OR_TORCH[machine] if route not in _DENSE)
    return (*compiled, *(Plan(route) for route in _DENSE if onednn or route is not Route.CPU_ONEDNN))


_PLANS: Mapping[Problem, tuple[Plan, ...]] = MappingProxyType(
    {
        Problem(machine.device, machine.body, onednn, a8): _plans(machine, onednn, a8)
        for machine in COMPILED_OR_TORCH
        for onednn in (True, False)
        for a8 in (True, False)
    }
)


def plan(problem: Problem) -> tuple[Plan, ...]:
    """The routes for `problem`, best first."""
    return _PLANS[problem]


UNIT = 128
"""Columns that CUDA kernels take at a time."""
_SEGMENT_COLUMNS = 512
_LONGEST_SEGMENT = 4096
_MAX_WARPS = 8
_TILE_ROWS = 16
_LARGE_SHARED = 160 * 1024
_STAGED_X, _STAGED_X_SMALL = 40 * 1024, 12 * 1024  # bytes of x that leave room for two blocks
NARROW_TOKENS = 8
"""The most tokens that linear_narrow takes."""
WIDE_STAGES = 2
"""Units of rows and tokens that linear_wide has in shared memory."""
_WIDE_ROWS = 128


class CudaProblem(NamedTuple):
    """What decides about one launch.

    Attributes:
        rows: of all parts together.
        row_bytes: the most stored bytes that 128 columns of a row take, of all its formats.
        light: whether all parts are of one format without a plane of high bits, whose decoding takes few registers.
        paired: whether rows are gate rows with their up rows.
    """

    tokens: int
    rows: int
    columns: int
    row_bytes: int
    light: bool
    paired: bool
    facts: DeviceFacts


class NarrowPlan(NamedTuple):
    """linear_narrow: up to eight tokens.

    Attributes:
        tiles: of 16 rows, that a block has.
        warps: of a block; they share the segments of K.
        ring: bytes of weights that a warp aims to have on their way.
        staged: whether a block keeps all of x in shared memory.
        shared: bytes of shared memory.
    """

    tiles: int
    warps: int
    ring: int
    staged: bool
    shared: int

    def tile_rows(self, paired: bool) -> int:
        """Rows of an output that one block finishes."""
        return _TILE_ROWS if paired else _TILE_ROWS * self.tiles


class WidePlan(NamedTuple):
    """linear_wide: tiles of 128 rows by `tokens` tokens.

    Attributes:
        segmented: whether every segment of K has blocks of its own, and linear_merge adds them.
        shared: bytes of shared memory.
    """

    tokens: int
    segmented: bool
    shared: int

    @property
    def threads(self) -> int:
        return 256 if self.tokens == _WIDE_ROWS else 128

    def tile_rows(self, paired: bool) -> int:
        """Rows of an output that one block finishes."""
        return _WIDE_ROWS // 2 if paired else _WIDE_ROWS


def segments(columns: int) -> int:
    """Into how many sums K is split: by K alone, so that a product has the same bits in every kernel."""
    units = -(-columns // UNIT)
    return min(units, max(min(_MAX_WARPS, -(-columns // _SEGMENT_COLUMNS)), -(-columns // _LONGEST_SEGMENT)))


def cuda_plan(problem: CudaProblem) -> NarrowPlan | WidePlan:
    """Which kernel serves a launch, and in which shape."""
    return _narrow(problem) if problem.tokens <= NARROW_TOKENS else _wide(problem)


def _narrow(problem: CudaProblem) -> NarrowPlan:
    parts = segments(problem.columns)
    warps = min(parts, _MAX_WARPS)
    enough = problem.rows // (2 * _TILE_ROWS) * warps >= 16 * problem.facts.multiprocessors
    large = problem.facts.shared_bytes >= _LARGE_SHARED
    x_bytes = problem.tokens * -(-problem.columns // UNIT) * UNIT * 2
    staged = x_bytes <= (_STAGED_X if large else _STAGED_X_SMALL)
    tiles = 2 if problem.paired or (enough and (problem.light or not staged)) else 1
    ring = 8192 if large else 4096
    fixed = parts * tiles * _TILE_ROWS * 8 * 4 + staged * x_bytes
    per_warp = max(ring, 2 * tiles * _TILE_ROWS * problem.row_bytes)
    while warps > 1 and fixed + warps * per_warp > problem.facts.shared_bytes:
        warps -= 1
    return NarrowPlan(tiles, warps, ring, staged, fixed + warps * per_warp)


def _wide(problem: CudaProblem) -> WidePlan:
    tokens = next((count for count in (16, 32, 64) if problem.tokens <= count), 128)
    while tokens > 16 and _stages_bytes(problem, tokens) > problem.facts.shared_bytes:
        tokens //= 2
    blocks = -(-problem.rows // _WIDE_ROWS) * -(-problem.tokens // tokens)
    segmented = blocks < problem.facts.multiprocessors and segments(problem.columns) > 1
    return WidePlan(tokens, segmented, _stages_bytes(problem, tokens))


def _stages_bytes(problem: CudaProblem, tokens: int) -> int:
    return WIDE_STAGES * (_WIDE_ROWS * problem.row_bytes + tokens * UNIT * 2)
