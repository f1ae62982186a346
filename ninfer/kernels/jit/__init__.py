"""CUDA kernels: compiled at run time for the device at hand, launched on its current stream.

A kernel's source lies in its op's folder, as a `.cu` file that includes `include/ninfer.cuh` and nothing else of ours.
An op's route module declares the source with its kernels and launches them:

    _SOURCE = CudaSource(Path(__file__).with_name("rmsnorm.cu"), {"rmsnorm": _Args})

    def rmsnorm(x, weight, eps, offset, out):
        args = _Args(x.data_ptr(), ..., out.data_ptr())
        _SOURCE.launch("rmsnorm", Launch(grid=(rows, 1, 1), block=(256, 1, 1)), args, x, weight, out)

Every kernel takes one argument, its Args by value. What is fixed at compile time travels as macros, each combination
being a module of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import torch

from ninfer.kernels.jit import catalogue, driver
from ninfer.kernels.jit.recording import Recording
from ninfer.kernels.jit.workspaces import Workspaces

__all__ = [
    "CudaSource",
    "Device",
    "DeviceFacts",
    "Launch",
    "Recording",
    "device",
    "on_device",
    "record",
    "using",
    "warm",
    "workspace",
]


@dataclass(frozen=True, slots=True)
class Launch:
    """How one kernel is run.

    Attributes:
        grid, block: blocks and threads per block, in x, y and z.
        shared: bytes of dynamic shared memory per block.
        macros: what is fixed at compile time: names that begin with NINFER_, and integers.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0
    macros: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class CudaSource:
    """One `.cu` file.

    Attributes:
        path: the file.
        kernels: name there -> the ctypes mirror of its Args.
    """

    path: Path
    kernels: Mapping[str, type[ctypes.Structure]]

    def launch(self, kernel: str, how: Launch, args: ctypes.Structure, *keep: object) -> None:
        """Run one kernel on the device at hand, in the order of its current stream. An empty grid runs nothing.

        Args:
            keep: the owners of all device memory that `args` points to. Tensors, or objects that hold tensors.

        Raises:
            CudaError: the source cannot be compiled, or the launch fails.
        """
        assert isinstance(args, self.kernels[kernel]), f"{kernel} takes {self.kernels[kernel].__name__}"
        if 0 not in how.grid:
            device().launch(self, kernel, how, args, keep)


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What plans look at.

    Attributes:
        arch: compute capability times ten: 80, 86, 89, 90, 100, 120.
        multiprocessors: streaming multiprocessors.
        shared_bytes: the most dynamic shared memory that a block may have.
    """

    arch: int
    multiprocessors: int
    shared_bytes: int


class Device(Protocol):
    """What compiles and runs kernels: a GPU, or in tests an emulation of one."""

    @property
    def facts(self) -> DeviceFacts: ...

    @property
    def recording(self) -> bool:
        """Whether launches are being recorded now, and not run."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether kernels of this device can reach the tensor's memory."""

    def launch(
        self, source: CudaSource, kernel: str, how: Launch, args: ctypes.Structure, keep: tuple[object, ...]
    ) -> None: ...

    def record(self, work: Callable[[], None]) -> Recording: ...

    def prepare(self, source: CudaSource, macros: Mapping[str, int]) -> None:
        """Compile a source before its first launch. Threads may do so at the same time."""


class _Active:
    """The device in use and its scratch memory; a GPU unless a test says otherwise. One for all threads."""

    device: Device | None = None
    workspaces = Workspaces()


def device() -> Device:
    """The device that kernels run on.

    Raises:
        CudaError: there is none; saying what to install.
    """
    if _Active.device is None:
        _Active.device = driver.open_gpu()
    return _Active.device


def on_device(tensor: torch.Tensor) -> bool:
    """Whether ops on this tensor are run by CUDA kernels."""
    return tensor.is_cuda or (_Active.device is not None and _Active.device.holds(tensor))


def workspace(purpose: str, nbytes: int, like: torch.Tensor) -> torch.Tensor:
    """Scratch memory for one launch, or for launches in a row, on the device of `like`.

    The next call with the same purpose gets the same memory. It moves only when it has to grow. Whoever launches a
    kernel on it passes it on as `keep`.

    Returns:
        uint8 [nbytes] of unknown content.

    Raises:
        CudaError: it would have to grow while launches are recorded.
    """
    return _Active.workspaces.take(purpose, nbytes, like.device, device().recording)


def record(work: Callable[[], None]) -> Recording:
    """Do the work once, then record its launches: a CUDA graph.

    The first time is for real: it compiles kernels, grows workspaces, and its results stand. The second time records
    and runs nothing. So `work` launches kernels and does nothing else: it allocates nothing and reads nothing back.
    Tensors that it uses stay alive with the recording, at their addresses.

    Raises:
        CudaError: a kernel cannot be compiled or launched, or the work cannot be recorded.
    """
    return device().record(work)


def warm(progress: Callable[[int, int], None] | None = None) -> None:
    """Compile every kernel that the official models use, in all threads of the machine, and load it.

    Args:
        progress: is told how many modules are done, of how many.

    Raises:
        CudaError: one cannot be compiled.
    """
    chosen, modules = device(), catalogue.warm()
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(chosen.prepare, source, macros) for source, macros in modules]
        for done, future in enumerate(as_completed(waiting), 1):
            future.result()
            if progress is not None:
                progress(done, len(waiting))


@contextmanager
def using(chosen: Device) -> Iterator[None]:
    """Run all kernels on `chosen` inside the block, in every thread, with workspaces of its own. Blocks may nest."""
    before = _Active.device, _Active.workspaces
    _Active.device, _Active.workspaces = chosen, Workspaces()
    try:
        yield
    finally:
        _Active.device, _Active.workspaces = before
