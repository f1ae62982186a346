"""bf16 and FP8 E4M3FN as bit patterns: exact widening, round-to-nearest-even narrowing.

bf16 arrays are uint16 bit patterns and E4M3FN arrays uint8 bit patterns throughout the package, because
NumPy has no such dtypes. Nothing here goes through float arithmetic that could quiet a NaN payload.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
F32 = NDArray[np.float32]

E4M3_MAX = 448.0
_E4M3_MIN_NORMAL_BITS = np.uint32(0x3C800000)  # 2^-6
_SUBNORMAL_MAGIC = np.float32(2.0**14)  # its fp32 unit in the last place is 2^-9, E4M3's smallest step
_E4M3_OVERFLOW_BITS = np.uint32(0x43E80000)  # 464: halfway to the absent 480; ties go to 448


def bf16_to_fp32(bits: U16) -> F32:
    """Widen bf16 bit patterns (any shape) to fp32, exactly, NaN payloads included."""
    return np.left_shift(bits, 16, dtype=np.uint32).view(np.float32)


def fp32_to_bf16(values: F32) -> U16:
    """Round fp32 (any shape) to bf16 bit patterns, to nearest even. NaNs keep their high payload."""
    bits = np.ascontiguousarray(values).view(np.uint32).reshape(np.shape(values))
    rounded = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    if nan.any():
        top = (bits >> 16).astype(np.uint16)
        rounded = np.where(nan, np.where(top & 0x7F, top, top | np.uint16(0x40)), rounded)
    return rounded


def e4m3_to_fp32(codes: U8) -> F32:
    """Widen E4M3FN codes (any shape) to fp32, exactly; 0x7f and 0xff give NaN."""
    return e4m3_table()[codes]


def e4m3_table() -> F32:
    """fp32 value of each of the 256 E4M3FN codes (1-4-3, bias 7, no infinities)."""
    codes = np.arange(256, dtype=np.uint32)
    exponent, mantissa = (codes >> 3) & 15, (codes & 7).astype(np.float32)
    normal = np.ldexp(1 + mantissa / 8, exponent.astype(np.int32) - 7)
    magnitude = np.where(exponent == 0, mantissa * np.float32(2.0**-9), normal).astype(np.float32)
    magnitude[(codes & 0x7F) == 0x7F] = np.nan
    return np.where(codes & 0x80, -magnitude, magnitude)


def fp32_to_e4m3(values: F32) -> U8:
    """Round fp32 (any shape) to E4M3FN codes, to nearest even; NaN and |x| > 464 give 0x7f with x's sign."""
    bits = np.ascontiguousarray(values).view(np.uint32).reshape(np.shape(values))
    magnitude = bits & np.uint32(0x7FFFFFFF)
    # Normal results: round the 23-bit mantissa to 3 bits, then move the exponent bias from 127 to 7.
    code = ((magnitude + (((magnitude >> 20) & 1) + np.uint32(0x7FFFF))) >> 20) - np.uint32(120 << 3)
    small = magnitude < _E4M3_MIN_NORMAL_BITS
    if small.any():
        shifted = np.where(small, magnitude, 0).view(np.float32) + _SUBNORMAL_MAGIC
        code = np.where(small, shifted.view(np.uint32) - _SUBNORMAL_MAGIC.view(np.uint32), code)
    code = np.where(magnitude > _E4M3_OVERFLOW_BITS, np.uint32(0x7F), code)
    return (code | ((bits >> 24) & 0x80)).astype(np.uint8)
