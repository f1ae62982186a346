"""moe_experts on a GPU: slots are grouped by expert there, and chosen experts' weights are read as they are stored.

Which experts are chosen, the host never sees: launches are as large as a call could need; blocks without work end.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from ninfer.artifact.formats import Format
from ninfer.errors import ConfigError
from ninfer.kernels.jit import CudaSource, Launch, device, workspace
from ninfer.kernels.linear.compiled_cpu import FORMAT_CODES, Part
from ninfer.kernels.linear.cuda import ACTIVATIONS, DeviceMatrix, OctetArgs
from ninfer.kernels.linear.hadamard import BLOCK as HADAMARD_BLOCK
from ninfer.kernels.linear.plan import UNIT, segments
from ninfer.kernels.moe.plan import WIDE_THREADS, Grouping, grouping, narrow_plan, units, wide_plan

if TYPE_CHECKING:
    from ninfer.kernels.moe.experts import ExpertWeights
    from ninfer.kernels.weights import LinearWeight

_THREADS = 256
_ITEM_BYTES = 16
_PLAIN_ROWS = 4
_ALIGN = 256


class _Expert(ctypes.Structure):
    _fields_ = (
        ("gate", Part),
        ("up", Part),
        ("down", Part),
        ("gate_up_signs", ctypes.c_void_p),
        ("down_signs", ctypes.c_void_p),
    )


class _GroupArgs(ctypes.Structure):
    _fields_ = (
        ("ids", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("items", ctypes.c_void_p),
        ("total", ctypes.c_void_p),
        ("slots", ctypes.c_int32),
        ("experts", ctypes.c_int32),
        ("tile", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


class _SumArgs(ctypes.Structure):
    _fields_ = (
        ("results", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("columns", ctypes.c_int64),
        ("rows", ctypes.c_int32),
        ("top_k", ctypes.c_int32),
    )


class _ProductArgs(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("octets", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("experts", ctypes.c_void_p),
        ("items", ctypes.c_void_p),
        ("total", ctypes.c_void_p),
        ("places", ctypes.c_void_p),
        ("columns", ctypes.c_int32),
        ("units", ctypes.c_int32),
        ("segments", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("paired", ctypes.c_int32),
        ("divisor", ctypes.c_int32),
        ("vector", ctypes.c_int32),
        ("team", ctypes.c_int32),
    )


class _RotateArgs(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("experts", ctypes.c_void_p),
        ("columns", ctypes.c_int64),
        ("count", ctypes.c_int32),
        ("divisor", ctypes.c_int32),
        ("paired", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


def _source(name: str, **kernels: type[ctypes.Structure]) -> CudaSource:
    return CudaSource(Path(__file__).with_name(name), kernels)


GROUP = _source("group.cu", moe_group=_GroupArgs, moe_sum=_SumArgs)
ROTATE = _source("rotate.cu", expert_rotate=_RotateArgs)
NARROW = _source("narrow.cu", expert_narrow=_ProductArgs)
WIDE = _source("wide.cu", expert_wide=_ProductArgs)
PLAIN = _source("plain.cu", expert_plain=_ProductArgs)
_OFFICIAL = (Format.Q4, Format.Q5, Format.Q6, Format.Q8)
WARM: tuple[tuple[CudaSource, dict[str, int]], ...] = (
    (GROUP, {}),
    *(
        (NARROW, {"NINFER_FORMATS": 1 << FORMAT_CODES[fmt], "NINFER_RING": ring})
        for fmt in _OFFICIAL
        for ring in (8192, 4096)
    ),
    *(
        (WIDE, {"NINFER_FORMATS": 1 << FORMAT_CODES[fmt], "NINFER_TOKENS": tokens, "NINFER_STAGES": 3})
        for fmt in _OFFICIAL[:3]
        for tokens in (32, 64)
    ),
    (PLAIN, {}),
    (ROTATE, {}),
)
DECODE_KERNELS = frozenset({"moe_group", "moe_sum", "expert_narrow", "expert_rotate"})


class Kind(NamedTuple):
    """What the weights of one product have in common.

    Attributes:
        formats: those that occur, as bits; 0 where some expert's weights are multiplied one by one.
        row_bytes: the most stored bytes that 128 columns of a row take.
        rotates: whether some expert's input is rotated.
    """

    formats: int
    row_bytes: int
    rotates: bool


@dataclass(frozen=True, slots=True, eq=False)
class DeviceExperts:
    """The weights of all experts for kernels; it points into them.

    Attributes:
        table: uint8, on their device: experts.cuh's Expert of each.
    """

    table: torch.Tensor
    gate_up: Kind
    down: Kind


def prepare(gate_up: Sequence[LinearWeight], down: Sequence[LinearWeight]) -> DeviceExperts | None:
    """The table of all experts, on their device; None if they were prepared for another route.

    Raises:
        ConfigError: weights that the kernels cannot multiply by.
    """
    if not isinstance(gate_up[0].matrix, DeviceMatrix):
        return None
    experts = [
        _Expert(*_halves(index, first), _whole(index, second), _address(first.signs), _address(second.signs))
        for index, (first, second) in enumerate(zip(gate_up, down, strict=True))
    ]
    packed = (_Expert * len(experts))(*experts)
    table = torch.frombuffer(bytearray(packed), dtype=torch.uint8).to(gate_up[0].matrix.data[0].device)
    return DeviceExperts(
        table,
        _kind([(expert.gate, expert.up) for expert in experts], any(expert.gate_up_signs for expert in experts)),
        _kind([(expert.down, expert.down) for expert in experts], any(expert.down_signs for expert in experts)),
    )


def moe_experts(
    x: torch.Tensor, experts: ExpertWeights, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
) -> None:
    """See the contract in the package's docstring."""
    if len(x):
        Call(x, experts, ids, weights, out).run()


class _Product(NamedTuple):
    """One product of all slots.

    Attributes:
        x, columns: its inputs, f32[inputs, columns].
        sharing: slots that share a row of x.
        out, rows: where its results go, f32[slots, rows].
        paired: whether it is the gated product, and not down.
    """

    kind: Kind
    x: int
    inputs: int
    columns: int
    sharing: int
    out: int
    rows: int
    paired: bool


class Call:
    """One call: its operands and its scratch memory."""

    def __init__(
        self, x: torch.Tensor, experts: ExpertWeights, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
    ) -> None:
        assert isinstance(experts.table, DeviceExperts), "the experts were prepared for another route"
        self.x, self.experts, self.ids, self.weights, self.out = x, experts, ids, weights, out
        self.table, self.groups = experts.table, grouping(len(ids), ids.shape[1], experts.count)
        slots, (hidden, width) = self.groups.slots, (experts.columns, experts.products)
        sizes = (slots * 4, self.groups.items * _ITEM_BYTES, 4, slots * width * 4, slots * hidden * 4)
        begins, used = [], 0
        for size in sizes:
            begins.append(used)
            used += -(-size // _ALIGN) * _ALIGN
        self.scratch = workspace("moe_experts", used, like=x)
        base = self.scratch.data_ptr()
        self.places, self.items, self.total, self.products, self.results = (base + begin for begin in begins)
        self.keep: tuple[object, ...] = (x, experts, ids, weights, out, self.scratch)

    def run(self) -> None:
        """All launches."""
        (rows, top_k), slots = self.ids.shape, self.groups.slots
        hidden, width = self.experts.columns, self.experts.products
        kinds = self.table.gate_up, self.table.down
        self._group(self.groups)
        gated = _Product(kinds[0], self.x.data_ptr(), rows, hidden, top_k, self.products, width, paired=True)
        self._multiply(self._rotated(gated, self.results))
        down = _Product(kinds[1], self.products, slots, width, 1, self.results, hidden, paired=False)
        self._multiply(self._rotated(down, self.products))
        args = _SumArgs(self.results, self.weights.data_ptr(), self.out.data_ptr(), hidden, rows, top_k)
        how = Launch((rows, -(-hidden // _THREADS), 1), (_THREADS, 1, 1))
        GROUP.launch("moe_sum", how, args, *self.keep)

    def _group(self, groups: Grouping) -> None:
        count = self.experts.count
        args = _GroupArgs(self.ids.data_ptr(), self.places, self.items, self.total, groups.slots, count, groups.tile, 0)
        GROUP.launch("moe_group", Launch((count, 1, 1), (_THREADS, 1, 1), shared=4 * count), args, *self.keep)

    def _rotated(self, product: _Product, to: int) -> _Product:
        """The product of inputs rotated for each slot, which go to f32[slots, columns] at `to`; may be its x."""
        if not product.kind.rotates:
            return product
        slots = self.groups.slots
        args = _RotateArgs(
            product.x,
            to,
            self.ids.data_ptr(),
            self.table.table.data_ptr(),
            product.columns,
            self.experts.count,
            product.sharing,
            product.paired,
            0,
        )
        how = Launch((slots, product.columns // HADAMARD_BLOCK, 1), (HADAMARD_BLOCK // 8, 1, 1))
        ROTATE.launch("expert_rotate", how, args, *self.keep)
        return product._replace(x=to, inputs=slots, sharing=1)

    def _multiply(self, product: _Product) -> None:
        if product.kind.formats == 0:
            grid = (-(-product.rows // _PLAIN_ROWS), self.groups.items, 1)
            how = Launch(grid, (32 * _PLAIN_ROWS, 1, 1))
            PLAIN.launch("expert_plain", how, self._args(product), *self.keep)
        elif self.groups.is_wide:
            self._multiply_wide(product)
        else:
            self._multiply_narrow(product)

    def _multiply_narrow(self, product: _Product) -> None:
        kind, facts = product.kind, device().facts
        chosen = narrow_plan(product.rows, product.columns, kind.row_bytes, product.paired, facts)
        args = self._args(product)
        args.team = chosen.team
        macros = {"NINFER_FORMATS": kind.formats, "NINFER_RING": chosen.ring}
        grid, block = (chosen.blocks, self.groups.items, 1), (32 * chosen.team * chosen.teams, 1, 1)
        NARROW.launch("expert_narrow", Launch(grid, block, chosen.shared, macros), args, *self.keep)

    def _multiply_wide(self, product: _Product) -> None:
        kind, tile = product.kind, self.groups.tile
        chosen = wide_plan(product.rows, kind.row_bytes, tile, product.paired, device().facts)
        args, octets = self._args(product), self._octets(product)
        args.octets = octets.data_ptr()
        macros = {"NINFER_FORMATS": kind.formats, "NINFER_TOKENS": tile, "NINFER_STAGES": chosen.stages}
        grid = (chosen.blocks, self.groups.items, 1)
        WIDE.launch("expert_wide", Launch(grid, (WIDE_THREADS, 1, 1), chosen.shared, macros), args, *self.keep, octets)

    def _octets(self, product: _Product) -> torch.Tensor:
        """The inputs as bf16 in the order of pairs, rows padded with zeros to whole units."""
        width = units(product.columns) * UNIT // 8
        octets = workspace("moe octets", product.inputs * width * 16, like=self.x)
        args = OctetArgs(
            product.x, octets.data_ptr(), product.inputs, product.columns, width, _is_vector(product), unused=0
        )
        how = Launch((-(-product.inputs * width // _THREADS), 1, 1), (_THREADS, 1, 1))
        ACTIVATIONS.launch("to_octets", how, args, *self.keep, octets)
        return octets

    def _args(self, product: _Product) -> _ProductArgs:
        return _ProductArgs(
            x=product.x,
            out=product.out,
            experts=self.table.table.data_ptr(),
            items=self.items,
            total=self.total,
            places=self.places,
            columns=product.columns,
            units=units(product.columns),
            segments=segments(product.columns),
            rows=product.rows,
            paired=product.paired,
            divisor=product.sharing,
            vector=_is_vector(product),
        )


def _is_vector(product: _Product) -> bool:
    """Whether rows of x begin at multiples of 16 bytes."""
    return product.columns % 4 == 0 and product.x % 16 == 0


# ---- the table ------------------------------------------------------------------------------------------


def _halves(index: int, weight: LinearWeight) -> tuple[Part, Part]:
    """Gate rows and up rows."""
    matrix, half = _matrix(weight), weight.rows // 2
    if matrix.pairs is not None and len(matrix.pairs) == 1:
        return matrix.pairs[0]
    if len(matrix.parts) == 2 and matrix.parts[0].rows == half:
        return matrix.parts[0], matrix.parts[1]
    if len(matrix.parts) == 1 and weight.formats[0] is not Format.NVFP4:
        return _rows(matrix.parts[0], 0, half), _rows(matrix.parts[0], half, half)
    raise ConfigError(
        f"expert {index}: moe_experts on CUDA takes gate and up rows stored as one object each or together"
        + ("; of nvfp4, together only in a multiple of 128 rows each" if Format.NVFP4 in weight.formats else "")
    )


def _whole(index: int, weight: LinearWeight) -> Part:
    matrix = _matrix(weight)
    if len(matrix.parts) != 1:
        raise ConfigError(f"expert {index}: moe_experts on CUDA takes down rows stored as one object")
    return matrix.parts[0]


def _matrix(weight: LinearWeight) -> DeviceMatrix:
    assert isinstance(weight.matrix, DeviceMatrix), "all experts are prepared for one route"
    return weight.matrix


def _address(signs: torch.Tensor | None) -> int | None:
    return None if signs is None else signs.data_ptr()


def _rows(part: Part, begin: int, count: int) -> Part:
    cut = Part.from_buffer_copy(part)
    cut.rows = count
    cut.codes = part.codes + begin * part.code_stride
    if part.high:
        cut.high = part.high + begin * part.high_stride
    if part.scales:
        cut.scales = part.scales + begin * part.scale_stride
    return cut


def _kind(parts: Sequence[tuple[Part, Part]], rotates: bool) -> Kind:
    formats = {code for first, second in parts for code in (first.format, second.format)}
    plain = FORMAT_CODES[Format.FP32] in formats or any(first.format != second.format for first, second in parts)
    return Kind(0 if plain else sum(1 << code for code in formats), max(map(_unit_bytes, formats)), rotates)


_FORMATS = {code: fmt for fmt, code in FORMAT_CODES.items()}


def _unit_bytes(code: int) -> int:
    """Bytes of codes and high bits in 128 columns of a row."""
    spec = _FORMATS[code].spec
    return UNIT * (spec.base_bits + spec.high_bits or spec.code_bits) // 8
