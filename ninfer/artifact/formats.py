"""Numeric formats of the v3 artifact: what a stored code and scale mean, never where the bytes lie.

Weights are `fp32(scale) * code` (grouped), `e2m1 * e4m3(scale) / divisor` (NVFP4) or
`e4m3(code) * bf16(scale)` (FP8 rows); there are no zero points. Source: artifact v3, section 3.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Format(enum.Enum):
    """Every format this release can decode; values are the names written in the directory."""

    BF16 = "bf16"
    FP32 = "fp32"
    INT32 = "int32"
    Q4 = "q4_g64_fp16"
    Q5 = "q5_g64_fp16"
    Q6 = "q6_g64_fp16"
    Q8 = "q8_g32_fp16"
    T2 = "t2_g128_fp16"
    NVFP4 = "nvfp4"
    FP8_ROW = "fp8_e4m3fn_row_bf16"

    @property
    def spec(self) -> FormatSpec:
        return _SPECS[self]

    @property
    def is_direct(self) -> bool:
        """True for formats that store one plain word per element."""
        return self in _DIRECT

    @property
    def is_grouped(self) -> bool:
        """True for signed integer codes with one fp16 multiplier per group along K."""
        return self in _GROUPED

    @property
    def bits_per_weight(self) -> float:
        """Nominal stored bits per element, scales included (padding and per-row scales are not)."""
        return self.spec.bits_per_weight


@dataclass(frozen=True, slots=True)
class FormatSpec:
    """The constants of one format. `group` is 0 where a format has no groups along K.

    `qmin`/`qmax` bound the legal integer codes of a grouped format (both 0 elsewhere). The stored
    code splits into `base_bits` low bits and `high_bits` high bits, in separate planes.
    """

    code_bits: int
    bits_per_weight: float
    group: int = 0
    qmin: int = 0
    qmax: int = 0
    base_bits: int = 0
    high_bits: int = 0
    absmax_encodable: bool = False


_SPECS: dict[Format, FormatSpec] = {
    Format.BF16: FormatSpec(16, 16.0),
    Format.FP32: FormatSpec(32, 32.0),
    Format.INT32: FormatSpec(32, 32.0),
    Format.Q4: FormatSpec(4, 4.25, 64, -8, 7, 4, 0, True),
    Format.Q5: FormatSpec(5, 5.25, 64, -16, 15, 4, 1, True),
    Format.Q6: FormatSpec(6, 6.25, 64, -32, 31, 4, 2, True),
    Format.Q8: FormatSpec(8, 8.5, 32, -127, 127, 8, 0, True),
    Format.T2: FormatSpec(2, 2.125, 128, -1, 1, 2, 0),
    Format.NVFP4: FormatSpec(4, 4.5, 16),
    Format.FP8_ROW: FormatSpec(8, 8.0),
}
_BY_NAME = {fmt.value: fmt for fmt in Format}
_DIRECT = frozenset({Format.BF16, Format.FP32, Format.INT32})
_GROUPED = frozenset({Format.Q4, Format.Q5, Format.Q6, Format.Q8, Format.T2})


def known_format(name: str) -> Format | None:
    """The format called `name` in a directory, or None for a format of a later release."""
    return _BY_NAME.get(name)
