"""The machine: its name, what it can do, and how fast it reads memory."""

from __future__ import annotations

import mmap
import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

X86_FLAGS = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")
ARM_FLAGS = ("asimddp", "i8mm", "bf16", "sve")
BUFFER_BYTES = 1 << 29
READS = 12


@dataclass(frozen=True, slots=True)
class Machine:
    """`isa` names the flags that matter to kernels; `load` is how many other programs ran in the last minute."""

    cpu: str
    isa: tuple[str, ...]
    load: float


def describe_machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> Machine:
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    return Machine(_field(text, "model name") or platform.processor(), isa_flags(text), os.getloadavg()[0])


def isa_flags(cpuinfo: str) -> tuple[str, ...]:
    """The flags of `/proc/cpuinfo` (`flags` on x86, `Features` on Arm) that matter to kernels."""
    present = (_field(cpuinfo, "flags") or _field(cpuinfo, "Features")).split()
    return tuple(flag for flag in (*X86_FLAGS, *ARM_FLAGS) if flag in present)


def _field(cpuinfo: str, name: str) -> str:
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")


class ReadBandwidth:
    """Reads a buffer far larger than the caches, a slice per thread, in bytes per second; the best of several reads."""

    def __init__(self, threads: int, size: int = BUFFER_BYTES) -> None:
        self._threads = threads
        self._buffer = np.ones(size // 8, np.int64)
        self._pool = ThreadPoolExecutor(threads)

    def measure(self, threads: int | None = None) -> float:
        """By `threads` threads, all of them unless given."""
        slices = np.array_split(self._buffer, threads or self._threads)
        return self._buffer.nbytes / min(self._seconds(slices) for _ in range(READS))

    def _seconds(self, slices: list[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> float:
        """NumPy gives up the interpreter lock while it reduces, so that the slices are read at the same time."""
        started = time.perf_counter()
        list(self._pool.map(np.bitwise_or.reduce, slices))
        return time.perf_counter() - started


def warm_page_cache(*files: Path) -> None:
    """Bring files into memory as a program that maps them would, so that neither program meets a cold disk.

    What an earlier write left there goes first. Both programs' files then lie in huge pages, where the system has them
    for files; otherwise whoever wrote a file would decide how fast its reader is.
    """
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        mapped.madvise(mmap.MADV_HUGEPAGE)
        np.frombuffer(mapped, np.uint8)[:: mmap.PAGESIZE].sum()
