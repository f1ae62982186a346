"""CUDA sources compiled for the host and loaded."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ninfer.errors import CudaError
from ninfer.kernels.jit import CudaSource
from ninfer.kernels.jit.headers import include_dirs
from ninfer.kernels.native.build import BuildError, compiler
from tests.kernels.emulator.recipes import make, of_module, of_runtime

_BOUNDS = r"NINFER_KERNEL\(\s*{name}\s*,[^,]+,([^,]*?)(?:,[^{{]*)?\)\s*\{{"


class Range(ctypes.Structure):
    """Addresses; mirrors the runtime's."""

    _fields_ = (("begin", ctypes.c_uint64), ("end", ctypes.c_uint64))


class Segments(ctypes.Structure):
    """Where a library was loaded; mirrors the runtime's Module."""

    _fields_ = (("base", ctypes.c_uint64), ("text", Range), ("constant", Range * 4))


@dataclass(frozen=True, slots=True)
class Module:
    """One source, compiled for one combination of macros and loaded.

    Attributes:
        kernels: name -> address of what calls it with a pointer to its Args.
        most_threads: name -> threads that a block may have.
        shared: static shared memory.
    """

    path: Path
    segments: Segments
    kernels: Mapping[str, int]
    most_threads: Mapping[str, int]
    shared: Range

    @property
    def static_bytes(self) -> int:
        """Static shared memory of the kernel, if it is alone; else nobody knows which has how much."""
        return self.shared.end - self.shared.begin if len(self.kernels) == 1 else 0


@cache
def missing() -> str:
    """Why nothing can be emulated on this machine; empty where it can."""
    try:
        include_dirs()
        said = subprocess.run((*compiler(), "-dM", "-E", "-x", "c", "/dev/null"), capture_output=True, text=True)
    except (BuildError, CudaError) as error:
        return str(error)
    gcc = "__GNUC__" in said.stdout and "__clang__" not in said.stdout
    return "" if gcc else "the emulator needs GCC; set CXX to g++"


@cache
def runtime() -> ctypes.CDLL:
    """The runtime library. One for the process, for all modules share its threads' stacks."""
    return ctypes.CDLL(str(make(of_runtime())), mode=ctypes.RTLD_GLOBAL)


def load(source: CudaSource, macros: Mapping[str, int], check: bool) -> Module:
    """Compile, unless the cache has it, and load.

    Fast mode takes what check mode has compiled, if that is there and its own is not: both compute the same bits, and
    to compile takes longer than most tests.

    Raises:
        CudaError: with the compiler's words.
    """
    sizes = {f"NINFER_ARGS_{name}": ctypes.sizeof(args) for name, args in source.kernels.items()}
    defines = [f"-D{name}={value}" for name, value in {**sizes, **macros}.items()]
    wanted, checked = (of_module(source.path, _wrapper(source), defines, it) for it in (check, True))
    if checked.target().is_file() and not wanted.target().is_file():
        wanted = checked
    return _loaded(make(wanted), source)


def _loaded(path: Path, source: CudaSource) -> Module:
    support, library = runtime(), ctypes.CDLL(str(path))
    kernels = {name: _address(library, f"emulator_run_{name}") for name in source.kernels}
    segments = Segments()
    support.emulator_describe(ctypes.c_void_p(next(iter(kernels.values()))), ctypes.byref(segments))
    most = {name: ctypes.c_uint.in_dll(library, f"emulator_threads_{name}").value for name in source.kernels}
    ends = (ctypes.c_uint64 * 2).in_dll(library, "emulator_static_shared")
    return Module(path, segments, kernels, most, Range(*ends))


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


def _wrapper(source: CudaSource) -> str:
    """C++ that includes the source and gives each kernel an entry with one pointer."""
    text = source.path.read_text(encoding="utf-8")
    lines = [
        f'#include "{source.path.resolve()}"',
        "#pragma GCC visibility push(default)",
        'extern "C" {',
        'extern char __start_emulator_shared[] __attribute__((weak, visibility("hidden")));',
        'extern char __stop_emulator_shared[] __attribute__((weak, visibility("hidden")));',
        "const void* emulator_static_shared[2] = {__start_emulator_shared, __stop_emulator_shared};",
    ]
    for name, args in source.kernels.items():
        bounds = re.search(_BOUNDS.format(name=name), text, re.DOTALL)
        lines += [
            f"static_assert(emulator::args_bytes({name}) == {ctypes.sizeof(args)});",
            f"void emulator_run_{name}(const void* args) {{ emulator::call({name}, args); }}",
            f"extern const unsigned emulator_threads_{name};",
            f"const unsigned emulator_threads_{name} = {bounds[1] if bounds else 1024};",
        ]
    return "\n".join([*lines, "}", ""])
