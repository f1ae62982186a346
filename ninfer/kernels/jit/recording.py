"""Launches kept to be run again: a CUDA graph's contract, for devices that have no graphs."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ninfer.kernels.jit import CudaSource, Launch


class Recording(Protocol):
    """Kernels recorded with their arguments. What changes between runs, they read from device memory."""

    def run(self) -> None:
        """Launch all of them, in order, on the current stream."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One launch. `args` is a copy, and `keep` keeps alive what it points to."""

    source: CudaSource
    kernel: str
    how: Launch
    args: ctypes.Structure
    keep: tuple[object, ...]


class RecordingDevice(ABC):
    """A base for devices that run a launch at once in `run_launch`: adds `launch`, `record` and `recording`.

    As with a CUDA graph, what is recorded is not run, and what is done by other means than launches is not recorded.
    """

    _tape: list[Recorded] | None = None

    @property
    def recording(self) -> bool:
        """Whether launches are being recorded now."""
        return self._tape is not None

    @abstractmethod
    def run_launch(
        self, source: CudaSource, kernel: str, how: Launch, args: ctypes.Structure, keep: tuple[object, ...]
    ) -> None:
        """Run one kernel to its end."""

    def launch(
        self, source: CudaSource, kernel: str, how: Launch, args: ctypes.Structure, keep: tuple[object, ...]
    ) -> None:
        """Run one kernel, or while recording keep it for later."""
        if self._tape is None:
            self.run_launch(source, kernel, how, args, keep)
        else:
            self._tape.append(Recorded(source, kernel, how, type(args).from_buffer_copy(args), keep))

    def record(self, work: Callable[[], None]) -> Recording:
        """Do the work once, then record its launches without running them."""
        assert self._tape is None, "recordings do not nest"
        work()
        tape = self._tape = []
        try:
            work()
        finally:
            self._tape = None
        return _Tape(self, tuple(tape))


@dataclass(frozen=True, slots=True)
class _Tape:
    device: RecordingDevice
    launches: tuple[Recorded, ...]

    def run(self) -> None:
        for it in self.launches:
            self.device.run_launch(it.source, it.kernel, it.how, it.args, it.keep)
