"""Compiles CUDA sources, and the emulator's own runtime library, with the machine's C++ compiler.

As with the CPU kernels' libraries, a file's name in the cache tells all that went into it, so none is ever outdated.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ninfer.errors import CudaError
from ninfer.kernels.jit import CudaSource
from ninfer.kernels.jit.headers import KERNELS, include_dirs
from ninfer.kernels.native.build import BuildError, cache_dir, compiler

HERE = Path(__file__).resolve().parent
_INCLUDE_LINE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)
_BOUNDS = r"NINFER_KERNEL\(\s*{name}\s*,[^,]+,([^,]*?)(?:,[^{{]*)?\)\s*\{{"
_FLAGS = (
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-fno-exceptions",
    "-fvisibility=hidden",
    "-fno-omit-frame-pointer",  # faults are placed by walking along the frames
    "-fno-optimize-sibling-calls",
    "-Wall",
)
_MODULE_FLAGS = (
    "-O1",
    "-g1",
    "-gdwarf-4",  # addr2line loses file names of version 5 where the source comes from a pipe
    "-fstack-clash-protection",  # a frame larger than a guard page cannot step over it
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-plt",  # a fault in a stub would have no place
    "-fno-strict-aliasing",  # as NVRTC: kernels read words of whatever type
    "-fno-gnu-unique",
    "-Wno-unknown-pragmas",
    "-Wno-unused-function",
    "-Wno-attributes",
    "-DNINFER_EMULATED=1",
)
# Each access calls a hook of ours; the sanitizer's own library stays out (-nodefaultlibs).
_CHECK_FLAGS = (
    "-fsanitize=thread",
    "-fsanitize=bounds-strict,alignment",
    "-fsanitize-undefined-trap-on-error",
    "-ftrivial-auto-var-init=pattern",
    "--param=tsan-instrument-func-entry-exit=0",
)
_LIBRARIES = ("-nodefaultlibs", "-lstdc++", "-lm", "-lc", "-lgcc")
_RUNTIME = ("runtime.cpp", "ready.cpp", "signals.cpp", "check.cpp", "order.cpp")


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
    headers = [HERE / name for name in ("runtime.h", "state.hpp", "context.hpp", "check.hpp")]
    sources = [HERE / name for name in _RUNTIME]
    command = (*compiler(), *_FLAGS, "-O2", *_includes(), *map(str, sources))
    return ctypes.CDLL(str(_built("emulator-runtime", command, "", sources + headers)), mode=ctypes.RTLD_GLOBAL)


def load(source: CudaSource, macros: Mapping[str, int], check: bool) -> Module:
    """Compile, unless the cache has it, and load.

    Raises:
        CudaError: with the compiler's words.
    """
    mode, flags = ("check", _CHECK_FLAGS) if check else ("fast", ())
    sizes = {f"NINFER_ARGS_{name}": ctypes.sizeof(args) for name, args in source.kernels.items()}
    defines = tuple(f"-D{name}={value}" for name, value in {**sizes, **macros}.items())
    command = (*compiler(), *_FLAGS, *_MODULE_FLAGS, *flags, *_includes())
    command = (*command, *defines, "-include", str(_prelude(mode, command)), "-x", "c++", "-", *_LIBRARIES)
    files = _files(source.path, HERE / "emulator.hpp")
    return _loaded(_built(f"emulator-{source.path.stem}-{mode}", command, _wrapper(source), files), source)


@cache
def _prelude(mode: str, command: tuple[str, ...]) -> Path:
    """What the compiler takes for emulator.hpp: the header precompiled, which halves the time that a source takes.

    Returns:
        the path without its last suffix, as the compiler wants it.
    """
    header = HERE / "emulator.hpp"
    command = (*command, "-Wno-pragma-once-outside-header", "-x", "c++-header", str(header))
    path = _built(f"emulator-prelude-{mode}", command, "", _files(header), ".hpp.gch")
    return path.with_suffix("")


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


def _includes() -> tuple[str, ...]:
    ours, *cuda = include_dirs()
    return (f"-I{HERE}", f"-I{ours}", f"-I{KERNELS}", *(part for path in cuda for part in ("-isystem", str(path))))


def _files(*sources: Path) -> list[Path]:
    """The sources and every header of ours that they include, directly or not."""
    found, unread = list(sources), list(sources)
    while unread:
        path = unread.pop()
        for name in _INCLUDE_LINE.findall(path.read_text(encoding="utf-8")):
            folders = (path.parent, HERE, include_dirs()[0], KERNELS)
            header = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if header is not None and header not in found:
                found.append(header)
                unread.append(header)
    return found


def _built(name: str, command: tuple[str, ...], text: str, files: list[Path], suffix: str = ".so") -> Path:
    target = cache_dir() / f"{name}-{_key(command, text, files)}{suffix}"
    if not target.is_file():
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(suffix=suffix, dir=target.parent)
        os.close(handle)
        try:
            _compile((*command, "-o", temporary), text)
            os.replace(temporary, target)
        finally:
            Path(temporary).unlink(missing_ok=True)
    return target


def _compile(command: tuple[str, ...], text: str) -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, errors="replace", timeout=600)
    if done.returncode:
        raise CudaError(f"{command[0]} failed:\n{done.stderr}")


def _key(command: tuple[str, ...], text: str, files: list[Path]) -> str:
    stat = os.stat(command[0])
    parts = [repr((command, text, stat.st_size, stat.st_mtime_ns, platform.machine())).encode()]
    for path in files:
        parts += [path.name.encode(), path.read_bytes()]
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()[:20]
