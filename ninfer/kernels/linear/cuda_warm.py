"""What the official models need of linear's CUDA kernels: compiled before the first request."""

from __future__ import annotations

from collections.abc import Mapping

from ninfer.artifact.formats import Format
from ninfer.kernels.jit import CudaSource
from ninfer.kernels.linear.compiled_cpu import FORMAT_CODES
from ninfer.kernels.linear.cuda import (
    ACTIVATIONS,
    FP32,
    MERGE,
    NARROW,
    WIDE,
    merge_macros,
    narrow_macros,
    wide_macros,
)

_B, _Q4, _Q5, _Q6, _Q8 = (1 << FORMAT_CODES[fmt] for fmt in (Format.BF16, Format.Q4, Format.Q5, Format.Q6, Format.Q8))
_RING = 8192
_WARM_NARROW = (
    *((formats, 1, True) for formats in (_Q4 | _Q5 | _B, _Q4 | _Q5, _Q5, _Q6, _Q8, _Q8 | _B, _B)),
    *((formats, 2, True) for formats in (_Q4, _Q8)),
    *((formats, 2, False) for formats in (_Q4 | _Q5 | _B, _Q4 | _Q5, _Q4, _Q6)),
    (_Q5, 1, False),
)
_WARM_WIDE = (_B, _Q4, _Q5, _Q6, _Q8)
WARM: tuple[tuple[CudaSource, Mapping[str, int]], ...] = (
    *((NARROW, narrow_macros(formats, tiles, _RING, staged)) for formats, tiles, staged in _WARM_NARROW),
    *((WIDE, wide_macros(formats, 128)) for formats in _WARM_WIDE),
    *((MERGE, merge_macros(formats)) for formats in (_B, _Q5, _Q8)),
    (ACTIVATIONS, {}),
    (FP32, {}),
)
"""The groupwise recipes of 27B and 35B-A3B: fused attention and GDN inputs, outputs, gate|up, down, heads, routers."""

DECODE_KERNELS: frozenset[str] = frozenset({"linear_narrow", "hadamard", "linear_fp32"})
