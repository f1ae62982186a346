"""Which memory a launch may touch, and tensors that end where the memory ends."""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
from collections.abc import Iterator, Mapping

import torch

_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device)


def tensors(owners: object) -> Iterator[torch.Tensor]:
    """Every tensor that is, or is held by, one of `owners`: in containers, dataclasses and other objects."""
    seen: set[int] = set()
    unseen = [owners]
    while unseen:
        it = unseen.pop()
        if isinstance(it, _PLAIN) or id(it) in seen:
            continue
        seen.add(id(it))
        if isinstance(it, torch.Tensor):
            yield it
        else:
            unseen += _parts(it)


def ranges(owners: object) -> list[tuple[int, int]]:
    """The addresses of all tensors of `owners`, as begin and end: in order, what overlaps or touches merged."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(_span(tensor) for tensor in tensors(owners) if tensor.numel()):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def guarded(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy whose last byte is the last before memory that nobody may touch: for fast mode, where an
    access beyond the end is found only if the processor refuses it.
    """
    data = tensor.contiguous()
    pages = -(-data.nbytes // mmap.PAGESIZE)
    area = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    whole = torch.frombuffer(area, dtype=torch.uint8)
    _forbid(whole.data_ptr() + pages * mmap.PAGESIZE)
    begin = pages * mmap.PAGESIZE - data.nbytes
    copy = whole[begin : begin + data.nbytes].view(data.dtype).view(data.shape)
    copy.copy_(data)
    return copy


def _forbid(page: int) -> None:
    from tests.kernels.emulator.modules import runtime

    assert runtime().emulator_forbid(ctypes.c_uint64(page)) == 0, "mprotect failed"


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = tensor.data_ptr()
    return begin, begin + (last + 1) * tensor.itemsize


def _parts(it: object) -> list[object]:
    if isinstance(it, Mapping):
        return list(it.values())
    if isinstance(it, (tuple, list, set, frozenset)):
        return list(it)
    if dataclasses.is_dataclass(it) and not isinstance(it, type):
        return [getattr(it, field.name) for field in dataclasses.fields(it)]
    slots = [name for kind in type(it).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*getattr(it, "__dict__", {}).values(), *(getattr(it, name) for name in slots if hasattr(it, name))]
