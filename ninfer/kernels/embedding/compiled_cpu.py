"""embedding in C++: the rows are decoded as they lie; token ids are read when the kernel runs."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

from ninfer.artifact.formats import Format
from ninfer.artifact.layouts import PlaneName
from ninfer.kernels.native import Kernel
from ninfer.kernels.routes import Route

if TYPE_CHECKING:
    import torch

    from ninfer.kernels.weights import TableWeight

SOURCE = Path(__file__).with_name("embedding.cpp")
_GROUPED = 2
_STORAGE = {Format.BF16: 0, Format.FP32: 1, Format.FP8_ROW: 3, Format.NVFP4: 4}


class _Args(ctypes.Structure):
    _fields_ = (
        ("token_ids", ctypes.c_void_p),
        ("codes", ctypes.c_void_p),
        ("high", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("divisor", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("tokens", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("code_stride", ctypes.c_int64),
        ("high_stride", ctypes.c_int64),
        ("scale_stride", ctypes.c_int64),
        ("storage", ctypes.c_int32),
        ("base_bits", ctypes.c_int32),
        ("high_bits", ctypes.c_int32),
        ("group", ctypes.c_int32),
    )


_KERNEL = Kernel(SOURCE, "embedding", _Args)


def embedding(body: Route, token_ids: torch.Tensor, table: TableWeight, out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    planes, spec = table.planes, table.format.spec
    codes = PlaneName.VALUES if table.format.is_direct else PlaneName.CODES
    args = _Args(
        token_ids=token_ids.data_ptr(),
        codes=planes[codes].data_ptr(),
        high=_address(table, PlaneName.HIGH_BITS),
        scales=_address(table, PlaneName.SCALES),
        divisor=_address(table, PlaneName.DIVISOR),
        out=out.data_ptr(),
        tokens=token_ids.numel(),
        columns=table.columns,
        code_stride=_stride(table, codes),
        high_stride=_stride(table, PlaneName.HIGH_BITS),
        scale_stride=_stride(table, PlaneName.SCALES),
        storage=_STORAGE.get(table.format, _GROUPED),
        base_bits=spec.base_bits,
        high_bits=spec.high_bits,
        group=spec.group,
    )
    _KERNEL.launch(body, args, token_ids, table, out)


def _address(table: TableWeight, name: PlaneName) -> int | None:
    return table.planes[name].data_ptr() if name in table.planes else None


def _stride(table: TableWeight, name: PlaneName) -> int:
    """Bytes from row to row; 0 where the format has no such plane or does not keep its rows together."""
    plane = table.planes.get(name)
    return plane.stride(0) if plane is not None and plane.dim() == 2 else 0
