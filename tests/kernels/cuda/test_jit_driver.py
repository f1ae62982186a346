"""The GPU's side of the loader, with a driver that only notes what it is asked to do."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ninfer.errors import CudaError
from ninfer.kernels.jit import CudaSource, DeviceFacts, Launch, driver, parts, using, workspace
from ninfer.kernels.jit.build import Compiled
from ninfer.kernels.jit.driver import Gpu
from ninfer.kernels.jit.headers import Toolkit
from ninfer.kernels.jit.parts import Part


class _Args(ctypes.Structure):
    _fields_ = (("value", ctypes.c_int),)


SOURCE = CudaSource(Path("op/op.cu"), {"op": _Args, "other": _Args})
HOW = Launch(grid=(4, 3, 2), block=(128, 1, 1), macros={"NINFER_X": 1})


class Note:
    """A driver that notes its calls; `broken` names the one that fails."""

    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.broken = ""

    def _note(self, name: str, *what: object) -> None:
        self.calls.append((name, *what))
        if name == self.broken:
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered")

    def moduleLoadData(self, image: bytes) -> int:  # noqa: N802
        self._note("load", image)
        return 70 + len(self.calls)

    def moduleGetFunction(self, module: int, name: str) -> int:  # noqa: N802
        self._note("function", name)
        return 700 + len(self.calls)

    def funcSetAttribute(self, function: int, attribute: int, value: int) -> None:  # noqa: N802
        self._note("shared", attribute, value)

    def launchKernel(self, function: int, *rest: int) -> None:  # noqa: N802
        *how, params, extra = rest
        address = ctypes.cast(params, ctypes.POINTER(ctypes.c_void_p))[0]
        self._note("launch", *how, _Args.from_address(address).value, extra)


class Torch:
    """torch.cuda as far as it is used, and the order of what it does."""

    def __init__(self, calls: list[tuple[object, ...]]) -> None:
        self.calls = calls
        self.CUDAGraph = self._graph

    def _graph(self) -> SimpleNamespace:
        return SimpleNamespace(replay=lambda: self.calls.append(("replay",)))

    @contextmanager
    def graph(self, graph: object, capture_error_mode: str) -> Iterator[None]:
        self.calls.append(("capture", capture_error_mode))
        yield
        self.calls.append(("end",))

    def set_device(self, index: int) -> None:
        self.calls.append(("enter", index))

    def current_stream(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(cuda_stream=55, synchronize=lambda: None)


@pytest.fixture
def note(monkeypatch: pytest.MonkeyPatch) -> Note:
    noted = Note()

    def build(source: CudaSource, macros: Mapping[str, int], target: str, by: object) -> Compiled:
        noted.calls.append(("build", dict(macros), target))
        return Compiled(b"cubin", {})

    monkeypatch.setattr(driver, "build", build)
    monkeypatch.setattr(driver, "_facts", lambda index: DeviceFacts(90, 132, 227 * 1024))
    monkeypatch.setattr(driver, "torch", SimpleNamespace(cuda=Torch(noted.calls), Tensor=torch.Tensor))
    return noted


@pytest.fixture
def gpu(note: Note) -> Gpu:
    return Gpu(2, note, by=None)  # type: ignore[arg-type]


LAUNCH = ("launch", 4, 3, 2, 128, 1, 1, 0, 55, 7, 0)


def test_a_kernel_is_built_loaded_and_launched_on_the_current_stream(gpu: Gpu, note: Note) -> None:
    gpu.launch(SOURCE, "op", HOW, _Args(7), ())
    assert note.calls == [
        ("build", {"NINFER_X": 1}, "90a"),
        ("enter", 2),
        ("load", b"cubin"),
        ("function", "op"),
        LAUNCH,
    ]


def test_the_next_launch_is_nothing_but_a_launch(gpu: Gpu, note: Note) -> None:
    gpu.launch(SOURCE, "op", HOW, _Args(7), ())
    note.calls.clear()
    gpu.launch(SOURCE, "op", HOW, _Args(7), ())
    assert note.calls == [LAUNCH]


def test_kernels_of_a_source_share_a_module_and_macros_make_another(gpu: Gpu, note: Note) -> None:
    gpu.launch(SOURCE, "op", HOW, _Args(7), ())
    gpu.launch(SOURCE, "other", HOW, _Args(7), ())
    gpu.launch(SOURCE, "op", replace(HOW, macros={"NINFER_X": 2}), _Args(7), ())
    assert [call[0] for call in note.calls].count("load") == 2
    assert [call[1] for call in note.calls if call[0] == "function"] == ["op", "other", "op"]


def test_shared_memory_is_asked_for_once_and_when_it_grows(gpu: Gpu, note: Note) -> None:
    for size in (1000, 100_000, 50_000, 200_000):
        gpu.launch(SOURCE, "op", replace(HOW, shared=size), _Args(7), ())
    assert [call[2] for call in note.calls if call[0] == "shared"] == [1000, 100_000, 200_000]
    assert [call[7] for call in note.calls if call[0] == "launch"] == [1000, 100_000, 50_000, 200_000]


def test_each_thread_enters_the_device(gpu: Gpu, note: Note) -> None:
    gpu.launch(SOURCE, "op", HOW, _Args(7), ())
    thread = threading.Thread(target=gpu.launch, args=(SOURCE, "op", HOW, _Args(7), ()))
    thread.start()
    thread.join()
    assert [call for call in note.calls if call[0] == "enter"] == [("enter", 2), ("enter", 2)]
    assert note.calls[-2:] == [("enter", 2), LAUNCH]


@pytest.mark.parametrize(
    ("step", "named"), [("load", r"op\.cu"), ("function", "op"), ("shared", "op"), ("launch", "op")]
)
def test_a_failure_names_the_kernel(gpu: Gpu, note: Note, step: str, named: str) -> None:
    note.broken = step
    with pytest.raises(CudaError, match=f"^{named} failed on the GPU: CUDA_ERROR_ILLEGAL_ADDRESS"):
        gpu.launch(SOURCE, "op", replace(HOW, shared=1), _Args(7), ())


def test_a_shared_size_that_was_refused_is_asked_for_again(gpu: Gpu, note: Note) -> None:
    note.broken = "shared"
    for _ in range(2):
        with pytest.raises(CudaError):
            gpu.launch(SOURCE, "op", replace(HOW, shared=1), _Args(7), ())
    assert [call[0] for call in note.calls].count("shared") == 2


def test_a_graph_is_captured_after_the_work_was_done_once(gpu: Gpu, note: Note) -> None:
    work = lambda: gpu.launch(SOURCE, "op", HOW, _Args(7), ())  # noqa: E731
    recording = gpu.record(work)
    assert note.calls[-4:] == [LAUNCH, ("capture", "thread_local"), LAUNCH, ("end",)]
    assert not gpu.recording
    recording.run()
    assert note.calls[-1] == ("replay",)


def test_a_graph_keeps_its_memory(gpu: Gpu) -> None:
    tensors = [torch.zeros(1), torch.zeros(1)]
    recording = gpu.record(lambda: gpu.launch(SOURCE, "op", HOW, _Args(7), tuple(tensors)))
    assert recording.kept == (tuple(tensors),)  # type: ignore[attr-defined]


def test_work_that_cannot_be_captured_says_so(gpu: Gpu, note: Note) -> None:
    calls = iter((None, RuntimeError("operation not permitted when stream is capturing")))

    def work() -> None:
        error = next(calls)
        if error:
            raise error

    with pytest.raises(CudaError, match="cannot be recorded as a CUDA graph: operation not permitted"):
        gpu.record(work)
    assert not gpu.recording


def test_a_workspace_that_would_grow_while_captured_is_refused(gpu: Gpu) -> None:
    sizes = iter((100, 1000))
    with using(gpu), pytest.raises(CudaError, match="run the same work once before"):
        gpu.record(lambda: workspace("scan", next(sizes), like=torch.zeros(1)))


def test_preparing_builds_and_loads(gpu: Gpu, note: Note) -> None:
    gpu.prepare(SOURCE, {"NINFER_X": 1})
    assert [call[0] for call in note.calls] == ["build", "enter", "load"]
    gpu.launch(SOURCE, "op", HOW, _Args(7), ())
    assert [call[0] for call in note.calls[3:]] == ["function", "launch"]


def test_it_holds_what_lies_on_a_gpu(gpu: Gpu) -> None:
    assert not gpu.holds(torch.zeros(1))


class Here:
    """A machine where CUDA works, to be broken in one place."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.driver((13, 0))
        self.torch("13.0", (9, 0))
        self.cupy("cupy-cuda13x")
        self.toolkit({90, 120})

    def driver(self, release: tuple[int, int] | None) -> None:
        self.patch.setattr(parts, "driver_release", lambda: release)
        self.patch.setattr(driver, "driver_release", lambda: release)

    def torch(self, cuda: str | None, capability: tuple[int, int] | None) -> None:
        self.patch.setattr(torch.version, "cuda", cuda)
        self.patch.setattr(torch.cuda, "is_available", lambda: capability is not None)
        self.patch.setattr(torch.cuda, "current_device", lambda: 0)
        self.patch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
        self.patch.setattr(torch.cuda, "get_device_capability", lambda index: capability)

    def cupy(self, name: str | None) -> None:
        def version(wanted: str) -> str:
            if wanted == name:
                return "14.0"
            raise parts.PackageNotFoundError(wanted)

        self.patch.setattr(parts, "version", version)

    def toolkit(self, archs: set[int]) -> None:
        found = Toolkit((13, 0), (Path("include"),), Path("libnvrtc.so.13"))
        self.patch.setattr(parts, "toolkit", lambda newest=None: found)
        nvrtc = SimpleNamespace(version=(13, 0), archs=archs)
        self.patch.setattr(parts, "compiler", lambda newest=None: SimpleNamespace(toolkit=found, nvrtc=nvrtc))

    def lose(self, name: str, message: str) -> None:
        def fail(newest: int | None = None) -> None:
            raise CudaError(message)

        self.patch.setattr(parts, name, fail)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    return Here(monkeypatch)


def test_where_nothing_is_missing_every_part_says_what_it_is(here: Here) -> None:
    assert parts.parts() == (
        Part("driver", "for CUDA 13.0"),
        Part("torch", torch.__version__),
        Part("GPU", "Some GPU, compute capability 9.0"),
        Part("CuPy", "cupy-cuda13x 14.0"),
        Part("headers", "CUDA 13.0 in include"),
        Part("NVRTC", "13.0 in libnvrtc.so.13"),
    )


BREAKS: dict[str, Callable[[Here], None]] = {
    "no NVIDIA driver is installed": lambda here: here.driver(None),
    "the driver is too old; install one for CUDA 12": lambda here: here.driver((11, 8)),
    "this torch has no CUDA; install one that has": lambda here: here.torch(None, None),
    "the driver is too old for this torch (CUDA 14.1)": lambda here: here.torch("14.1", (9, 0)),
    "torch sees no GPU": lambda here: here.torch("13.0", None),
    "the GPU is too old; these are supported: compute capability 8.0": lambda here: here.torch("13.0", (7, 5)),
    "CuPy is not installed: pip install 'ninfer[cuda]'": lambda here: here.cupy(None),
    "the driver is of CUDA 12.8: pip install 'ninfer[cuda12]'": lambda here: here.driver((12, 8)),
    "headers are gone": lambda here: here.lose("toolkit", "headers are gone"),
    "NVRTC is gone": lambda here: here.lose("compiler", "NVRTC is gone"),
    "it does not compile for sm_90a: pip install": lambda here: here.toolkit({80}),
}


@pytest.mark.parametrize("remedy", BREAKS)
def test_what_is_missing_is_said_when_the_gpu_is_opened(here: Here, remedy: str) -> None:
    BREAKS[remedy](here)
    with pytest.raises(CudaError) as raised:
        driver.open_gpu()
    assert remedy in str(raised.value)
    assert str(raised.value).startswith("CUDA cannot be used here: ")


def test_all_that_is_missing_is_said_at_once(here: Here) -> None:
    here.driver(None)
    here.cupy(None)
    with pytest.raises(CudaError, match=r"no NVIDIA driver.*; CuPy is not installed"):
        driver.open_gpu()


def test_a_cupy_that_does_not_load_says_how_to_reinstall_it(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy_backends", None)
    with pytest.raises(CudaError, match=r"CuPy cannot be loaded .*pip install 'ninfer\[cuda\]'"):
        driver.open_gpu()


def test_a_gpu_is_opened_with_what_its_properties_say(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cupy_backends", "cupy_backends.cuda", "cupy_backends.cuda.api"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(driver=Note()))
    monkeypatch.setattr(driver, "compiler", lambda newest: SimpleNamespace(newest=newest))
    properties = SimpleNamespace(multi_processor_count=132, shared_memory_per_block=1, shared_memory_per_block_optin=9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    opened = driver.open_gpu()
    assert opened.facts == DeviceFacts(arch=90, multiprocessors=132, shared_bytes=9)
    assert opened._by.newest == 13  # type: ignore[attr-defined]


def test_the_driver_that_cupy_offers_has_what_is_called() -> None:
    """The names and their number of parameters, as far as CuPy is installed."""
    offered = pytest.importorskip("cupy_backends.cuda.api.driver", reason="CuPy is not installed")
    for name in ("moduleLoadData", "moduleGetFunction", "funcSetAttribute", "launchKernel"):
        written = offered.__dict__[name].__doc__.partition("(")[2].partition(")")[0]
        wanted = [name for name in vars(driver.Driver)[name].__code__.co_varnames if name != "self"]
        assert len(written.split(",")) == len(wanted)
    assert isinstance(offered.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, int)
