"""bf16 and E4M3FN conversions over all bit patterns, against torch's independent implementations."""

from __future__ import annotations

import numpy as np
import torch

from ninfer.artifact.floats import bf16_to_fp32, e4m3_to_fp32, fp32_to_bf16, fp32_to_e4m3

ALL_BF16 = np.arange(65536, dtype=np.uint32).astype(np.uint16)


def interesting_fp32() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Random bit patterns, and the neighbourhoods of every bf16 and E4M3 rounding tie."""
    rng = np.random.default_rng(0)
    anchors = (ALL_BF16.astype(np.uint32) << 16) | 0x8000
    near = np.concatenate([anchors - 1, anchors, anchors + 1, anchors & np.uint32(0xFFFF0000)])
    bits = np.concatenate([rng.integers(0, 2**32, 200_000, np.uint32), near])
    return bits.astype(np.uint32).view(np.float32)


def test_every_bf16_pattern_survives_widening_and_narrowing() -> None:
    wide = bf16_to_fp32(ALL_BF16)
    assert (wide.view(np.uint32) == ALL_BF16.astype(np.uint32) << 16).all()
    assert (fp32_to_bf16(wide) == ALL_BF16).all()


def test_narrowing_to_bf16_agrees_with_torch() -> None:
    values = interesting_fp32()
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    got = fp32_to_bf16(values)
    nan = np.isnan(values)
    assert (got[~nan] == expected[~nan]).all()
    assert np.isnan(bf16_to_fp32(got[nan])).all()


def test_every_e4m3_code_agrees_with_torch_and_survives() -> None:
    codes = np.arange(256, dtype=np.uint32).astype(np.uint8)
    expected = torch.from_numpy(codes).view(torch.float8_e4m3fn).to(torch.float32).numpy()
    got = e4m3_to_fp32(codes)
    assert np.array_equal(got, expected, equal_nan=True)
    assert (np.signbit(got) == (codes >= 128)).all()
    assert (fp32_to_e4m3(got) == codes).all()


def test_narrowing_to_e4m3_agrees_with_torch() -> None:
    values = interesting_fp32()
    fits = np.abs(values) <= 448
    expected = torch.from_numpy(values[fits]).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert (fp32_to_e4m3(values[fits]) == expected).all()


def test_e4m3_overflow_is_nan_beyond_the_tie() -> None:
    values = np.array([464.0, np.nextafter(np.float32(464), np.float32(500)), np.inf, -np.inf, np.nan], np.float32)
    assert fp32_to_e4m3(values).tolist()[:4] == [0x7E, 0x7F, 0x7F, 0xFF]
    assert fp32_to_e4m3(values)[4] & 0x7F == 0x7F


def test_any_shape_is_kept() -> None:
    scalar = np.array(1.5, np.float32)
    assert fp32_to_bf16(scalar).shape == ()
    assert fp32_to_e4m3(np.ones((2, 3, 4), np.float32)[:, ::2]).shape == (2, 2, 4)
