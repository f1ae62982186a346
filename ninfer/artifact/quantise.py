"""The reference encoders: fp32 or bf16 sources to codes and scales, bit-exact, all roundings to nearest even.

A source is float32 or bf16 bit patterns (uint16), shape [rows, K]. Source of the formulas: artifact v3,
section 3, `grouped_absmax` and `fp8_row_maxabs`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact.floats import E4M3_MAX, F32, U8, U16, bf16_to_fp32, fp32_to_bf16, fp32_to_e4m3
from ninfer.artifact.formats import Format
from ninfer.errors import ArtifactError

Source = NDArray[np.float32] | NDArray[np.uint16]


def grouped_absmax(values: Source, fmt: Format, name: str) -> tuple[NDArray[np.int8], U16]:
    """Codes and scales of whole groups: scale = fp16(amax / qmax), code = clamp(rint(x * fp32(1 / scale))).

    Args:
        values: [rows, K], K a multiple of the group (pad the last group with zeros).
        name: the tensor, for error messages.

    Returns:
        int8 codes [rows, K] and fp16 bit patterns uint16 [rows, K / group].

    Raises:
        ArtifactError: a non-finite source, a scale beyond fp16, or a format that has no such encoder.
    """
    spec = fmt.spec
    if not spec.absmax_encodable:
        raise ArtifactError(f"{name}: {fmt.value} has no float encoder; import codes and scales that exist already")
    grouped = values.reshape(values.shape[0], -1, spec.group)
    amax = _finite_absmax(grouped, name)
    scales = _fp16_scales(amax, spec.qmax, name)
    widened = scales.view(np.float16).astype(np.float32)
    inverse = np.divide(np.float32(1), widened, out=np.zeros_like(widened), where=widened != 0)
    scaled = _fp32(grouped) * inverse[..., None]
    np.rint(scaled, out=scaled)
    np.clip(scaled, spec.qmin, spec.qmax, out=scaled)
    return scaled.astype(np.int8).reshape(values.shape), scales


def fp8_row_maxabs(values: Source, name: str) -> tuple[U8, U16]:
    """E4M3FN codes and bf16 row scales: scale = bf16(amax / 448), code = e4m3(clip(x * fp32(1 / scale))).

    Args:
        values: [rows, K]; an fp32 source is first rounded to bf16.
        name: the tensor, for error messages.

    Returns:
        uint8 codes [rows, K] and bf16 bit patterns uint16 [rows].

    Raises:
        ArtifactError: a source that is not finite (or not after rounding to bf16).
    """
    source = values if values.dtype == np.uint16 else fp32_to_bf16(values.astype(np.float32, copy=False))
    amax = _finite_absmax(source, name)
    scales = fp32_to_bf16(amax / np.float32(E4M3_MAX))
    scales[(scales == 0) & (amax > 0)] = 1
    widened = bf16_to_fp32(scales)
    # The reciprocal of a scale below 2^-127 is infinite in fp32; 0 * inf must still give a zero code.
    with np.errstate(over="ignore", invalid="ignore"):
        inverse = np.divide(np.float32(1), widened, out=np.zeros_like(widened), where=widened != 0)
        exact = _fp32(source)
        scaled = exact * inverse[:, None]
    if np.isinf(inverse).any():
        scaled = np.where(exact == 0, exact, scaled)
    np.clip(scaled, -E4M3_MAX, E4M3_MAX, out=scaled)
    codes = fp32_to_e4m3(scaled)
    codes[amax == 0] = 0
    return codes, scales


def _fp32(values: Source) -> F32:
    return bf16_to_fp32(values.view(np.uint16)) if values.dtype == np.uint16 else values.view(np.float32)


def _finite_absmax(values: Source, name: str) -> F32:
    """max |x| over the last axis. Magnitudes order like their bit patterns, so integers decide exactly."""
    if values.dtype == np.uint16:
        top = (values.view(np.uint16) & np.uint16(0x7FFF)).max(axis=-1)
        amax = bf16_to_fp32(top)
    else:
        amax = (values.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(axis=-1).view(np.float32)
    if not np.isfinite(amax).all():
        where = [int(i) for i in np.argwhere(~np.isfinite(amax))[0]]
        raise ArtifactError(f"{name}: the source holds a non-finite value near row/group {where}")
    return amax


def _fp16_scales(amax: F32, qmax: int, name: str) -> U16:
    with np.errstate(over="ignore", under="ignore"):
        scales = (amax / np.float32(qmax)).astype(np.float16).view(np.uint16)
    scales[(scales == 0) & (amax > 0)] = 1
    if (scales >= 0x7C00).any():
        row = int(np.argwhere(scales >= 0x7C00)[0][0])
        raise ArtifactError(f"{name}: the scale of a group in row {row} does not fit fp16; use a wider format")
    return scales
