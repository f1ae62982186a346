"""Checks of stored tensor bytes: illegal codes and scales, padding, and gaps that the layout wants zero.

Row-wise like the codec, so a caller streams an object of any size. Source: artifact v3, sections 3 and 4.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact import codec
from ninfer.artifact.codec import ByteSource
from ninfer.artifact.floats import U8
from ninfer.artifact.formats import Format
from ninfer.artifact.layouts import Geometry, Layout, geometry
from ninfer.errors import ArtifactError

_FP16_INF = 0x7C00
_BF16_INF = 0x7F80
_E4M3_NAN = 0x7F


def validate(data: U8, fmt: Format, shape: tuple[int, ...], name: str = "tensor") -> None:
    """Check every byte of a whole object (flat uint8).

    Raises:
        ArtifactError: names `name`, the first offending row and lane or group, and the rule.
    """
    source = geometry(fmt, shape)
    read = codec.byte_source(data, source)
    validate_gaps(read, source, name)
    validate_rows(read, source, 0, source.rows, name)


def validate_gaps(read: ByteSource, source: Geometry, name: str) -> None:
    """Check that the bytes between planes are zero. Raises ArtifactError."""
    for begin, end in source.gaps():
        if read(begin, end).any():
            raise ArtifactError(f"{name}: bytes [{begin}, {end}) between planes must be zero")


def validate_rows(read: ByteSource, source: Geometry, begin: int, end: int, name: str) -> None:
    """Check the codes, scales and padding of rows `[begin, end)`. Direct formats have no illegal words.

    Raises:
        ArtifactError: names `name`, the first offending row and lane or group, and the rule.
    """
    if source.layout is Layout.ROW_SPLIT:
        _validate_grouped(read, source, begin, end, name)
    elif source.layout is Layout.ROW_SCALE:
        _validate_fp8(read, source, begin, end, name)
    elif source.layout is Layout.BLOCK_SCALE:
        _validate_nvfp4(read, source, begin, end, name)


def _validate_grouped(read: ByteSource, source: Geometry, begin: int, end: int, name: str) -> None:
    spec = source.format.spec
    codes, scales = codec.unpack_grouped(read, source, begin, end)
    where = f"{name} ({source.format.value})"
    _refuse(codes < spec.qmin, begin, f"{where}: the code is below {spec.qmin}", "lane")
    _refuse(scales >= _FP16_INF, begin, f"{where}: the fp16 scale must be +0 or finite positive", "group")
    nonzero = (codes != 0).reshape(*scales.shape, spec.group).any(axis=-1)
    _refuse((scales == 0) & nonzero, begin, f"{where}: a zero scale needs zero codes", "group")
    _refuse(codes[:, source.columns :] != 0, begin, f"{where}: padding lanes must hold code 0", "padding lane")
    used = -(-source.columns // spec.group)
    _refuse(scales[:, used:] != 0, begin, f"{where}: padding groups must have scale 0", "padding group")


def _validate_fp8(read: ByteSource, source: Geometry, begin: int, end: int, name: str) -> None:
    codes, scales = codec.unpack_fp8_rows(read, source, begin, end)
    where = f"{name} ({source.format.value})"
    magnitude = codes & np.uint8(0x7F)
    _refuse(magnitude == _E4M3_NAN, begin, f"{where}: E4M3 codes 0x7f and 0xff are illegal", "lane")
    stored = scales[:, None]
    _refuse(stored >= _BF16_INF, begin, f"{where}: the bf16 scale must be +0 or finite positive", "scale")
    _refuse((stored == 0) & (magnitude != 0), begin, f"{where}: a zero scale needs zero codes", "lane")


def _validate_nvfp4(read: ByteSource, source: Geometry, begin: int, end: int, name: str) -> None:
    codes, scales, divisor = codec.unpack_nvfp4(read, source, begin, end)
    where = f"{name} (nvfp4)"
    if not (np.isfinite(divisor) and divisor > 0):
        raise ArtifactError(f"{where}: the divisor must be finite and positive, got {divisor}")
    _refuse(scales >= _E4M3_NAN, begin, f"{where}: the E4M3 scale must be non-negative and finite", "group")
    nonzero = (codes & np.uint8(7)).reshape(*scales.shape, source.format.spec.group).any(axis=-1)
    _refuse((scales == 0) & nonzero, begin, f"{where}: a zero scale needs zero codes", "group")


def _refuse(bad: NDArray[np.bool_], row_begin: int, message: str, unit: str) -> None:
    if bad.any():
        row, lane = (int(i) for i in np.argwhere(bad)[0])
        raise ArtifactError(f"{message} (row {row_begin + row}, {unit} {lane})")
