"""Integer codes to and from the bytes of the row-split planes and of NVFP4: bit positions only.

Codes are int8 [rows, K_pad] in two's complement; scales are raw fp16 bit patterns. Source: artifact v3,
section 4. Words are assembled as little-endian integers so that one vector operation moves a whole group.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact.floats import U8
from ninfer.artifact.formats import Format, FormatSpec

I8 = NDArray[np.int8]


def pack_codes(fmt: Format, codes: I8) -> tuple[U8, U8 | None]:
    """Base and high-bit planes of grouped codes.

    Args:
        codes: int8 [rows, K_pad], K_pad a multiple of 128, C-contiguous.

    Returns:
        uint8 [rows, base bytes], and uint8 [rows, high bytes] or None when the format has no high plane.
    """
    lanes, spec = codes.view(np.uint8), fmt.spec
    if spec.base_bits == 8:
        return lanes.copy(), None
    if spec.base_bits == 2:
        return _pack_two_bits(lanes), None
    base = pack_nibbles(lanes)
    if spec.high_bits == 0:
        return base, None
    if spec.high_bits == 1:
        return base, np.packbits(lanes & np.uint8(16), axis=-1, bitorder="little")
    return base, _pack_two_bits(np.right_shift(lanes, 4, dtype=np.uint8))


def unpack_codes(fmt: Format, base: U8, high: U8 | None) -> I8:
    """Inverse of `pack_codes`: int8 [rows, K_pad] from planes [rows, bytes] (illegal codes included)."""
    spec = fmt.spec
    if spec.base_bits == 8:
        return base.view(np.int8)
    if spec.base_bits == 2:
        return _sign_extend(_unpack_two_bits(base), spec)
    lanes = unpack_nibbles(base)
    if spec.high_bits:
        assert high is not None
        top = np.unpackbits(high, axis=-1, bitorder="little") if spec.high_bits == 1 else _unpack_two_bits(high)
        np.left_shift(top, 4, out=top)
        np.bitwise_or(lanes, top, out=lanes)
    return _sign_extend(lanes, spec)


def pack_nibbles(lanes: U8) -> U8:
    """Low nibbles of uint8 [..., 2n] to bytes [..., n]: lane 2j in bits 0-3, lane 2j+1 in bits 4-7."""
    pairs = np.ascontiguousarray(lanes).view("<u2")
    return ((pairs & np.uint16(0x0F)) | ((pairs >> 4) & np.uint16(0xF0))).astype(np.uint8)


def unpack_nibbles(data: U8) -> U8:
    """Inverse of `pack_nibbles`: uint8 [..., n] to unsigned nibbles uint8 [..., 2n]."""
    wide = data.astype("<u2")
    wide |= wide << 4
    wide &= np.uint16(0x0F0F)
    return wide.view(np.uint8)


def _pack_two_bits(lanes: U8) -> U8:
    """Low two bits of [..., 4n] to bytes [..., n], lowest lane in the lowest bits."""
    quads = np.ascontiguousarray(lanes).view("<u4") & np.uint32(0x03030303)
    return (quads | (quads >> 6) | (quads >> 12) | (quads >> 18)).astype(np.uint8)


def _unpack_two_bits(data: U8) -> U8:
    wide = data.astype("<u4")
    wide |= (wide << 6) | (wide << 12) | (wide << 18)
    wide &= np.uint32(0x03030303)
    return wide.view(np.uint8)


def _sign_extend(lanes: U8, spec: FormatSpec) -> I8:
    sign = np.uint8(1 << (spec.code_bits - 1))
    lanes ^= sign
    lanes -= sign  # wraps modulo 256, which is two's complement
    return lanes.view(np.int8)


def swizzle_nvfp4_scales(scales: U8) -> U8:
    """Block scales uint8 [N, K/16] to the flat order of `block_scale_k16_m128x4_v1`."""
    rows, groups = scales.shape
    tiles = scales.reshape(rows // 128, 4, 32, groups // 4, 4)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(-1)


def unswizzle_nvfp4_scales(data: U8, groups: int) -> U8:
    """Inverse of `swizzle_nvfp4_scales` for whole 128-row tiles: flat bytes to uint8 [N, groups]."""
    tiles = data.reshape(-1, groups // 4, 32, 4, 4)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(-1, groups)
