"""Compiles a kernel source with the machine's C++ compiler, and keeps the result for the next process.

A library's place in the cache is named by what went into it: the source, every header, the flags and the compiler. So
nothing is ever rebuilt in place, and an outdated library is never found.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from ninfer.kernels.routes import Route

KERNELS = Path(__file__).resolve().parents[1]
INCLUDE = KERNELS / "include"
CACHE_VARIABLE = "NINFER_CACHE_DIR"
_TIMEOUT = 600.0
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=hidden",
    "-ffp-contract=off",  # a product and a sum are fused where a kernel says so, nowhere else
    "-fno-math-errno",
    "-Wall",
    "-Wno-psabi",
)
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_BODY_FLAGS = {
    Route.CPU_AVX512: (
        *_AVX2,
        *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "vnni")),
        "-mprefer-vector-width=512",
        "-DNINFER_AVX512",
    ),
    Route.CPU_AVX2: (*_AVX2, "-DNINFER_AVX2"),
    Route.CPU_PORTABLE: (),
    Route.CPU_AVX512_PLAIN: ("-DNINFER_AVX512", "-DNINFER_PLAIN"),
}


_INCLUDE_LINE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


class BuildError(Exception):
    """Why a source cannot be compiled here; one line that names the remedy."""


def build(source: Path, body: Route) -> Path:
    """The shared library of `source` for this body, compiled now or found in the cache.

    Raises:
        BuildError: no compiler, a compiler that fails, or a cache folder that cannot be written.
    """
    command = (compiler(), *_FLAGS, *_BODY_FLAGS[body], f"-I{INCLUDE}", f"-I{KERNELS}")
    target = cache_dir() / f"{source.stem}-{body.value}-{_key(source, command)}.so"
    if target.is_file():
        return target
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(suffix=".so", dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise BuildError(f"{target.parent} cannot be written ({error.strerror}); set {CACHE_VARIABLE}") from error
    try:
        _compile((*command, str(source), "-o", temporary))
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return target


def cache_dir() -> Path:
    """Where compiled libraries are kept: $NINFER_CACHE_DIR, else `ninfer` in the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ninfer"


@cache
def compiler() -> str:
    """The path of the C++ compiler: $CXX, else the first that is installed.

    Raises:
        BuildError: there is none.
    """
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else _COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    raise BuildError(f"{wanted or 'a C++ compiler'} is not installed; install g++ or clang++, or set CXX")


def _compile(command: tuple[str, ...]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} failed: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise BuildError(f"{command[0]} failed: {lines[0] if lines else f'exit status {done.returncode}'}")


def _key(source: Path, command: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    stat = os.stat(command[0])
    # Folders of the installation do not matter, what is in them does.
    flags = [part for part in command[1:] if not part.startswith("-I")]
    digest.update(repr((flags, stat.st_size, stat.st_mtime_ns, platform.machine())).encode())
    for path in _files(source):
        digest.update(path.relative_to(KERNELS).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:20]


def _files(source: Path) -> list[Path]:
    """The source and every header of ours that it includes, directly or not."""
    found, open_files = [source], [source]
    while open_files:
        for name in _INCLUDE_LINE.findall(open_files.pop().read_text(encoding="utf-8")):
            header = next((folder / name for folder in (INCLUDE, KERNELS) if (folder / name).is_file()), None)
            if header is not None and header not in found:
                found.append(header)
                open_files.append(header)
    return found
