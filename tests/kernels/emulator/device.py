"""The emulated device."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch

from ninfer.kernels.jit import CudaSource, DeviceFacts, Launch
from ninfer.kernels.jit.recording import RecordingDevice
from tests.kernels.emulator import memory, places
from tests.kernels.emulator.modules import Module, Range, Segments, load, runtime

Mode = Literal["fast", "check"]
Order = Literal["fifo", "lifo", "random", "sticky"]
CpAsync = Literal["late", "eager"]
_ORDERS: tuple[Order, ...] = ("fifo", "lifo", "random", "sticky")
_FRAMES = 12
_MOST_THREADS = 1024
_LARGEST_GRID = (2**31 - 1, 65535, 65535)
_LARGEST_BLOCK = (1024, 1024, 64)
_FACTS = DeviceFacts(arch=80, multiprocessors=4, shared_bytes=100 * 1024)


class EmulatorError(AssertionError):
    """A kernel did what it must not; says which kernel, block and thread, and where in the source."""


class _Spec(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("args", ctypes.c_void_p),
        ("module", ctypes.POINTER(Segments)),
        ("legal", ctypes.POINTER(Range)),
        ("legal_count", ctypes.c_uint64),
        ("fixed", Range),
        ("seed", ctypes.c_uint64),
        ("seconds", ctypes.c_double),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_bytes", ctypes.c_uint32),
        ("order", ctypes.c_int32),
        ("eager", ctypes.c_int32),
        ("check", ctypes.c_int32),
    )


class _Group(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_uint32),
        ("first", ctypes.c_uint32),
        ("mask", ctypes.c_uint32),
        ("name", ctypes.c_char * 28),
        ("frames", ctypes.c_uint64 * _FRAMES),
    )


class _Fault(ctypes.Structure):
    """What went wrong; mirrors the runtime's."""

    _fields_ = (
        ("text", ctypes.c_char * 512),
        ("block", ctypes.c_uint32 * 3),
        ("thread", ctypes.c_uint32 * 3),
        ("placed", ctypes.c_int32),
        ("frames", ctypes.c_uint64 * _FRAMES),
        ("other", ctypes.c_uint64),
        ("waiting", _Group * 4),
    )


class Emulator(RecordingDevice):
    """Runs kernels on the CPU, on ordinary CPU tensors.

    Args:
        mode: "check" watches every access to memory; "fast" only what costs nothing.
        order: which threads of a block run first, and which blocks.
        cp_async: when asynchronous copies happen: as late as they may, or at once.
        seed: of the random orders, and of what shared memory holds before it is written.
        seconds: of processor time that one launch may take.
        facts: what plans are told of the device.
    """

    _one_launch = threading.Lock()  # the runtime library has one set of fibres
    _modules: ClassVar[dict[object, Module]] = {}

    def __init__(
        self,
        mode: Mode = "fast",
        order: Order = "fifo",
        cp_async: CpAsync = "late",
        seed: int = 0,
        seconds: float = 120.0,
        facts: DeviceFacts = _FACTS,
    ) -> None:
        assert mode in ("fast", "check"), f"no mode {mode}"
        assert cp_async in ("late", "eager"), f"no cp_async {cp_async}"
        self._check, self._order, self._eager = mode == "check", _ORDERS.index(order), cp_async == "eager"
        self._seed, self._seconds, self._facts = seed, seconds, facts

    @property
    def facts(self) -> DeviceFacts:
        """What was given."""
        return self._facts

    def holds(self, tensor: torch.Tensor) -> bool:
        """True of CPU tensors."""
        return tensor.device.type == "cpu"

    def prepare(self, source: CudaSource, macros: Mapping[str, int]) -> None:
        """Compile and load a source."""
        self._module(source, macros)

    def run_launch(
        self, source: CudaSource, kernel: str, how: Launch, args: ctypes.Structure, keep: tuple[object, ...]
    ) -> None:
        """Run one kernel.

        Raises:
            CudaError: the source does not compile.
            EmulatorError: the kernel, or the launch, is at fault.
        """
        module = self._module(source, how.macros)
        _require_legal(kernel, how, module, self._facts)
        legal = memory.ranges(keep) if self._check else []
        spec = _Spec(
            kernel=module.kernels[kernel],
            args=ctypes.addressof(args),
            module=ctypes.pointer(module.segments),
            legal=(Range * len(legal))(*(Range(*pair) for pair in legal)),
            legal_count=len(legal),
            fixed=module.shared,
            seed=self._seed,
            seconds=self._seconds,
            grid=how.grid,
            block=how.block,
            dynamic_bytes=how.shared,
            order=self._order,
            eager=self._eager,
            check=self._check,
        )
        fault = _Fault()
        with self._one_launch:
            fine = runtime().emulator_run(ctypes.byref(spec), ctypes.byref(fault))
        if not fine:
            raise EmulatorError(_message(kernel, fault, module))

    def _module(self, source: CudaSource, macros: Mapping[str, int]) -> Module:
        stat = source.path.stat()
        sizes = tuple((name, ctypes.sizeof(args)) for name, args in source.kernels.items())
        key = (source.path, stat.st_mtime_ns, stat.st_size, sizes, tuple(sorted(macros.items())), self._check)
        if key not in self._modules:
            self._modules[key] = load(source, macros, self._check)
        return self._modules[key]


def _require_legal(kernel: str, how: Launch, module: Module, facts: DeviceFacts) -> None:
    most_threads = module.most_threads[kernel]
    threads = how.block[0] * how.block[1] * how.block[2]
    sizes = zip((*how.grid, *how.block), (*_LARGEST_GRID, *_LARGEST_BLOCK), strict=True)
    if not 0 < threads <= min(most_threads, _MOST_THREADS):
        said = f"the kernel takes up to {most_threads} threads"
    elif not all(0 < size <= largest for size, largest in sizes):
        said = f"the largest are {_LARGEST_GRID} and {_LARGEST_BLOCK}"
    elif how.shared + module.static_bytes > facts.shared_bytes:
        said = f"with {module.static_bytes} bytes of its own; the device has {facts.shared_bytes}"
    else:
        return
    raise EmulatorError(f"{kernel}: grid {how.grid}, block {how.block}, {how.shared} bytes of shared memory: {said}")


def _message(kernel: str, fault: _Fault, module: Module) -> str:
    text = fault.text.decode(errors="replace")
    if not fault.placed:
        return f"{kernel}: {text}"
    place = places.describe(module, fault.frames)
    other = places.describe(module, [fault.other])
    text = text.replace("{other}", f" at {other}" if other else "")
    waiting = "".join(_waiting(group, module) for group in fault.waiting if group.count)
    return f"{kernel}: {text}; thread {tuple(fault.thread)} of block {tuple(fault.block)} at {place or '?'}{waiting}"


def _waiting(group: _Group, module: Module) -> str:
    whom = f" for lanes 0x{group.mask:08x}" if group.mask else ""
    place = places.describe(module, group.frames)
    return f"; {group.count} threads, the first {group.first}, wait in {group.name.decode()}{whom} at {place or '?'}"
