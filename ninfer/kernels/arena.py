"""Scratch memory for one forward pass: taken in order, given back by scope, never allocated in the steady state."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ninfer.kernels.placement import HOST, Placement

ALIGN = 256
"""Every tensor takes a multiple of so many bytes."""


class Arena:
    """A bump allocator over one backing buffer at a placement.

    A pass that needs more than the backing gets ordinary tensors for the excess, and when it ends the backing grows to
    what it has held: after the largest pass has run once, no pass allocates. Contents are undefined when taken.
    """

    def __init__(self, placement: Placement = HOST, reserved: int = 0) -> None:
        """`reserved` bytes are taken at once."""
        self._placement = placement
        self._backing = placement.empty(reserved, dtype=torch.uint8)
        self._used = 0
        self._peak = 0
        self._depth = 0

    @property
    def peak_bytes(self) -> int:
        """The most bytes any pass has held at once."""
        return self._peak

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Everything taken inside is given back at the end; scopes nest."""
        mark, self._depth = self._used, self._depth + 1
        try:
            yield
        finally:
            self._used, self._depth = mark, self._depth - 1
            if self._depth == 0 and self._peak > self._backing.numel():
                self._backing = self._placement.empty(self._peak, dtype=torch.uint8)

    def take(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A contiguous tensor of this shape, valid until the enclosing scope ends."""
        assert self._depth > 0, "arena memory is taken inside a scope"
        size = math.prod(shape) * dtype.itemsize
        begin = self._used
        self._used = begin + -(-size // ALIGN) * ALIGN
        self._peak = max(self._peak, self._used)
        if begin + size > self._backing.numel():
            return self._placement.empty(*shape, dtype=dtype)
        return self._backing[begin : begin + size].view(dtype).view(shape)
