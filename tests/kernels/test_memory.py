"""Pools that occupy nothing until they are used."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

from ninfer.kernels.memory import lazy_zeros

_STATM = Path("/proc/self/statm")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.uint8])
@pytest.mark.parametrize("shape", [(), (0, 3), (5, 0), (7,), (3, 5, 11)])
def test_zeros_of_any_shape_and_dtype(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    made = lazy_zeros(*shape, dtype=dtype)
    assert made.dtype is dtype
    assert made.is_contiguous()
    assert made.data_ptr() % 64 == 0
    torch.testing.assert_close(made, torch.zeros(shape, dtype=dtype), rtol=0, atol=0)


def test_it_may_be_written() -> None:
    made = lazy_zeros(1 << 20)
    made[12345] = 3.5
    assert made.sum() == 3.5


@pytest.mark.skipif(not _STATM.exists(), reason="this system does not tell how much memory is resident")
def test_untouched_memory_is_not_occupied() -> None:
    before = resident_bytes()
    made = lazy_zeros(1 << 29, dtype=torch.uint8)
    assert resident_bytes() - before < 1 << 27
    assert made[1 << 28] == 0


def resident_bytes() -> int:
    return int(_STATM.read_text().split()[1]) * resource.getpagesize()
