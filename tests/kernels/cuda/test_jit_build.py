"""Compiling CUDA sources and keeping the results."""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ninfer.errors import CompiledKernelsWarning, CudaError
from ninfer.kernels.jit import CudaSource, build, check, headers
from ninfer.kernels.jit.build import Compiler, Resources, compiler, target_of
from ninfer.kernels.jit.nvrtc import Nvrtc
from tests.kernels.cuda.probing import nvrtc_or_skip

nvrtc_or_skip()

TEXT = """
#include "ninfer.cuh"
#include "mine.cuh"
struct Args { float* out; };
NINFER_KERNEL(fill, Args, 256) {
    __shared__ float row[NINFER_WIDTH];
    row[threadIdx.x] = mine();
    __syncthreads();
    args.out[threadIdx.x] = row[NINFER_WIDTH - 1 - threadIdx.x];
}
"""
HEADER = "__device__ inline float mine() { return 1.0f; }\n"
HUNGRY = """
#include "ninfer.cuh"
struct Args { float* out; };
NINFER_KERNEL(hungry, Args, 1024) {  // 64 registers each
    float held[128];
    #pragma unroll
    for (int i = 0; i < 128; ++i) held[i] = args.out[i * 1024 + threadIdx.x];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 128; ++i) args.out[i * 1024 + threadIdx.x] = held[127 - i] * held[(i * 37) % 128];
}
"""


class _Args(ctypes.Structure):
    _fields_ = (("out", ctypes.c_void_p),)


class _Longer(ctypes.Structure):
    _fields_ = (("out", ctypes.c_void_p), ("count", ctypes.c_int))


class Counting:
    """The compiler, and how often it was called."""

    def __init__(self) -> None:
        self.real, self.calls = compiler(), 0
        self.version, self.archs = self.real.nvrtc.version, self.real.nvrtc.archs
        self.as_compiler = Compiler(self.real.toolkit, self)  # type: ignore[arg-type]

    def compile(self, name: str, text: str, options: tuple[str, ...]) -> tuple[bytes, str]:
        self.calls += 1
        return self.real.nvrtc.compile(name, text, options)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NINFER_CACHE_DIR", str(tmp_path / "cache"))
    build._say_once.cache_clear()
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path: Path) -> CudaSource:
    (tmp_path / "mine.cuh").write_text(HEADER)
    (tmp_path / "fill.cu").write_text(TEXT)
    return CudaSource(tmp_path / "fill.cu", {"fill": _Args})


def made(source: CudaSource, by: Counting, width: int = 256, target: str = "80") -> build.Compiled:
    return build.build(source, {"NINFER_WIDTH": width}, target, by.as_compiler)


def test_the_second_time_comes_from_the_cache(cache: Path, source: CudaSource) -> None:
    by = Counting()
    first, second = made(source, by), made(source, by)
    assert by.calls == 1
    assert first == second
    assert first.cubin.startswith(b"\x7fELF")
    assert first.resources["fill"].shared_bytes == 1024
    assert 0 < first.resources["fill"].registers <= 255
    assert [path.suffix for path in cache.iterdir()] == [".cubin"]


def test_macros_targets_and_headers_make_modules_of_their_own(cache: Path, source: CudaSource) -> None:
    by = Counting()
    made(source, by)
    made(source, by, width=512)
    made(source, by, target="90a")
    (source.path.parent / "mine.cuh").write_text(HEADER.replace("1.0f", "2.0f"))
    made(source, by)
    assert by.calls == len(list(cache.iterdir())) == 4


def test_a_header_of_a_header_counts(cache: Path, source: CudaSource) -> None:
    by, folder = Counting(), source.path.parent
    (folder / "mine.cuh").write_text('  #  include "deep.cuh"\n')
    (folder / "deep.cuh").write_text(HEADER)
    made(source, by)
    (folder / "deep.cuh").write_text(HEADER.replace("1.0f", "2.0f"))
    made(source, by)
    assert by.calls == 2


def test_another_release_of_the_compiler_compiles_anew(cache: Path, source: CudaSource) -> None:
    by = Counting()
    made(source, by)
    by.version = (99, 0)
    made(source, by)
    assert by.calls == 2


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda _: b"", lambda data: data[:-1] + b"?"])
def test_a_damaged_file_is_made_anew(cache: Path, source: CudaSource, damage: Callable[[bytes], bytes]) -> None:
    by = Counting()
    first = made(source, by)
    (path,) = cache.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert made(source, by) == first
    assert made(source, by) == first
    assert by.calls == 2


def test_a_cache_that_cannot_be_written_is_said_once(
    tmp_path: Path, source: CudaSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NINFER_CACHE_DIR", str(tmp_path / "file" / "cache"))
    build._say_once.cache_clear()
    by = Counting()
    with pytest.warns(CompiledKernelsWarning, match="set NINFER_CACHE_DIR") as said:
        first = made(source, by)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made(source, by) == first
    assert by.calls == 2


def test_what_does_not_compile_says_where(cache: Path, source: CudaSource) -> None:
    source.path.write_text(TEXT.replace("row[threadIdx.x] = mine();", "row[threadIdx.x] = yours();"))
    with pytest.raises(CudaError, match=r"fill.cu does not compile for sm_80: fill.cu\(7\): error: .*yours"):
        made(source, Counting())
    assert not cache.exists()


def test_args_that_differ_between_host_and_kernel_do_not_compile(cache: Path, source: CudaSource) -> None:
    with pytest.raises(CudaError, match=r"fill\.cu does not compile"):
        made(CudaSource(source.path, {"fill": _Longer}), Counting())


def test_macros_keep_to_their_prefix(source: CudaSource) -> None:
    for name in ("N", "T", "ninfer_width", "NINFER_X=1 -DN"):
        with pytest.raises(AssertionError, match="may hide a name"):
            build.options_for(source, {name: 8}, "80")


def test_a_target_that_the_compiler_does_not_know_is_refused(cache: Path, source: CudaSource) -> None:
    with pytest.raises(CudaError, match="does not compile for sm_999a; update nvidia-cuda-nvrtc"):
        made(source, Counting(), target="999a")


def test_spills_are_seen(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "hungry.cu").write_text(HUNGRY)
    need = build.build(CudaSource(tmp_path / "hungry.cu", {"hungry": _Args}), {}, "80", compiler()).resources["hungry"]
    assert need.registers == 64
    assert need.spill_bytes > 0


def test_the_compilers_report_is_read_kernel_by_kernel() -> None:
    said = """
ptxas info    : Compiling entry function 'one' for 'sm_80'
ptxas info    : Function properties for one
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 8 bytes cumulative stack size, 1024 bytes smem, 368 bytes cmem[0]
ptxas info    : Compiling entry function 'two' for 'sm_80'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 10 registers
"""
    assert build.resources(said) == {"one": Resources(255, 1024, 8, 16), "two": Resources(10, 0, 0, 0)}


def test_targets_use_what_a_generation_can_do() -> None:
    assert [target_of(arch) for arch in (80, 86, 89, 90, 100, 120)] == list(build.TARGETS)


def test_the_command_reports_each_kernel(source: CudaSource, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main([str(source.path), "-DNINFER_WIDTH=256", "--arch", "80", "--arch", "90a"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["sm_80 fill", "sm_90a fill"]
    assert "1024 B static shared, 0 B spilled" in lines[0]
    assert check.main([str(source.path)]) == 1
    assert "NINFER_WIDTH" in capsys.readouterr().err


def test_the_command_takes_sizes_from_the_route() -> None:
    found = check.source_of(headers.KERNELS / "rmsnorm" / "rmsnorm.cu")
    assert found is not None
    assert "rmsnorm" in found.kernels
    assert check.source_of(Path("/nowhere/rmsnorm.cu")) is None


def _wheels(base: Path, names: tuple[str, ...], version: int, library: str | None) -> None:
    for name in names:
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(f"#define CUDA_VERSION {version}\n" if name.endswith("cuda.h") else "")
    if library:
        (base / library).parent.mkdir(parents=True, exist_ok=True)
        (base / library).write_text("")


NEW = ("cu13/include/cuda.h", "cu13/include/cuda_bf16.h", "cu13/include/vector_types.h", "cu13/include/cccl/nv/target")
OLD = (
    "cuda_runtime/include/cuda.h",
    "cuda_runtime/include/cuda_bf16.h",
    "cuda_runtime/include/vector_types.h",
    "cuda_cccl/include/nv/target",
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of wheels, and no installed toolkit."""
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})
    monkeypatch.setattr(headers, "find_spec", lambda name: spec)
    monkeypatch.setattr(headers, "_SYSTEM", tmp_path / "none")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    headers.toolkit.cache_clear()
    yield tmp_path
    headers.toolkit.cache_clear()


def test_wheels_of_both_releases_are_found_and_never_mixed(site: Path) -> None:
    _wheels(site, OLD, 12090, "cuda_nvrtc/lib/libnvrtc.so.12")
    _wheels(site, NEW, 13050, "cu13/lib/libnvrtc.so.13")
    newest, older = headers.toolkit(), headers.toolkit(12)
    assert (newest.release, newest.nvrtc) == ((13, 5), site / "cu13/lib/libnvrtc.so.13")
    assert newest.includes == (site / "cu13/include", site / "cu13/include/cccl")
    assert (older.release, older.nvrtc) == ((12, 9), site / "cuda_nvrtc/lib/libnvrtc.so.12")
    assert all("cu13" not in str(folder) for folder in older.includes)
    assert headers.include_dirs()[0] == headers.OURS


def test_headers_without_a_compiler_give_way_to_an_installation_with_both(site: Path) -> None:
    _wheels(site, NEW, 13050, None)
    assert headers.toolkit().nvrtc is None
    headers.toolkit.cache_clear()
    _wheels(site, OLD, 12090, "cuda_nvrtc/lib/libnvrtc.so.12")
    assert headers.toolkit().release == (12, 9)


def test_headers_without_a_compiler_take_one_of_the_same_release(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's wheels have the compiler and not all headers, an installed toolkit may have these and not the library."""
    _wheels(site, NEW[:3], 13000, "cu13/lib/libnvrtc.so.13")
    _wheels(site, tuple(name.replace("cu13", "toolkit") for name in NEW), 13000, None)
    monkeypatch.setenv("CUDA_HOME", str(site / "toolkit"))
    half = site / "cu13/lib/libnvrtc-builtins.so.13.5"
    half.touch()
    assert headers.toolkit().nvrtc is None, "another release"
    headers.toolkit.cache_clear()
    half.rename(half.with_suffix(".0"))
    found = headers.toolkit()
    assert found.includes[0] == site / "toolkit/include"
    assert found.nvrtc == site / "cu13/lib/libnvrtc.so.13"


def test_the_compilers_other_half_is_loaded_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wheels of CUDA 13.0 do not say where it is."""
    names = ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"]
    for name in (*names, "libnvrtc-builtins.alt.so.13.0"):
        (tmp_path / name).touch()
    loaded: list[str] = []

    def load(path: str) -> object:
        loaded.append(Path(path).name)
        return object()

    monkeypatch.setattr(ctypes, "CDLL", load)
    with pytest.raises(CudaError, match="cannot be used"):
        Nvrtc(tmp_path / "libnvrtc.so.13")
    assert loaded == names


def test_an_installed_toolkit_serves_where_there_are_no_wheels(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _wheels(site, tuple(name.replace("cu13", "toolkit") for name in NEW), 13000, "toolkit/lib64/libnvrtc.so.13")
    monkeypatch.setenv("CUDA_HOME", str(site / "toolkit"))
    assert headers.toolkit().nvrtc == site / "toolkit/lib64/libnvrtc.so.13"


def test_missing_headers_are_named_with_their_wheel(site: Path) -> None:
    _wheels(site, NEW[:3], 13050, "cu13/lib/libnvrtc.so.13")
    with pytest.raises(CudaError, match=r"\(nv/target, in the wheels nvidia-cuda-cccl\): pip install 'ninfer\[cuda\]'"):
        headers.toolkit()


def test_headers_later_than_the_driver_are_refused(site: Path) -> None:
    _wheels(site, NEW, 13050, "cu13/lib/libnvrtc.so.13")
    with pytest.raises(CudaError, match="the driver is of CUDA 12, the installed headers are of a later one"):
        headers.toolkit(12)


def test_a_missing_compiler_is_named_with_its_wheel(site: Path) -> None:
    _wheels(site, NEW, 13050, None)
    with pytest.raises(CudaError, match="in the wheel nvidia-cuda-nvrtc"):
        compiler.__wrapped__()


def test_a_library_that_is_none_says_what_to_reinstall(site: Path) -> None:
    _wheels(site, NEW, 13050, "cu13/lib/libnvrtc.so.13")
    with pytest.raises(CudaError, match="reinstall nvidia-cuda-nvrtc"):
        compiler.__wrapped__()


def test_a_cache_file_appears_whole(cache: Path, source: CudaSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails half-way leaves nothing under the entry's name, and no scrap."""

    def fail(old: str, new: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.warns(CompiledKernelsWarning, match="No space left"):
        made(source, Counting())
    assert list(cache.iterdir()) == []
