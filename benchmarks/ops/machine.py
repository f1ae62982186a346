"""Floors of this machine, measured by compiled kernels on as many threads as the ops get."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ninfer.kernels.native import Kernel, body_for
from ninfer.kernels.routes import Route

_SOURCE = Path(__file__).with_name("machine.cpp")
_FLOATS = 1 << 26
_CHAINS = 12
_ROUNDS = 300_000


class _Args(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("out", ctypes.c_void_p), ("count", ctypes.c_int64))


_READ = Kernel(_SOURCE, "read_memory", _Args)
_FMA = Kernel(_SOURCE, "multiply_add", _Args)


@dataclass(frozen=True, slots=True)
class Machine:
    """Bytes read, and fp32 operations, per second."""

    bandwidth: float
    peak: float

    def floor(self, nbytes: int, flops: int) -> float:
        """Seconds that so many bytes and operations take at least."""
        return max(nbytes / self.bandwidth, flops / self.peak)


def measure() -> Machine:
    """Best of many.

    Raises:
        RuntimeError: kernels cannot be compiled here.
    """
    body = body_for(_SOURCE)
    if body is None:
        raise RuntimeError("no compiler, no kernels to time")
    lanes = 16 if body is Route.CPU_AVX512 else 8
    data, out = torch.full((_FLOATS,), 0.5), torch.zeros(torch.get_num_threads())
    read = _best(lambda: _READ.launch(body, _Args(data.data_ptr(), out.data_ptr(), _FLOATS), data, out))
    fused = _best(lambda: _FMA.launch(body, _Args(data.data_ptr(), out.data_ptr(), _ROUNDS), data, out))
    flops = 2 * _CHAINS * lanes * _ROUNDS * torch.get_num_threads()
    return Machine(_FLOATS * 4 / read, flops / fused)


def _best(call: Callable[[], None], repeats: int = 50) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)
