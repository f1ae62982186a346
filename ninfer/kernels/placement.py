"""Where a model and its sequences live: main memory, or a CUDA device. Chosen once, passed down, asked for all memory.

A placement is the only thing that knows how memory is obtained and how bytes travel to it; whoever holds tensors of it
works alike on both.
"""

from __future__ import annotations

import math
import mmap
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ninfer.errors import ConfigError, CudaError
from ninfer.kernels import jit
from ninfer.kernels.memory import lazy_zeros
from ninfer.kernels.routes import DeviceKind

STAGE_BYTES = 32 << 20
"""Size of each of the two pinned buffers through which weights travel."""


class Stored(Protocol):
    """An encoded object that lies in a file."""

    @property
    def size(self) -> int:
        """Its bytes."""

    def whole(self) -> NDArray[np.uint8]:
        """All of it, mapped, uint8 [size]."""

    def part(self, begin: int, end: int) -> NDArray[np.uint8]:
        """Bytes [begin, end), mapped."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """Equal bytes at the host and at the placement: what the host writes is sent by `push`. The same where that is one.

    Attributes:
        host: uint8 [n], for the host to write.
        there: uint8 [n], for kernels to read. Its address is fixed.
    """

    host: torch.Tensor
    there: torch.Tensor

    def push(self) -> None:
        """Send all bytes, in the order of the current stream. They may be written again when kernels have read them."""
        if self.there is not self.host:
            self.there.copy_(self.host, non_blocking=True)


class Placement(Protocol):
    """Where tensors live. Contents of `empty`, `pinned` and mirrors are undefined."""

    @property
    def kind(self) -> DeviceKind: ...

    @property
    def name(self) -> str:
        """As `--device` spells it."""

    def free_bytes(self) -> int | None:
        """Memory that can still be taken; None where nobody counts it."""

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor: ...

    def zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor: ...

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        """A host tensor's values; the tensor itself where it lives here already."""

    def uploading(self) -> AbstractContextManager[Callable[[Stored], torch.Tensor]]:
        """Inside the block, brings stored objects here, uint8 [size] each. Read-only, at multiples of 256."""

    def pinned(self, *shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        """A host tensor that can be copied to and from here without blocking the host."""

    def mirror(self, nbytes: int) -> Mirror: ...

    def transfers(self) -> AbstractContextManager[None]:
        """Copies made inside the block do not block the host. They see all work before, later work sees them."""

    def synchronise(self) -> None:
        """Wait for all work.

        Raises:
            RuntimeError: some of it failed; nothing that lives here can be trusted any more.
        """


@dataclass(frozen=True, slots=True)
class Host:
    """Main memory, computed on by the CPU. Stored objects are used where they are mapped."""

    @property
    def kind(self) -> DeviceKind:
        return DeviceKind.CPU

    @property
    def name(self) -> str:
        return "cpu"

    def free_bytes(self) -> int | None:
        return None

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    def zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return lazy_zeros(*shape, dtype=dtype)

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        return host

    @contextmanager
    def uploading(self) -> Iterator[Callable[[Stored], torch.Tensor]]:
        yield lambda stored: borrow(stored.whole())

    def pinned(self, *shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    def mirror(self, nbytes: int) -> Mirror:
        both = torch.zeros(nbytes, dtype=torch.uint8)
        return Mirror(both, both)

    def transfers(self) -> AbstractContextManager[None]:
        return nullcontext()

    def synchronise(self) -> None:
        pass


HOST = Host()


@dataclass(frozen=True, slots=True)
class Cuda:
    """Memory that CUDA kernels compute on: a GPU's, or the host's where tests emulate one.

    Attributes:
        place: where torch puts tensors.
        side: the stream of transfers; None where there are no streams.
    """

    place: torch.device
    side: torch.cuda.Stream | None

    @staticmethod
    def at(place: torch.device) -> Cuda:
        """The placement whose tensors lie on `place`."""
        return Cuda(place, torch.cuda.Stream(place) if place.type == "cuda" else None)  # type: ignore[no-untyped-call]

    @property
    def kind(self) -> DeviceKind:
        return DeviceKind.CUDA

    @property
    def name(self) -> str:
        return f"cuda:{self.place.index or 0}"

    def free_bytes(self) -> int | None:
        if self.side is None:
            return None
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.place)[0]

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self.place)

    def zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.place)

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        source = host if self.side is None else host.pin_memory()
        return torch.empty_like(source, device=self.place).copy_(source, non_blocking=True)

    @contextmanager
    def uploading(self) -> Iterator[Callable[[Stored], torch.Tensor]]:
        stage = _Stage(self)
        try:
            yield stage.bring
        finally:
            self.synchronise()  # before the buffers are gone

    def pinned(self, *shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        """Registered where it lies, in pages of its own: torch's pinned memory is rounded up to a power of two."""
        size = math.prod(shape) * dtype.itemsize
        whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        backing = np.empty(whole + mmap.PAGESIZE, np.uint8)
        begin = -backing.ctypes.data % mmap.PAGESIZE
        if self.side is not None and size:
            _register(backing, begin, whole)
        return torch.from_numpy(backing[begin : begin + size]).view(dtype).view(shape)

    def mirror(self, nbytes: int) -> Mirror:
        return Mirror(self.pinned(nbytes), self.empty(nbytes, dtype=torch.uint8))

    @contextmanager
    def transfers(self) -> Iterator[None]:
        """On a stream of their own, which waits for the current one and is waited for by it; never by the host."""
        if self.side is None:
            yield
            return
        current = torch.cuda.current_stream(self.place)
        self.side.wait_stream(current)
        with torch.cuda.stream(self.side):
            yield
        current.wait_stream(self.side)

    def synchronise(self) -> None:
        if self.side is not None:
            torch.cuda.synchronize(self.place)


def choose(device: str) -> Placement:
    """The placement that `--device` names: `cpu`, `cuda`, `cuda:INDEX`, or `auto` for CUDA where it can be used.

    Raises:
        CudaError: CUDA was asked for and cannot be used here; saying what to install.
        ConfigError: there is no device of that number, or this process uses another one already.
    """
    if device == "cpu":
        return HOST
    try:
        return _cuda(device)
    except CudaError:
        if device != "auto":
            raise
        return HOST


def _cuda(device: str) -> Cuda:
    """The device that the kernels are compiled for, where its memory is."""
    number = device.partition(":")[2]
    if number and torch.cuda.is_available():
        if int(number) >= torch.cuda.device_count():
            raise ConfigError(f"--device {device}: CUDA devices here are numbered 0 to {torch.cuda.device_count() - 1}")
        torch.cuda.set_device(int(number))
    opened = jit.device()
    if opened.holds(torch.empty(0)):
        return Cuda.at(torch.device("cpu"))
    place = torch.device("cuda", torch.cuda.current_device())
    if not opened.holds(torch.empty(0, device=place)):
        raise ConfigError(f"--device {device}: this process already computes on another GPU; start a process for each")
    return Cuda.at(place)


class _Stage:
    """Two pinned buffers in turn: one is filled from the file while the other is on its way."""

    def __init__(self, to: Cuda) -> None:
        self._to = to
        self._buffers = [to.pinned(STAGE_BYTES) for _ in range(2)]
        self._sent: list[torch.cuda.Event | None] = [None, None]

    def bring(self, stored: Stored) -> torch.Tensor:
        """The bytes of one object, read by ranges."""
        out = self._to.empty(stored.size, dtype=torch.uint8)
        for begin in range(0, stored.size, STAGE_BYTES):
            end = min(begin + STAGE_BYTES, stored.size)
            self._send(borrow(stored.part(begin, end)), out[begin:end])
        return out

    def _send(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self._buffers.reverse()
        self._sent.reverse()
        if self._sent[0] is not None:
            self._sent[0].synchronize()
        staged = self._buffers[0][: source.numel()]
        staged.copy_(source)
        target.copy_(staged, non_blocking=True)
        if self._to.side is not None:
            self._sent[0] = torch.cuda.current_stream(self._to.place).record_event()


def borrow(data: NDArray[np.uint8]) -> torch.Tensor:
    """The same memory as a tensor. It may be mapped read-only, which torch warns of; ops only read weights."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(data)


def _register(owner: NDArray[np.uint8], begin: int, nbytes: int) -> None:
    """Pin whole pages of an array for as long as it lives. CUDA may refuse a page that is registered already."""
    runtime, address = torch.cuda.cudart(), owner.ctypes.data + begin  # type: ignore[no-untyped-call]
    torch.cuda.check_error(runtime.cudaHostRegister(address, nbytes, 0))
    weakref.finalize(owner, runtime.cudaHostUnregister, address).atexit = False
