"""Conversion methods: how source values become the codes and scales of a format.

The reference encoders live in the artifact codec; here they get names that recipes use and provenance records.
A custom method is a function `(values, format) -> encoded` over blocks of rows:

- `values`: float32 [rows, K], some rows of the parameter;
- grouped formats return `(codes int8 [rows, K], scales float16 [rows, ceil(K / group)])`;
- FP8 rows return `(codes uint8 [rows, K], scales float32 [rows])`, E4M3FN codes, bf16-representable scales;
- direct formats return `values` of the same shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact.codec import EncodedRows, Words, encode_rows, pack_fp8_rows, pack_grouped
from ninfer.artifact.floats import bf16_to_fp32, fp32_to_bf16
from ninfer.artifact.formats import Format
from ninfer.errors import ConfigError

CustomFunction = Callable[[NDArray[np.float32], Format], Any]
Encoder = Callable[[Words, Format, str], EncodedRows]


@dataclass(frozen=True, slots=True)
class Method:
    """A named encoder of row blocks. `encode` is None for codes that are imported as they are."""

    name: str
    encode: Encoder | None

    def check(self, fmt: Format, where: str) -> None:
        """Raise `ConfigError` when this method cannot produce `fmt`."""
        possible = {
            "cast_direct": fmt.is_direct,
            "grouped_absmax": fmt.spec.absmax_encodable,
            "fp8_row_maxabs": fmt is Format.FP8_ROW,
            "import_encoded": fmt in (Format.FP8_ROW, Format.NVFP4),
        }
        if not possible.get(self.name, fmt is not Format.NVFP4):
            raise ConfigError(f"{where}: method {self.name} cannot produce {fmt.value}")


cast_direct = Method("cast_direct", encode_rows)
grouped_absmax = Method("grouped_absmax", encode_rows)
fp8_row_maxabs = Method("fp8_row_maxabs", encode_rows)
import_encoded = Method("import_encoded", None)


METHODS = {method.name: method for method in (cast_direct, grouped_absmax, fp8_row_maxabs, import_encoded)}


def default_method(fmt: Format) -> Method:
    """The reference method of a format. Raises `ConfigError` for T2, which has none."""
    if fmt.is_direct:
        return cast_direct
    if fmt.spec.absmax_encodable:
        return grouped_absmax
    if fmt is Format.T2:
        raise ConfigError(f"{fmt.value} has no reference encoder; give a custom method")
    return fp8_row_maxabs if fmt is Format.FP8_ROW else import_encoded


def custom_method(function: CustomFunction) -> Method:
    """Wrap a user's function. What it returns is checked block by block; errors name the parameter."""
    name = getattr(function, "__name__", type(function).__name__)

    def encode(values: Words, fmt: Format, where: str) -> EncodedRows:
        widened = bf16_to_fp32(values.view(np.uint16)) if values.dtype == np.uint16 else values.astype(np.float32)
        return _packed(function(widened, fmt), fmt, (len(values), values.shape[1]), f"{where}: custom method {name}")

    return Method(f"custom:{name}", encode)


def _packed(result: Any, fmt: Format, shape: tuple[int, int], where: str) -> EncodedRows:
    if fmt.is_direct:
        values = np.asarray(result)
        if values.shape != shape:
            raise ConfigError(f"{where} returned shape {list(values.shape)}, expected {list(shape)}")
        return encode_rows(values if fmt is Format.INT32 else values.astype(np.float32), fmt, where)
    if not isinstance(result, tuple) or len(result) != 2:
        raise ConfigError(f"{where} must return (codes, scales) for {fmt.value}")
    codes, scales = np.asarray(result[0]), np.asarray(result[1])
    if codes.shape != shape:
        raise ConfigError(f"{where} returned codes {list(codes.shape)}, expected {list(shape)}")
    return _fp8(codes, scales, where) if fmt is Format.FP8_ROW else _grouped(codes, scales, fmt, where)


def _grouped(codes: NDArray[Any], scales: NDArray[Any], fmt: Format, where: str) -> EncodedRows:
    spec = fmt.spec
    if codes.dtype.kind not in "iu" or codes.min() < spec.qmin or codes.max() > spec.qmax:
        raise ConfigError(f"{where}: {fmt.value} codes must be integers in [{spec.qmin}, {spec.qmax}]")
    half = scales.astype(np.float16)
    wanted = (len(codes), -(-codes.shape[1] // spec.group))
    if half.shape != wanted or not np.isfinite(half).all() or (half < 0).any():
        raise ConfigError(f"{where}: scales must be finite, not negative, of shape {list(wanted)}")
    per_lane = np.repeat(half == 0, spec.group, axis=1)[:, : codes.shape[1]]
    if (codes[per_lane] != 0).any():
        raise ConfigError(f"{where}: a zero scale needs zero codes")
    return pack_grouped(codes.astype(np.int8), np.abs(half).view(np.uint16), fmt)


def _fp8(codes: NDArray[Any], scales: NDArray[Any], where: str) -> EncodedRows:
    flat = scales.astype(np.float32).reshape(-1)
    if codes.dtype != np.uint8 or (codes & 0x7F == 0x7F).any():
        raise ConfigError(f"{where}: codes must be uint8 E4M3FN, without NaN")
    if flat.shape != (len(codes),) or not np.isfinite(flat).all() or (flat < 0).any():
        raise ConfigError(f"{where}: scales must be finite, not negative, one per row")
    bits = fp32_to_bf16(np.abs(flat))
    if not np.array_equal(bf16_to_fp32(bits), flat):
        raise ConfigError(f"{where}: scales must be bf16 values")
    if (codes[flat == 0] & 0x7F).any():
        raise ConfigError(f"{where}: a zero scale needs zero codes")
    return pack_fp8_rows(codes, bits)
