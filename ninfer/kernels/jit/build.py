"""Compiles a CUDA source for a target, and keeps the cubin for the next process.

A cubin's name in the cache tells what went into it: the source, every header of ours, the options and the releases of
the compiler and of CUDA's headers. Its bytes carry their own digest, so a damaged file is made anew.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ninfer.errors import CompiledKernelsWarning, CudaError
from ninfer.kernels.jit.headers import INSTALL, KERNELS, OURS, Toolkit, toolkit
from ninfer.kernels.jit.nvrtc import CompileError, Nvrtc
from ninfer.kernels.native.build import CACHE_VARIABLE, BuildError, cache_dir

if TYPE_CHECKING:
    from ninfer.kernels.jit import CudaSource

TARGETS = ("80", "86", "89", "90a", "100a", "120a")
"""What the kernels are compiled for in tests: each generation of GPUs that they run on."""
_OPTIONS = ("--std=c++17", "--device-as-default-execution-space", "--ptxas-options=-v")
_MACRO = re.compile(r"NINFER_[A-Z0-9_]+")
_INCLUDE_LINE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)
_DIGEST = hashlib.sha256
_SAID_AT_MOST = 300  # characters of a compiler's complaint


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel needs of a multiprocessor.

    Attributes:
        registers: per thread.
        shared_bytes: static shared memory per block.
        stack_bytes: local memory per thread that the source asks for: arrays indexed at run time, slow paths of sinf.
        spill_bytes: stores and loads of local memory per thread for want of registers.
    """

    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """A module for one target: machine code, and what its kernels need by name."""

    cubin: bytes
    resources: Mapping[str, Resources]


@dataclass(frozen=True, slots=True)
class Compiler:
    """NVRTC with the headers of the same installation."""

    toolkit: Toolkit
    nvrtc: Nvrtc


@cache
def compiler(newest: int | None = None) -> Compiler:
    """The compiler of the installed toolkit.

    Args:
        newest: the last major release of CUDA that may be used; None for any.

    Raises:
        CudaError: it is not installed or cannot be loaded.
    """
    found = toolkit() if newest is None else toolkit(newest)
    if found.nvrtc is None:
        raise CudaError(f"CUDA's compiler is not installed (libnvrtc, in the wheel nvidia-cuda-nvrtc): {INSTALL}")
    return Compiler(found, Nvrtc(found.nvrtc))


def target_of(arch: int) -> str:
    """The compile target of a compute capability times ten: with all that the generation can do, where it has names."""
    return f"{arch}a" if arch >= 90 else str(arch)


def build(source: CudaSource, macros: Mapping[str, int], target: str, by: Compiler) -> Compiled:
    """The compiled module of `source`, found in the cache or compiled now.

    Args:
        macros: names that begin with NINFER_, and integers.
        target: as in "90a".

    Raises:
        CudaError: the compiler is missing, does not know the target, or does not accept the source.
    """
    options = options_for(source, macros, target)
    name = f"{source.path.stem}-sm_{target}-{_key(source.path, options, by)}.cubin"
    found = _load(name)
    if found is None:
        found = _compile(source.path, options, by)
        _store(name, found)
    return found


def options_for(source: CudaSource, macros: Mapping[str, int], target: str) -> tuple[str, ...]:
    """The options of a compilation, target first. The size of every kernel's Args goes with them: the source checks."""
    for name in macros:
        assert _MACRO.fullmatch(name), f"{name} may hide a name of CUDA's headers; call it NINFER_{name}"
    sizes = {f"NINFER_ARGS_{kernel}": ctypes.sizeof(args) for kernel, args in source.kernels.items()}
    defined = tuple(f"-D{name}={value}" for name, value in sorted({**sizes, **macros}.items()))
    return (f"--gpu-architecture=sm_{target}", *_OPTIONS, *defined)


def compile_text(path: Path, options: tuple[str, ...], by: Compiler) -> tuple[bytes, str]:
    """Compile a file with these options and the folders of headers.

    Returns:
        The cubin, and what the compiler said.

    Raises:
        CompileError: the source is wrong.
        CudaError: the compiler fails.
    """
    folders = (path.parent, OURS, KERNELS, *by.toolkit.includes)
    includes = tuple(f"--include-path={folder}" for folder in folders)
    return by.nvrtc.compile(path.name, path.read_text(encoding="utf-8"), (*options, *includes))


def _compile(path: Path, options: tuple[str, ...], by: Compiler) -> Compiled:
    target = options[0].rpartition("_")[2]
    if int(target.rstrip("af")) not in by.nvrtc.archs:
        version = ".".join(map(str, by.nvrtc.version))
        raise CudaError(f"CUDA {version} does not compile for sm_{target}; update nvidia-cuda-nvrtc: {INSTALL}")
    try:
        cubin, said = compile_text(path, options, by)
    except CompileError as error:
        lines = [line for line in str(error).splitlines() if "error" in line] or str(error).splitlines()
        raise CudaError(f"{path.name} does not compile for sm_{target}: {lines[0][:_SAID_AT_MOST]}") from error
    return Compiled(cubin, resources(said))


_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def resources(said: str) -> dict[str, Resources]:
    """What ptxas reported about each kernel, by name."""
    found = {}
    name, stack, spills = "", 0, 0
    for line in said.splitlines():
        if entry := _ENTRY.search(line):
            name = entry[1]
        elif frame := _STACK.search(line):
            stack, spills = int(frame[1]), int(frame[2]) + int(frame[3])
        elif used := _USED.search(line):
            shared = _SHARED.search(line)
            found[name] = Resources(int(used[1]), int(shared[1]) if shared else 0, stack, spills)
    return found


def _key(path: Path, options: tuple[str, ...], by: Compiler) -> str:
    parts = [repr((options, by.nvrtc.version, by.toolkit.release)).encode()]
    for file in included(path):
        parts += [file.name.encode(), file.read_bytes()]
    return _DIGEST(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()[:20]


def included(source: Path) -> list[Path]:
    """The source and every header of ours that it includes, directly or not, where the compiler finds them."""
    found, unread = [source], [source]
    while unread:
        path = unread.pop()
        for name in _INCLUDE_LINE.findall(path.read_text(encoding="utf-8")):
            folders = (path.parent, OURS, KERNELS)
            header = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if header is not None and header not in found:
                found.append(header)
                unread.append(header)
    return found


def _load(name: str) -> Compiled | None:
    """What the cache has under this name; None where it has nothing, or something damaged."""
    try:
        content = (cache_dir() / name).read_bytes()
    except (OSError, BuildError):
        return None
    digest, content = content[: _DIGEST().digest_size], content[_DIGEST().digest_size :]
    if _DIGEST(content).digest() != digest:
        return None
    report, _, cubin = content.partition(b"\n")
    return Compiled(cubin, {kernel: Resources(**row) for kernel, row in json.loads(report).items()})


def _store(name: str, compiled: Compiled) -> None:
    """Put it in the cache at once and whole. Where that cannot be, it is compiled anew by each process."""
    report = json.dumps({kernel: asdict(row) for kernel, row in compiled.resources.items()}).encode()
    content = report + b"\n" + compiled.cubin
    try:
        folder = cache_dir()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(folder / name, _DIGEST(content).digest() + content)
    except BuildError as error:
        _say_once(str(error))
    except OSError as error:
        _say_once(f"{cache_dir()} cannot be written ({error.strerror}); set {CACHE_VARIABLE}")


def _write(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(suffix=".cubin", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


@cache
def _say_once(reason: str) -> None:
    text = f"CUDA kernels are compiled anew by each process, because they cannot be kept: {reason}"
    warnings.warn(CompiledKernelsWarning(text), stacklevel=2)
