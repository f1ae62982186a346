"""linear with CUDA: stored planes go to tensor cores as they lie, several weights of one input in one launch.

Activations are rounded to bf16 inside, except for weights stored as fp32. Which kernel serves a call, `plan.cuda_plan`
says; all add the same products in the same order (tile.cuh), so a token's bits depend on nothing but its own row.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from ninfer.artifact.formats import Format
from ninfer.errors import ConfigError
from ninfer.kernels.jit import CudaSource, Launch, device, workspace
from ninfer.kernels.linear.compiled_cpu import FORMAT_CODES, Part, part_of, stored_bytes
from ninfer.kernels.linear.hadamard import BLOCK as HADAMARD_BLOCK
from ninfer.kernels.linear.plan import (
    NARROW_TOKENS,
    UNIT,
    WIDE_STAGES,
    CudaProblem,
    NarrowPlan,
    WidePlan,
    cuda_plan,
    segments,
)

if TYPE_CHECKING:
    from ninfer.kernels.weights import LinearWeight, WeightView

MAX_OUTPUTS = 24
_FP32 = FORMAT_CODES[Format.FP32]
_FP32_ROWS, _FP32_TOKENS = 4, 8
_NVFP4_ROWS = 128
_ALIGNMENT = 16


class Output(ctypes.Structure):
    """The product with one part, and where it goes; see args.cuh."""

    _fields_ = (
        ("part", Part),
        ("out", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("first_tile", ctypes.c_int32),
        ("first_row", ctypes.c_int32),
        ("out_stride", ctypes.c_int64),
    )


class LinearArgs(ctypes.Structure):
    """All products of one launch; see args.cuh."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("octets", ctypes.c_void_p),
        ("partial", ctypes.c_void_p),
        ("tokens", ctypes.c_int32),
        ("columns", ctypes.c_int32),
        ("units", ctypes.c_int32),
        ("segments", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("paired", ctypes.c_int32),
        ("vector", ctypes.c_int32),
        ("outputs", Output * MAX_OUTPUTS),
    )


class OctetArgs(ctypes.Structure):
    """See activations.cu."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("octets", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
        ("columns", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("vector", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


class HadamardArgs(ctypes.Structure):
    """See activations.cu."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("signs", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("columns", ctypes.c_int64),
    )


def _source(name: str, **kernels: type[ctypes.Structure]) -> CudaSource:
    return CudaSource(Path(__file__).with_name(name), kernels)


NARROW = _source("narrow.cu", linear_narrow=LinearArgs)
WIDE = _source("wide.cu", linear_wide=LinearArgs)
MERGE = _source("merge.cu", linear_merge=LinearArgs)
FP32 = _source("fp32.cu", linear_fp32=LinearArgs)
ACTIVATIONS = _source("activations.cu", to_octets=OctetArgs, hadamard=HadamardArgs)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceMatrix:
    """A weight as it is stored, in device memory.

    Attributes:
        parts: its parts, one after another.
        pairs: the same rows as gate rows and up rows side by side, both of one format; None where that cannot be.
        nbytes: stored bytes of its rows.
        data: the tensors whose memory the parts point to.
    """

    parts: tuple[Part, ...]
    pairs: tuple[tuple[Part, Part], ...] | None
    nbytes: int
    data: tuple[torch.Tensor, ...]


class _Target(NamedTuple):
    """Parts and where the products with them go; a pair of parts fills one range of columns.

    Attributes:
        out, residual: addresses of the first part's column in the first token.
        stride: floats from token to token.
    """

    parts: tuple[Part, ...]
    out: int
    residual: int | None
    stride: int


def prepare(views: Sequence[WeightView]) -> DeviceMatrix:
    """Point at the rows of all views, one after another; nothing is decoded or copied.

    NVFP4's divisor is read from the device once, here.

    Raises:
        ConfigError: a parent does not begin at a multiple of 16 bytes.
    """
    for view in views:
        if view.data.data_ptr() % _ALIGNMENT:
            raise ConfigError(
                f"a {view.format.value} weight must begin at a multiple of {_ALIGNMENT} bytes on a device"
            )
    parts = tuple(part_of(view) for view in views)
    return DeviceMatrix(
        parts=parts,
        pairs=_pairs(parts, views[0].columns),
        nbytes=sum(stored_bytes(view) for view in views),
        data=tuple(view.data for view in views),
    )


def linear(x: torch.Tensor, w: LinearWeight, out: torch.Tensor, residual: torch.Tensor | None = None) -> None:
    """See the contract in the package's docstring."""
    rotated, matrix = _rotated(x, w.signs), _matrix(w)
    _multiply(rotated, list(_targets(matrix, out, residual)), (x, rotated, matrix, out, residual))


def projections(x: torch.Tensor, weights: Sequence[LinearWeight], outs: Sequence[torch.Tensor]) -> None:
    """One launch for all weights of a rotation; see the contract in the package's docstring."""
    kinds: dict[int, list[int]] = {}
    for index, w in enumerate(weights):
        kinds.setdefault(id(w.signs), []).append(index)
    for members in kinds.values():
        rotated = _rotated(x, weights[members[0]].signs)
        targets = [target for i in members for target in _targets(_matrix(weights[i]), outs[i], None)]
        keep = [owner for i in members for owner in (_matrix(weights[i]), outs[i])]
        _multiply(rotated, targets, (x, rotated, *keep))


def gate_up_swiglu(x: torch.Tensor, w: LinearWeight, out: torch.Tensor) -> bool:
    """SiLU(gate x) * (up x) in the launch of the products; False, with nothing done, where w's rows do not pair."""
    matrix = _matrix(w)
    if matrix.pairs is None:
        return False
    rotated, targets, column = _rotated(x, w.signs), [], 0
    for pair in matrix.pairs:
        targets.append(_Target(pair, out.data_ptr() + 4 * column, None, out.shape[1]))
        column += pair[0].rows
    _multiply(rotated, targets, (x, rotated, matrix, out))
    return True


def _targets(matrix: DeviceMatrix, out: torch.Tensor, residual: torch.Tensor | None) -> Iterator[_Target]:
    column = 0
    for part in matrix.parts:
        added = None if residual is None else residual.data_ptr() + 4 * column
        yield _Target((part,), out.data_ptr() + 4 * column, added, out.shape[1])
        column += part.rows


def _multiply(x: torch.Tensor, targets: Sequence[_Target], keep: Sequence[object]) -> None:
    if not len(x):
        return
    for some in _launches(targets, together=len(x) <= NARROW_TOKENS):
        if some[0].parts[0].format == _FP32:
            _launch_fp32(x, some, keep)
        else:
            _launch(x, some, keep)


def _launches(targets: Sequence[_Target], together: bool) -> Iterator[Sequence[_Target]]:
    """The targets of each launch. Few tokens: all formats but fp32 `together`; many: each alone, to fit registers."""
    kinds: dict[int, list[_Target]] = {}
    for target in targets:
        code = target.parts[0].format
        kinds.setdefault(-1 if together and code != _FP32 else code, []).append(target)
    for some in kinds.values():
        step = MAX_OUTPUTS // len(some[0].parts)
        yield from (some[begin : begin + step] for begin in range(0, len(some), step))


def _launch_fp32(x: torch.Tensor, targets: Sequence[_Target], keep: Sequence[object]) -> None:
    args, tiles = _args(x, targets, _FP32_ROWS)
    grid = (tiles, -(-len(x) // _FP32_TOKENS), 1)
    FP32.launch("linear_fp32", Launch(grid, (32 * _FP32_ROWS, 1, 1)), args, *keep)


def _launch(x: torch.Tensor, targets: Sequence[_Target], keep: Sequence[object]) -> None:
    paired, parts = len(targets[0].parts) == 2, [part for target in targets for part in target.parts]
    problem = CudaProblem(
        tokens=len(x),
        rows=sum(part.rows for part in parts),
        columns=x.shape[1],
        row_bytes=max(_unit_bytes(part.format) for part in parts),
        light=len({part.format for part in parts}) == 1 and not parts[0].high,
        paired=paired,
        facts=device().facts,
    )
    formats, chosen = _formats(parts), cuda_plan(problem)
    args, tiles = _args(x, targets, chosen.tile_rows(paired))
    if isinstance(chosen, NarrowPlan):
        NARROW.launch("linear_narrow", _narrow_launch(chosen, formats, tiles), args, *keep)
    else:
        _launch_wide(x, chosen, formats, tiles, args, keep)


def _launch_wide(
    x: torch.Tensor, chosen: WidePlan, formats: int, tiles: int, args: LinearArgs, keep: Sequence[object]
) -> None:
    octets = _octets(x)
    args.octets, held = octets.data_ptr(), [*keep, octets]
    if chosen.segmented:
        partial = workspace("linear segments", 4 * args.segments * args.tokens * args.rows, like=x)
        args.partial = partial.data_ptr()
        held.append(partial)
    grid = (-(-len(x) // chosen.tokens), tiles, args.segments if chosen.segmented else 1)
    how = Launch(grid, (chosen.threads, 1, 1), chosen.shared, wide_macros(formats, chosen.tokens))
    WIDE.launch("linear_wide", how, args, *held)
    if chosen.segmented:
        merged = args.rows // 2 if args.paired else args.rows
        how = Launch((-(-merged // 256), len(x), 1), (256, 1, 1), macros=merge_macros(formats))
        MERGE.launch("linear_merge", how, args, *held)


def _narrow_launch(chosen: NarrowPlan, formats: int, tiles: int) -> Launch:
    macros = narrow_macros(formats, chosen.tiles, chosen.ring, chosen.staged)
    return Launch((tiles, 1, 1), (32 * chosen.warps, 1, 1), chosen.shared, macros)


def narrow_macros(formats: int, tiles: int, ring: int, staged: bool) -> Mapping[str, int]:
    """What linear_narrow is compiled for; `formats` as bits."""
    return {"NINFER_FORMATS": formats, "NINFER_TILES": tiles, "NINFER_RING": ring, "NINFER_STAGED_X": int(staged)}


def wide_macros(formats: int, tokens: int) -> Mapping[str, int]:
    """What linear_wide is compiled for."""
    return {"NINFER_FORMATS": formats, "NINFER_TOKENS": tokens, "NINFER_STAGES": WIDE_STAGES}


def merge_macros(formats: int) -> Mapping[str, int]:
    """What linear_merge is compiled for."""
    return {"NINFER_FORMATS": formats}


def _formats(parts: Sequence[Part]) -> int:
    """The formats that a kernel is compiled for, as bits."""
    return sum(1 << code for code in {part.format for part in parts})


def _args(x: torch.Tensor, targets: Sequence[_Target], tile_rows: int) -> tuple[LinearArgs, int]:
    """The arguments of a launch over `targets`, and how many tiles it has."""
    outputs, tiles, row = (Output * MAX_OUTPUTS)(), 0, 0
    index = 0
    for target in targets:
        for part in target.parts:
            outputs[index] = Output(part, target.out, target.residual, tiles, row, target.stride)
            index, row = index + 1, row + part.rows
        tiles += -(-target.parts[0].rows // tile_rows)
    tokens, columns = x.shape
    args = LinearArgs(
        x=x.data_ptr(),
        tokens=tokens,
        columns=columns,
        units=-(-columns // UNIT),
        segments=segments(columns),
        rows=row,
        count=index,
        paired=len(targets[0].parts) == 2,
        vector=_vector(x),
        outputs=outputs,
    )
    return args, tiles


def _octets(x: torch.Tensor) -> torch.Tensor:
    """x as bf16 in the order of pairs, rows padded with zeros to whole units: uint8 bytes."""
    tokens, columns = x.shape
    width = -(-columns // UNIT) * UNIT // 8
    octets = workspace("linear octets", tokens * width * 16, like=x)
    args = OctetArgs(x.data_ptr(), octets.data_ptr(), tokens, columns, width, _vector(x), 0)
    ACTIVATIONS.launch("to_octets", Launch((-(-tokens * width // 256), 1, 1), (256, 1, 1)), args, x, octets)
    return octets


def _rotated(x: torch.Tensor, signs: torch.Tensor | None) -> torch.Tensor:
    """x itself without signs, else its rotation, in memory that the next call of this purpose uses again."""
    if signs is None:
        return x
    tokens, columns = x.shape
    out = workspace("linear rotation", 4 * tokens * columns, like=x).view(torch.float32).view(tokens, columns)
    args = HadamardArgs(x.data_ptr(), signs.data_ptr(), out.data_ptr(), columns)
    how = Launch((columns // HADAMARD_BLOCK, tokens, 1), (HADAMARD_BLOCK // 8, 1, 1))
    ACTIVATIONS.launch("hadamard", how, args, x, signs, out)
    return out


def _vector(x: torch.Tensor) -> int:
    return int(x.shape[1] % 4 == 0 and x.data_ptr() % 16 == 0)


def _matrix(w: LinearWeight) -> DeviceMatrix:
    assert isinstance(w.matrix, DeviceMatrix), "the weight was prepared for another route"
    return w.matrix


# ---- parts ----------------------------------------------------------------------------------------------

_FORMATS = {code: fmt for fmt, code in FORMAT_CODES.items()}


def _unit_bytes(code: int) -> int:
    """Bytes of codes and high bits in 128 columns of a row."""
    spec = _FORMATS[code].spec
    return UNIT * (spec.base_bits + spec.high_bits or spec.code_bits) // 8


def _pairs(parts: Sequence[Part], columns: int) -> tuple[tuple[Part, Part], ...] | None:
    """Gate rows beside up rows, cut where either half passes from one part to the next."""
    rows = sum(part.rows for part in parts)
    begins = [sum(part.rows for part in parts[:i]) for i in range(len(parts))]
    half = rows // 2
    cuts = sorted({0, half, *(begin % half for begin in begins)}) if rows % 2 == 0 else []
    pairs = []
    for begin, end in pairwise(cuts):
        gate, up = (_rows(parts, begins, at, end - begin, columns) for at in (begin, half + begin))
        if gate is None or up is None or gate.format != up.format or gate.format == _FP32:
            return None
        pairs.append((gate, up))
    return tuple(pairs) or None


def _rows(parts: Sequence[Part], begins: Sequence[int], begin: int, count: int, columns: int) -> Part | None:
    """Rows [begin, begin + count) of all, which lie in one part; None where its scales cannot begin there."""
    index = max(i for i, first in enumerate(begins) if first <= begin)
    part, skipped = parts[index], begin - begins[index]
    cut = Part.from_buffer_copy(part)
    cut.rows = count
    cut.codes = part.codes + skipped * part.code_stride
    if part.high:
        cut.high = part.high + skipped * part.high_stride
    if part.scales:
        cut.scales = part.scales + skipped * part.scale_stride
    if part.format == FORMAT_CODES[Format.NVFP4]:
        if skipped % _NVFP4_ROWS:
            return None
        cut.scales = part.scales + skipped * (columns // Format.NVFP4.spec.group)
    return cut
