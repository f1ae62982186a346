"""KV codecs: how one key or value row of head_dim numbers is stored, encoded and decoded.

A row is one token's vector of one head. In fp32, with amax the row's or group's greatest magnitude:
- FP32, BF16: the numbers themselves (BF16 to nearest even).
- INT8: groups of 64; scale = fp16(amax / 127); code = round-to-even(x / scale) within +-127; value code * scale.
- FP8: scale = bf16(amax / 448) for the row; code = e4m3fn(x / scale) within +-448; value code * scale.
- NVFP4: groups of 16; scale = e4m3fn(amax / 6) within 448; code = e2m1(x / scale) within +-6; value code * scale.
A scale of zero stores codes of zero. Bytes per row of 256: 1024, 512, 264, 258, 144.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import torch

from ninfer.artifact.floats import e4m3_table

INT8_GROUP = 64
NVFP4_GROUP = 16
_E4M3_MAX = 448.0
_E2M1_MAX = 6.0
# Halfway points between the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6. A tie goes to the even code, so the points
# whose upper neighbour is even lie just below the tie.
_E2M1_STEPS = torch.from_numpy(
    np.nextafter(
        np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], dtype=np.float32),
        np.array([0.25, 0.0, 1.25, 0.0, 2.5, 0.0, 5.0], dtype=np.float32),
    )
)
_E4M3_VALUES = torch.from_numpy(e4m3_table())


class RowFormat(enum.Enum):
    """How the rows of one side, keys or values, are stored."""

    FP32 = "fp32"
    BF16 = "bf16"
    INT8 = "int8"
    FP8 = "fp8"
    NVFP4 = "nvfp4"


class KvCodec(enum.Enum):
    """The runtime's choice for a whole pool; K8V4 is FP8 keys with NVFP4 values."""

    FP32 = "fp32"
    BF16 = "bf16"
    INT8 = "int8"
    FP8 = "fp8"
    NVFP4 = "nvfp4"
    K8V4 = "k8v4"

    @property
    def key_format(self) -> RowFormat:
        """The format of key rows."""
        return RowFormat.FP8 if self is KvCodec.K8V4 else RowFormat(self.value)

    @property
    def value_format(self) -> RowFormat:
        """The format of value rows."""
        return RowFormat.NVFP4 if self is KvCodec.K8V4 else RowFormat(self.value)


@dataclass(frozen=True, slots=True)
class RowLayout:
    """What one row of a format takes: `codes` words and `scales` words (0 for none) of these dtypes."""

    codes: int
    code_dtype: torch.dtype
    scales: int
    scale_dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of one row, codes and scales."""
        return self.codes * self.code_dtype.itemsize + self.scales * self.scale_dtype.itemsize


def row_layout(row_format: RowFormat, head_dim: int) -> RowLayout:
    """The layout of rows of `head_dim` numbers, a multiple of 64."""
    return {
        RowFormat.FP32: RowLayout(head_dim, torch.float32, 0, torch.uint8),
        RowFormat.BF16: RowLayout(head_dim, torch.bfloat16, 0, torch.uint8),
        RowFormat.INT8: RowLayout(head_dim, torch.int8, head_dim // INT8_GROUP, torch.float16),
        RowFormat.FP8: RowLayout(head_dim, torch.uint8, 1, torch.bfloat16),
        RowFormat.NVFP4: RowLayout(head_dim // 2, torch.uint8, head_dim // NVFP4_GROUP, torch.uint8),
    }[row_format]


def encode(row_format: RowFormat, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows fp32 [..., D] to (codes [..., codes], scales [..., scales]) of the format's layout."""
    if row_format is RowFormat.FP32:
        return rows, rows.new_empty((*rows.shape[:-1], 0), dtype=torch.uint8)
    if row_format is RowFormat.BF16:
        return rows.bfloat16(), rows.new_empty((*rows.shape[:-1], 0), dtype=torch.uint8)
    if row_format is RowFormat.INT8:
        return _encode_int8(rows)
    return _encode_fp8(rows) if row_format is RowFormat.FP8 else _encode_nvfp4(rows)


def decode(row_format: RowFormat, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Codes [..., codes] and scales [..., scales] to fp32 [..., D]; exact but for the product with the scale."""
    if row_format in (RowFormat.FP32, RowFormat.BF16):
        return codes.float()
    if row_format is RowFormat.INT8:
        return _groups(codes.float(), INT8_GROUP).mul_(scales.float().unsqueeze(-1)).flatten(-2)
    if row_format is RowFormat.FP8:
        return _e4m3_magnified(codes).mul_(scales.float() * 2.0**8)
    grouped = _groups(_e2m1_magnified(codes), NVFP4_GROUP)
    return grouped.mul_((_E4M3_VALUES[scales.int()] * 2.0**14).unsqueeze(-1)).flatten(-2)


def _encode_int8(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    groups = _groups(rows, INT8_GROUP)
    scales = (groups.abs().amax(-1) / 127.0).clamp_max(65504.0).half()
    quotients = _scaled(groups, scales.float())
    return quotients.round_().clamp_(-127, 127).to(torch.int8).flatten(-2), scales


def _encode_fp8(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scales = (rows.abs().amax(-1, keepdim=True) / _E4M3_MAX).bfloat16()
    codes = _e4m3(_scaled(rows.unsqueeze(-2), scales.float()).squeeze(-2))
    return codes, scales


def _encode_nvfp4(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    groups = _groups(rows, NVFP4_GROUP)
    scales = _e4m3(groups.abs().amax(-1) / _E2M1_MAX)
    quotients = _scaled(groups, _E4M3_VALUES[scales.int()]).flatten(-2)
    magnitudes = torch.bucketize(quotients.abs().clamp_max_(_E2M1_MAX), _E2M1_STEPS).to(torch.uint8)
    nibbles = magnitudes | (quotients.signbit().to(torch.uint8) << 3)
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4), scales


def _groups(rows: torch.Tensor, size: int) -> torch.Tensor:
    return rows.view(*rows.shape[:-1], -1, size)


def _scaled(groups: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """groups [..., G, n] / scales [..., G]; zeros where the scale is zero, NaN where it is NaN."""
    divisors = scales.unsqueeze(-1)
    return (groups / divisors).masked_fill_(divisors == 0, 0.0)


def _e4m3(values: torch.Tensor) -> torch.Tensor:
    return values.clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def _e4m3_magnified(codes: torch.Tensor) -> torch.Tensor:
    """E4M3FN codes as fp32 values times 2**-8.

    Exponent and mantissa are moved to where fp16 keeps its own (bias 15 for 7, hence the 2**-8), because torch
    widens fp16 many times faster than float8. A NaN code would read as +-480, but encode stores NaN in the scale.
    """
    bits = codes.view(torch.int8).to(torch.int16).bitwise_left_shift_(7).bitwise_and_(~0x4000)
    return bits.view(torch.float16).float()


def _e2m1_magnified(codes: torch.Tensor) -> torch.Tensor:
    """Pairs of E2M1 codes (first in the low nibble) as fp32 values times 2**-14, by the same way through fp16."""
    words = codes.to(torch.int16)
    pairs = torch.stack((words, words >> 4), dim=-1).flatten(-2)
    bits = ((pairs & 7) << 9).bitwise_or_((pairs & 8) << 12)
    return bits.view(torch.float16).float()
