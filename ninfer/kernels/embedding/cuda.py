"""embedding with CUDA: the rows are decoded as they lie; token ids are read when the kernel runs."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ninfer.artifact.formats import Format
from ninfer.artifact.layouts import PlaneName
from ninfer.kernels.jit import CudaSource, Launch
from ninfer.kernels.linear.compiled_cpu import FORMAT_CODES, Part

if TYPE_CHECKING:
    import torch

    from ninfer.kernels.weights import TableWeight


class EmbeddingArgs(ctypes.Structure):
    """See embedding.cu."""

    _fields_ = (
        ("token_ids", ctypes.c_void_p),
        ("table", Part),
        ("divisor", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("columns", ctypes.c_int64),
    )


SOURCE = CudaSource(Path(__file__).with_name("embedding.cu"), {"embedding": EmbeddingArgs})
_THREADS = 256


def embedding(token_ids: torch.Tensor, table: TableWeight, out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    args = EmbeddingArgs(
        token_ids=token_ids.data_ptr(),
        table=_part(table),
        divisor=_place(table, PlaneName.DIVISOR)[0],
        out=out.data_ptr(),
        columns=table.columns,
    )
    how = Launch((token_ids.numel(), 1, 1), (_THREADS, 1, 1), macros=_macros(table.format))
    SOURCE.launch("embedding", how, args, token_ids, *table.planes.values(), out)


def _part(table: TableWeight) -> Part:
    codes, code_stride = _place(table, PlaneName.VALUES if table.format.is_direct else PlaneName.CODES)
    high, high_stride = _place(table, PlaneName.HIGH_BITS)
    scales, scale_stride = _place(table, PlaneName.SCALES)
    strides = (code_stride, high_stride, scale_stride)
    return Part(FORMAT_CODES[table.format], 0, table.rows, codes, high, scales, *strides, 1.0, 0.0)


def _place(table: TableWeight, name: PlaneName) -> tuple[int | None, int]:
    """The address of a plane's first row, and bytes from row to row; 0 where it does not keep its rows together."""
    plane = table.planes.get(name)
    if plane is None:
        return None, 0
    return plane.data_ptr(), plane.stride(0) if plane.dim() == 2 else 0


def _macros(fmt: Format) -> Mapping[str, int]:
    return MappingProxyType({"NINFER_FORMAT": FORMAT_CODES[fmt]})


WARM: tuple[tuple[CudaSource, Mapping[str, int]], ...] = tuple(
    (SOURCE, _macros(fmt)) for fmt in (Format.Q6, Format.Q8, Format.FP8_ROW)
)
"""The vocabularies of the official recipes."""

DECODE_KERNELS: frozenset[str] = frozenset({"embedding"})
