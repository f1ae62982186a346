"""Oracle of the KV codecs: one row of Python numbers at a time, codes found by search among all values.

Quotients are taken in fp32, as the contract says, so that ties fall alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E4M3 = tuple((m / 8 * 2.0**-6) if e == 0 else (1 + m / 8) * 2.0 ** (e - 7) for e in range(16) for m in range(8))[:127]


def encode_row(row_format: str, row: Sequence[float]) -> tuple[bytes, bytes]:
    """The bytes (codes, scales) of one row in "fp32", "bf16", "int8", "fp8" or "nvfp4"."""
    if row_format == "fp32":
        return np.array(row, "<f4").tobytes(), b""
    if row_format == "bf16":
        return b"".join(_bf16(x).to_bytes(2, "little") for x in row), b""
    if row_format == "int8":
        return _int8(row)
    return _fp8(row) if row_format == "fp8" else _nvfp4(row)


def decode_row(row_format: str, codes: bytes, scales: bytes) -> list[float]:
    """The represented values, exact in fp64, of one row's bytes."""
    if row_format == "fp32":
        return [float(x) for x in np.frombuffer(codes, "<f4")]
    if row_format == "bf16":
        return [_from_bf16(codes[i : i + 2]) for i in range(0, len(codes), 2)]
    if row_format == "int8":
        factors = np.frombuffer(scales, "<f2").astype(np.float64)
        return [float(c * factors[i // 64]) for i, c in enumerate(np.frombuffer(codes, "i1").tolist())]
    if row_format == "fp8":
        return [_signed(E4M3, c, 7) * _from_bf16(scales) for c in codes]
    nibbles = [n for c in codes for n in (c & 15, c >> 4)]
    return [_signed(E2M1, n, 3) * E4M3[scales[i // 16]] for i, n in enumerate(nibbles)]


def _int8(row: Sequence[float]) -> tuple[bytes, bytes]:
    codes, scales = [], b""
    for begin in range(0, len(row), 64):
        group = row[begin : begin + 64]
        scale = np.float16(np.float32(max(map(abs, group))) / np.float32(127))
        scales += scale.tobytes()
        codes += [max(-127, min(127, round(_quotient(x, float(scale))))) for x in group]
    return np.array(codes, "i1").tobytes(), scales


def _fp8(row: Sequence[float]) -> tuple[bytes, bytes]:
    bits = _bf16(float(np.float32(max(map(abs, row))) / np.float32(448)))
    scale = bits.to_bytes(2, "little")
    return bytes(_code(E4M3, _quotient(x, _from_bf16(scale)), 7) for x in row), scale


def _nvfp4(row: Sequence[float]) -> tuple[bytes, bytes]:
    nibbles: list[int] = []
    scales = []
    for begin in range(0, len(row), 16):
        group = row[begin : begin + 16]
        scales.append(_code(E4M3, float(np.float32(max(map(abs, group))) / np.float32(6)), 7))
        nibbles += [_code(E2M1, _quotient(x, E4M3[scales[-1]]), 3) for x in group]
    return bytes(a | b << 4 for a, b in zip(nibbles[::2], nibbles[1::2], strict=True)), bytes(scales)


def _quotient(x: float, scale: float) -> float:
    return float(np.float32(x) / np.float32(scale)) if scale else 0.0


def _code(magnitudes: Sequence[float], x: float, sign_bit: int) -> int:
    """Nearest magnitude's index (ties: the even one; beyond the last: the last), with the sign above it."""
    best = min(range(len(magnitudes)), key=lambda i: (abs(abs(x) - magnitudes[i]), i % 2))
    return best | int(np.signbit(x)) << sign_bit


def _signed(magnitudes: Sequence[float], code: int, sign_bit: int) -> float:
    magnitude = magnitudes[code & ((1 << sign_bit) - 1)]
    return -magnitude if code >> sign_bit else magnitude


def _bf16(x: float) -> int:
    bits = int(np.float32(x).view(np.uint32))
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _from_bf16(word: bytes) -> float:
    return float(np.frombuffer(b"\0\0" + word, "<f4")[0])
