"""Where CUDA's headers and its compiler library are: in pip wheels, else in an installed toolkit.

Only files are looked for; nothing is imported or loaded.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ninfer.errors import CudaError

KERNELS = Path(__file__).resolve().parents[1]
OURS = KERNELS / "include"
INSTALL = "pip install 'ninfer[cuda]', or 'ninfer[cuda12]' for a driver of CUDA 12"
_VARIABLES = ("CUDA_HOME", "CUDA_PATH")
_SYSTEM = Path("/usr/local/cuda")
_NEEDED = {
    "cuda.h": "nvidia-cuda-runtime",
    "cuda_bf16.h": "nvidia-cuda-runtime",
    "vector_types.h": "nvidia-cuda-runtime",
    "nv/target": "nvidia-cuda-cccl",
}
_HALF = "libnvrtc-builtins.so."
_VERSION = re.compile(r"^#define CUDA_VERSION (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Toolkit:
    """One installation of CUDA, as far as it is needed to compile.

    Attributes:
        release: of its headers, as in 13.5.
        includes: the folders of its headers.
        nvrtc: the compiler library; None where it is not installed.
    """

    release: tuple[int, int]
    includes: tuple[Path, ...]
    nvrtc: Path | None


def include_dirs() -> tuple[Path, ...]:
    """Folders to search for `#include`: ours first, then CUDA's.

    Raises:
        CudaError: a header of CUDA is missing; with the wheel that has it.
    """
    return (OURS, *toolkit().includes)


@cache
def toolkit(newest: int = sys.maxsize) -> Toolkit:
    """The first installation that has the headers, with the library if any has both.

    Where none has both, as with torch's wheels beside an installed compiler, headers get a library from elsewhere if it
    is of the same release. Two releases are never mixed.

    Args:
        newest: the last major release that may be used, which is what the driver supports.

    Raises:
        CudaError: a header is missing everywhere.
    """
    complete, lacking = [], set(_NEEDED)
    libraries: dict[tuple[int, int], Path] = {}
    for folders in _installations():
        libraries = _libraries(folders) | libraries
        includes = tuple(path for folder in folders for path in _includes(folder) if path.is_dir())
        missing = {name for name in _NEEDED if not any((path / name).is_file() for path in includes)}
        lacking = min(lacking, missing, key=len)
        if not missing and (release := _release(includes))[0] <= newest:
            complete.append(Toolkit(release, includes, _library(folders, release[0])))
    if not complete:
        raise CudaError(_complaint(lacking, newest))
    helped = (replace(found, nvrtc=libraries[found.release]) for found in complete if found.release in libraries)
    return next((found for found in complete if found.nvrtc), None) or next(helped, complete[0])


def _complaint(lacking: set[str], newest: int) -> str:
    if not lacking:
        return f"the driver is of CUDA {newest}, the installed headers are of a later one: update it, or {INSTALL}"
    wheels = ", ".join(sorted({_NEEDED[name] for name in lacking}))
    return f"CUDA's headers are not installed ({', '.join(sorted(lacking))}, in the wheels {wheels}): {INSTALL}"


def _installations() -> Iterator[tuple[Path, ...]]:
    """The folders of each: wheels of CUDA 13, wheels of CUDA 12, an installed toolkit."""
    spec = find_spec("nvidia")
    for base in map(Path, (spec and spec.submodule_search_locations) or ()):
        yield (base / "cu13",)
        yield tuple(base / part for part in ("cuda_nvrtc", "cuda_runtime", "cuda_cccl", "cuda_nvcc"))
    for variable in _VARIABLES:
        if os.environ.get(variable):
            yield (Path(os.environ[variable]),)
    yield (_SYSTEM,)


def _includes(folder: Path) -> tuple[Path, Path]:
    return folder / "include", folder / "include" / "cccl"


def _release(includes: tuple[Path, ...]) -> tuple[int, int]:
    text = next(path / "cuda.h" for path in includes if (path / "cuda.h").is_file()).read_text(errors="replace")
    found = _VERSION.search(text)
    number = int(found[1]) if found else 0
    return number // 1000, number % 1000 // 10


def _libraries(folders: tuple[Path, ...]) -> dict[tuple[int, int], Path]:
    """Compiler libraries by their release, which the name of their other half tells."""
    halves = (path for folder in folders for name in ("lib", "lib64") for path in (folder / name).glob(_HALF + "*"))
    found = {}
    for half in halves:
        numbers = half.name.removeprefix(_HALF).split(".")[:2]
        library = half.with_name(f"libnvrtc.so.{numbers[0]}")
        if len(numbers) == 2 and all(map(str.isdecimal, numbers)) and library.is_file():
            found[int(numbers[0]), int(numbers[1])] = library
    return found


def _library(folders: tuple[Path, ...], major: int) -> Path | None:
    places = (folder / name / f"libnvrtc.so.{major}" for folder in folders for name in ("lib", "lib64"))
    return next((path for path in places if path.is_file()), None)
