"""Compiles a kernel source with the machine's C++ compiler, and keeps the result for the next process.

A library's name in the cache tells what went into it (the source, every header, the flags and the compiler) and a
digest of its bytes. So nothing is ever rebuilt in place, an outdated library is never found, and a damaged one is made
anew; loading a file that was cut short could end the process.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
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
        "-O3",
        *_AVX2,
        *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "vnni")),
        "-mprefer-vector-width=512",
        "-DNINFER_AVX512",
    ),
    Route.CPU_AVX2: ("-O3", *_AVX2, "-DNINFER_AVX2"),
    # Vectors that the machine lacks become a lot of code, which takes five times as long to compile with -O3.
    Route.CPU_PORTABLE: ("-O2",),
    Route.CPU_AVX512_PLAIN: ("-O2", "-DNINFER_AVX512", "-DNINFER_PLAIN"),
}
_INCLUDE_LINE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
_SAID_AT_MOST = 300  # characters of a compiler's complaint


class BuildError(Exception):
    """Why a source cannot be compiled here; one line that names the remedy."""


def build(source: Path, body: Route, fresh: bool = False) -> Path:
    """The shared library of `source` for this body, found in the cache or compiled now.

    Args:
        fresh: compile in any case.

    Raises:
        BuildError: no compiler, a compiler that fails, or a cache folder that cannot be written.
    """
    command = (*compiler(), *_FLAGS, *_BODY_FLAGS[body], f"-I{INCLUDE}", f"-I{KERNELS}")
    name = f"{source.stem}-{body.value}-{_key(source, command)}"
    found = None if fresh else _intact(cache_dir(), name)
    return found or _build_in(cache_dir(), name, (*command, str(source)))


def cache_dir() -> Path:
    """Where compiled libraries are kept: $NINFER_CACHE_DIR, else `ninfer` in the user's cache folder.

    Raises:
        BuildError: neither variable is set, and the user has no home.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "ninfer"
    except RuntimeError as error:
        raise BuildError(f"this user has no home folder to keep compiled kernels in; set {CACHE_VARIABLE}") from error


@cache
def compiler() -> tuple[str, ...]:
    """The command of the C++ compiler, its program as a path: $CXX, else the first that is installed.

    Raises:
        BuildError: there is none.
    """
    wanted = os.environ.get("CXX", "").strip()
    try:
        candidates = [shlex.split(wanted)] if wanted else [[name] for name in _COMPILERS]
    except ValueError as error:
        raise BuildError(f"CXX={wanted} is no command ({error}); set it to a compiler that works") from error
    for name, *options in candidates:
        found = shutil.which(name)
        if found:
            return (found, *options)
    raise BuildError(f"{wanted or 'a C++ compiler'} is not installed; install g++ or clang++, or set CXX")


def _intact(folder: Path, name: str) -> Path | None:
    """The library called `name` whose bytes are those that were built; what is damaged is deleted."""
    for path in folder.glob(f"{name}-*.so"):
        with suppress(OSError):  # another process may be deleting it too
            if path.stem == f"{name}-{_digest(path.read_bytes())}":
                return path
            path.unlink()
    return None


def _build_in(folder: Path, name: str, command: tuple[str, ...]) -> Path:
    temporary = None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(suffix=".so", dir=folder)
        os.close(handle)
        _compile((*command, "-o", temporary))
        target = folder / f"{name}-{_digest(Path(temporary).read_bytes())}.so"
        os.replace(temporary, target)
    except OSError as error:
        raise BuildError(f"{folder} cannot be written ({error.strerror}); set {CACHE_VARIABLE}") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
    return target


def _compile(command: tuple[str, ...]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} failed: {_printable(str(error))}; set CXX to a compiler that works") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        said = _printable(lines[0]) if lines else f"exit status {done.returncode}"
        raise BuildError(f"{command[0]} failed: {said}; set CXX to a compiler that works")


def _printable(text: str) -> str:
    """What of a program's words fits in one line of a message."""
    return "".join(character if character.isprintable() else " " for character in text)[:_SAID_AT_MOST].strip()


def _key(source: Path, command: tuple[str, ...]) -> str:
    stat = os.stat(command[0])
    # Folders of the installation do not matter, what is in them does.
    flags = [part for part in command[1:] if not part.startswith("-I")]
    parts = [repr((flags, stat.st_size, stat.st_mtime_ns, platform.machine())).encode()]
    for path in _files(source):
        parts += [path.name.encode(), path.read_bytes()]
    return _digest(b"".join(len(part).to_bytes(8, "little") + part for part in parts))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:20]


def _files(source: Path) -> list[Path]:
    """The source and every header of ours that it includes, directly or not, where the compiler finds them."""
    found, unread = [source], [source]
    while unread:
        path = unread.pop()
        for name in _INCLUDE_LINE.findall(path.read_text(encoding="utf-8")):
            folders = (path.parent, INCLUDE, KERNELS)
            header = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if header is not None and header not in found:
                found.append(header)
                unread.append(header)
    return found
