"""Independent scalar oracle, written from the v3 specification with Fractions and Python integers only.

It shares no code with `ninfer.artifact`. Slow and obvious on purpose.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction

GROUPS = {"q4": 64, "q5": 64, "q6": 64, "q8": 32, "t2": 128}
BITS = {"q4": 4, "q5": 5, "q6": 6, "q8": 8, "t2": 2}
QMAX = {"q4": 7, "q5": 15, "q6": 31, "q8": 127}
QMIN = {"q4": -8, "q5": -16, "q6": -32, "q8": -127}


class Kind:
    """One binary floating format: `mantissa` stored bits, smallest normal exponent, largest finite value."""

    def __init__(self, mantissa: int, min_exponent: int, max_finite: Fraction) -> None:
        self.mantissa, self.min_exponent, self.max_finite = mantissa, min_exponent, max_finite


FP32 = Kind(23, -126, (2 - Fraction(1, 2**23)) * Fraction(2) ** 127)
FP16 = Kind(10, -14, Fraction(65504))
BF16 = Kind(7, -126, (2 - Fraction(1, 2**7)) * Fraction(2) ** 127)
E4M3 = Kind(3, -6, Fraction(448))


def rint(value: Fraction) -> int:
    """Nearest integer, ties to even."""
    low = math.floor(value)
    rest = value - low
    up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2 == 1)
    return low + 1 if up else low


def round_to(kind: Kind, value: Fraction) -> Fraction | None:
    """`value` rounded to `kind`, to nearest even; None for an overflow to infinity."""
    if value == 0:
        return Fraction(0)
    below = abs(value.numerator).bit_length() - value.denominator.bit_length() - 1  # 2^below <= |value|
    exponent = max(kind.min_exponent, below)
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    step = Fraction(2) ** (exponent - kind.mantissa)
    rounded = rint(value / step) * step
    return None if abs(rounded) > kind.max_finite else rounded


def fp16_bits(value: Fraction) -> int:
    return struct.unpack("<H", struct.pack("<e", float(value)))[0]


def bf16_bits(value: Fraction) -> int:
    bits = struct.unpack("<I", struct.pack("<f", float(value)))[0]
    assert bits & 0xFFFF == 0
    return bits >> 16


def e4m3_value(code: int) -> Fraction:
    exponent, mantissa = (code >> 3) & 15, code & 7
    if exponent == 0:
        magnitude = Fraction(mantissa, 512)
    else:
        magnitude = (1 + Fraction(mantissa, 8)) * Fraction(2) ** (exponent - 7)
    return -magnitude if code & 0x80 else magnitude


def e4m3_code(value: Fraction) -> int:
    """The code of an exactly representable non-negative value."""
    return next(code for code in range(0x7F) if e4m3_value(code) == value)


def e2m1_value(code: int) -> Fraction:
    magnitude = [Fraction(0), Fraction(1, 2), Fraction(1), Fraction(3, 2), Fraction(2), Fraction(3)]
    magnitude += [Fraction(4), Fraction(6)]
    return -magnitude[code & 7] if code & 8 else magnitude[code & 7]


def absmax_group(name: str, values: list[float]) -> tuple[int, list[int]]:
    """(fp16 scale bits, codes) of one group by `grouped_absmax`; OverflowError for an infinite scale."""
    exact = [Fraction(value) for value in values]
    amax = max(abs(value) for value in exact)
    if amax == 0:
        return 0, [0] * len(values)
    quotient = round_to(FP32, amax / QMAX[name])
    assert quotient is not None
    scale = round_to(FP16, quotient)
    if scale is None:
        raise OverflowError
    scale = scale or Fraction(1, 2**24)
    inverse = round_to(FP32, 1 / scale)
    assert inverse is not None
    codes = []
    for value in exact:
        scaled = round_to(FP32, value * inverse)
        assert scaled is not None
        codes.append(min(max(rint(scaled), QMIN[name]), QMAX[name]))
    return fp16_bits(scale), codes


def fp8_row(values: list[float]) -> tuple[int, list[int]]:
    """(bf16 scale bits, E4M3 codes) of one row by `fp8_row_maxabs`; a zero keeps its sign unless the row is zero."""
    source = [round_to(BF16, Fraction(value)) for value in values]
    exact = [value for value in source if value is not None]
    assert len(exact) == len(values)
    amax = max(abs(value) for value in exact)
    if amax == 0:
        return 0, [0] * len(values)
    quotient = round_to(FP32, amax / 448)
    assert quotient is not None
    scale = round_to(BF16, quotient) or Fraction(2) ** -133
    inverse = round_to(FP32, 1 / scale)
    negative = [math.copysign(1, value) < 0 for value in values]
    codes = [_fp8_code(value, minus, inverse) for value, minus in zip(exact, negative, strict=True)]
    return bf16_bits(scale), codes


def _fp8_code(value: Fraction, negative: bool, inverse: Fraction | None) -> int:
    sign = 0x80 if negative else 0
    if inverse is None:  # fp32(1 / scale) is infinite
        return sign | (0x7E if value else 0)
    scaled = round_to(FP32, abs(value) * inverse)
    clipped = Fraction(448) if scaled is None or scaled > 448 else scaled
    rounded = round_to(E4M3, clipped)
    assert rounded is not None
    return sign | e4m3_code(rounded)


def row_split(name: str, codes: list[list[int]], scales: list[list[int]]) -> bytes:
    """The object bytes of grouped codes [N][K] and fp16 scale bits [N][ceil(K / G)]."""
    group, bits = GROUPS[name], BITS[name]
    rows, columns = len(codes), len(codes[0])
    padded = -(-columns // 128) * 128
    base, high, stored = bytearray(), bytearray(), bytearray()
    for row in range(rows):
        lanes = codes[row] + [0] * (padded - columns)
        for g in range(padded // group):
            words = [lane & (2**bits - 1) for lane in lanes[g * group : (g + 1) * group]]
            base += _pack_stream(words, min(bits, 8) if bits in (2, 8) else 4)
            if bits in (5, 6):
                high += _pack_stream([word >> 4 for word in words], bits - 4)
            scale = scales[row][g] if g < len(scales[row]) else 0
            stored += struct.pack("<H", scale)
    out = bytearray(base)
    if high:
        out += bytes(-len(out) % 256) + high
    out += bytes(-len(out) % 256) + stored
    return bytes(out)


def _pack_stream(words: list[int], bits: int) -> bytes:
    """Low `bits` of each word in order, stream bit t at bit t % 8 of byte t / 8."""
    stream = [(word >> bit) & 1 for word in words for bit in range(bits)]
    out = bytearray(len(stream) // 8)
    for position, bit in enumerate(stream):
        out[position // 8] |= bit << (position % 8)
    return bytes(out)


def block_scale(codes: list[list[int]], scales: list[list[int]], divisor: float) -> bytes:
    """The object bytes of NVFP4 codes [N][K], block scales [N][K / 16] and the divisor."""
    rows, columns = len(codes), len(codes[0])
    out = bytearray()
    for row in codes:
        out += bytes(row[k] | row[k + 1] << 4 for k in range(0, columns, 2))
    out += bytes(-len(out) % 256)
    swizzled = bytearray(rows * columns // 16)
    for n in range(rows):
        for g in range(columns // 16):
            at = ((n // 128) * (columns // 64) + g // 4) * 512 + (n % 32) * 16 + ((n % 128) // 32) * 4 + g % 4
            swizzled[at] = scales[n][g]
    return bytes(out + swizzled + struct.pack("<f", divisor))


def row_scale(codes: list[list[int]], scales: list[int]) -> bytes:
    """The object bytes of FP8 codes [N][K] and bf16 row scale bits [N]."""
    out = bytearray(b"".join(bytes(row) for row in codes))
    out += bytes(-len(out) % 256)
    return bytes(out + b"".join(struct.pack("<H", scale) for scale in scales))


def as_fp32(value: Fraction) -> float:
    rounded = round_to(FP32, value)
    assert rounded is not None
    return float(rounded)
