"""The device: what it is, how fast it copies memory, and how fast its tensor cores multiply."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpu.timing import best
from ninfer.kernels import jit
from ninfer.kernels.placement import Cuda

_COPIED = 2 << 30
_MATRIX = 8192


@dataclass(frozen=True, slots=True)
class Facts:
    """`bandwidth` in bytes per second, read and written; `peak` in bf16 operations per second. Both measured."""

    name: str
    arch: int
    multiprocessors: int
    memory: int
    torch: str
    bandwidth: float
    peak: float

    def floor(self, nbytes: int, flops: int) -> float:
        """Seconds that so many bytes and operations take at least."""
        return max(nbytes / self.bandwidth, flops / self.peak)


def measure(placement: Cuda, small: bool) -> Facts:
    """Of the device in use, in its memory; `small` keeps what is measured small, for an emulation."""
    facts = jit.device().facts
    real = placement.place.type == "cuda"
    with torch.device(placement.place):
        bandwidth, peak = _bandwidth(_COPIED >> 8 if small else _COPIED), _peak(_MATRIX >> 5 if small else _MATRIX)
    return Facts(
        name=torch.cuda.get_device_name(placement.place) if real else "emulated",
        arch=facts.arch,
        multiprocessors=facts.multiprocessors,
        memory=torch.cuda.get_device_properties(placement.place).total_memory if real else 0,
        torch=torch.__version__,
        bandwidth=bandwidth,
        peak=peak,
    )


def _bandwidth(nbytes: int) -> float:
    source = torch.zeros(nbytes, dtype=torch.uint8)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * nbytes / best(lambda: _copy(source, target))


def _peak(size: int) -> float:
    a, b = (torch.randn(size, size, dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    torch.mm(a, b, out=out)
    return 2 * size**3 / best(lambda: _multiply(a, b, out))


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source)


def _multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    torch.mm(a, b, out=out)
