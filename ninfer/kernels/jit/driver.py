"""The GPU: modules loaded and kernels launched through CuPy, the only place that imports it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import torch

from ninfer.errors import CudaError
from ninfer.kernels.jit.build import Compiler, build, compiler, target_of
from ninfer.kernels.jit.parts import arch_of, driver_release, parts

if TYPE_CHECKING:
    from pathlib import Path

    from ninfer.kernels.jit import CudaSource, Device, DeviceFacts, Launch
    from ninfer.kernels.jit.recording import Recording


class Driver(Protocol):
    """What is used of `cupy_backends.cuda.api.driver`. Every call raises a RuntimeError when it fails."""

    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: int

    def moduleLoadData(self, image: bytes) -> int: ...  # noqa: N802

    def moduleGetFunction(self, module: int, name: str) -> int: ...  # noqa: N802

    def funcSetAttribute(self, function: int, attribute: int, value: int) -> None: ...  # noqa: N802

    def launchKernel(  # noqa: N802
        self,
        function: int,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        block_x: int,
        block_y: int,
        block_z: int,
        shared: int,
        stream: int,
        params: int,
        extra: int,
    ) -> None: ...


def open_gpu() -> Device:
    """torch's current CUDA device.

    Raises:
        CudaError: something that CUDA needs is missing, too old or unsupported; all of it, and what to install.
    """
    wrong = [part.remedy for part in parts() if part.remedy]
    if wrong:
        raise CudaError("CUDA cannot be used here: " + "; ".join(wrong))
    try:
        from cupy_backends.cuda.api import driver
    except ImportError as error:
        raise CudaError(f"CuPy cannot be loaded ({error}); reinstall it: pip install 'ninfer[cuda]'") from error
    release = driver_release()
    assert release is not None, "parts() finds no fault where there is no driver"
    return Gpu(torch.cuda.current_device(), cast(Driver, driver), compiler(release[0]))


@dataclass(slots=True)
class _Function:
    """A kernel on the device, and the dynamic shared memory that it may have so far."""

    handle: int
    shared: int


class Gpu:
    """One CUDA device, on the current stream of torch. Modules stay loaded."""

    def __init__(self, index: int, driver: Driver, by: Compiler) -> None:
        self._index, self._driver, self._by = index, driver, by
        self._facts = _facts(index)
        self._target = target_of(self._facts.arch)
        self._functions: dict[tuple[object, ...], _Function] = {}
        self._modules: dict[tuple[Path, frozenset[tuple[str, int]]], int] = {}
        self._thread = threading.local()
        self._kept: list[object] | None = None

    @property
    def facts(self) -> DeviceFacts:
        return self._facts

    @property
    def recording(self) -> bool:
        return self._kept is not None

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.is_cuda and tensor.get_device() == self._index

    def launch(
        self, source: CudaSource, kernel: str, how: Launch, args: ctypes.Structure, keep: tuple[object, ...]
    ) -> None:
        """Start one kernel. A fault of an earlier one may be reported here too.

        Raises:
            CudaError: it cannot be compiled or started.
        """
        if self._kept is not None:
            self._kept.append(keep)
        function = self._function(source, kernel, how.macros)
        pointer = ctypes.c_void_p(ctypes.addressof(args))  # the driver copies the Args before it returns
        stream = torch.cuda.current_stream(self._index).cuda_stream
        try:
            if how.shared > function.shared:
                attribute = self._driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self._driver.funcSetAttribute(function.handle, attribute, how.shared)
                function.shared = how.shared
            self._driver.launchKernel(
                function.handle, *how.grid, *how.block, how.shared, stream, ctypes.addressof(pointer), 0
            )
        except RuntimeError as error:
            raise _failed(kernel, error) from error

    def record(self, work: Callable[[], None]) -> Recording:
        """Do the work once, then capture it as a CUDA graph."""
        assert self._kept is None, "recordings do not nest"
        work()
        graph = torch.cuda.CUDAGraph()
        kept = self._kept = []
        try:
            # Other threads may copy and allocate meanwhile: that is no part of this graph.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                work()
        except RuntimeError as error:
            raise CudaError(f"the work cannot be recorded as a CUDA graph: {error}") from error
        finally:
            self._kept = None
        return _Graph(graph, tuple(kept))

    def prepare(self, source: CudaSource, macros: Mapping[str, int]) -> None:
        """Compile a source and load it. Threads may do so at the same time.

        Raises:
            CudaError: it cannot be compiled or loaded.
        """
        self._module(source, frozenset(macros.items()))

    def _function(self, source: CudaSource, kernel: str, macros: Mapping[str, int]) -> _Function:
        key = (source.path, kernel, *macros.items())
        found = self._functions.get(key)
        if found is None:
            module = self._module(source, frozenset(macros.items()))
            try:
                found = _Function(self._driver.moduleGetFunction(module, kernel), 0)
            except RuntimeError as error:
                raise _failed(kernel, error) from error
            self._functions[key] = found
        self._enter()
        return found

    def _module(self, source: CudaSource, macros: frozenset[tuple[str, int]]) -> int:
        module = self._modules.get((source.path, macros))
        if module is None:
            compiled = build(source, dict(macros), self._target, self._by)
            self._enter()
            try:
                module = self._modules[source.path, macros] = self._driver.moduleLoadData(compiled.cubin)
            except RuntimeError as error:
                raise _failed(source.path.name, error) from error
        return module

    def _enter(self) -> None:
        """Make the device current in this thread, which the driver expects and torch does on its first use there."""
        if not hasattr(self._thread, "entered"):
            torch.cuda.set_device(self._index)
            torch.cuda.current_stream(self._index).synchronize()
            self._thread.entered = True


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    kept: tuple[object, ...]

    def run(self) -> None:
        try:
            self.graph.replay()
        except RuntimeError as error:
            raise _failed("the CUDA graph", error) from error


def _facts(index: int) -> DeviceFacts:
    from ninfer.kernels.jit import DeviceFacts

    properties = torch.cuda.get_device_properties(index)
    return DeviceFacts(
        arch=arch_of(index),
        multiprocessors=properties.multi_processor_count,
        shared_bytes=getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block),
    )


def _failed(what: str, error: RuntimeError) -> CudaError:
    return CudaError(f"{what} failed on the GPU: {error}")
