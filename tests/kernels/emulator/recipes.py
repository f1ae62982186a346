"""How compiled files are made with the machine's C++ compiler, and kept for the next process.

As with the CPU kernels' libraries, a file's name in the cache tells all that went into it, so none is ever outdated.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ninfer.errors import CudaError
from ninfer.kernels.jit.headers import KERNELS, include_dirs
from ninfer.kernels.native.build import cache_dir, compiler

HERE = Path(__file__).resolve().parent
_HEADER = HERE / "emulator.hpp"
_INCLUDE_LINE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)
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
    "-fno-var-tracking",
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
_LIBRARIES = ("-nodefaultlibs", "-lm", "-lc")
_RUNTIME = tuple(f"{name}.cpp" for name in ("runtime", "ready", "warps", "faults", "signals", "check", "order"))


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one file is made.

    Attributes:
        name: what its name begins with.
        suffix: what it ends with.
        command: the compiler's, but for the output.
        text: what the compiler reads from its input.
        files: all that the compiler reads, CUDA's own headers apart.
        prelude: "check" or "fast" where the emulator's header comes first, compiled for that mode; else "".
    """

    name: str
    suffix: str
    command: tuple[str, ...]
    text: str
    files: tuple[Path, ...]
    prelude: str = ""

    def target(self) -> Path:
        """Where the file is, or would be."""
        stat = os.stat(self.command[0])
        parts = [repr((self.command, self.text, stat.st_size, stat.st_mtime_ns, platform.machine())).encode()]
        for path in self.files:
            parts += [path.name.encode(), path.read_bytes()]
        key = hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).hexdigest()[:20]
        return cache_dir() / f"{self.name}-{key}{self.suffix}"


def of_runtime() -> Recipe:
    """The runtime library."""
    sources = [HERE / name for name in _RUNTIME]
    command = (*compiler(), *_FLAGS, "-O2", *_includes(), *map(str, sources))
    return Recipe("emulator-runtime", ".so", command, "", _files(sources))


def of_module(source: Path, text: str, defines: Sequence[str], check: bool) -> Recipe:
    """A CUDA source.

    Args:
        text: the C++ to compile, which includes the source.
        defines: options that define macros.
    """
    mode = "check" if check else "fast"
    command = (*_dialect(check), *defines, "-x", "c++", "-", *_LIBRARIES)
    return Recipe(f"emulator-{source.stem}-{mode}", ".so", command, text, _files([source, _HEADER]), mode)


def make(recipe: Recipe) -> Path:
    """The file, found in the cache or made now.

    Raises:
        CudaError: with the compiler's words.
    """
    target = recipe.target()
    if not target.is_file():
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(suffix=recipe.suffix, dir=target.parent)
        os.close(handle)
        try:
            before = ("-include", str(_prelude(recipe.prelude == "check"))) if recipe.prelude else ()
            _compile((*recipe.command, *before, "-o", temporary), recipe.text)
            os.replace(temporary, target)
        finally:
            Path(temporary).unlink(missing_ok=True)
    return target


@cache
def _prelude(check: bool) -> Path:
    """The emulator's header precompiled, which halves the time that a source takes.

    Returns:
        the path without its last suffix, as the compiler wants it.
    """
    command = (*_dialect(check), "-Wno-pragma-once-outside-header", "-x", "c++-header", str(_HEADER))
    return make(Recipe("emulator-prelude", ".hpp.gch", command, "", _files([_HEADER]))).with_suffix("")


def _dialect(check: bool) -> tuple[str, ...]:
    return (*compiler(), *_FLAGS, *_MODULE_FLAGS, *(_CHECK_FLAGS if check else ()), *_includes())


def _includes() -> tuple[str, ...]:
    ours, *cuda = include_dirs()
    return (f"-I{HERE}", f"-I{ours}", f"-I{KERNELS}", *(part for path in cuda for part in ("-isystem", str(path))))


def _files(sources: Sequence[Path]) -> tuple[Path, ...]:
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
    return tuple(found)


def _compile(command: tuple[str, ...], text: str) -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, errors="replace", timeout=600)
    if done.returncode:
        raise CudaError(f"{command[0]} failed:\n{done.stderr}")
