"""Where the CUDA toolkit's headers and compiler library are: in the pip wheels, else in an installed toolkit.

Only files are looked for; nothing is imported or loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from ninfer.errors import CudaError

OURS = Path(__file__).resolve().parents[1] / "include"
INSTALL = "pip install 'ninfer[cuda]' (or 'ninfer[cuda12]' for a driver of CUDA 12)"
_TOOLKIT_VARIABLES = ("CUDA_HOME", "CUDA_PATH")
_NEEDED = {
    "cuda_bf16.h": "nvidia-cuda-runtime",
    "vector_types.h": "nvidia-cuda-runtime",
    "nv/target": "nvidia-cuda-cccl",
}


def include_dirs() -> tuple[Path, ...]:
    """Folders to search for `#include`: ours first, then CUDA's.

    Raises:
        CudaError: a header of CUDA is missing; with the wheel that has it.
    """
    return (OURS, *cuda_include_dirs())


@cache
def cuda_include_dirs() -> tuple[Path, ...]:
    """The folders that have CUDA's headers; those of one installation, never a mix of two.

    Raises:
        CudaError: as above.
    """
    missing = set(_NEEDED)
    for installation in installations():
        folders = tuple(folder for folder in _includes(installation) if folder.is_dir())
        lacking = {name for name in _NEEDED if not any((folder / name).is_file() for folder in folders)}
        if not lacking:
            return folders
        missing = min(missing, lacking, key=len)
    wheels = ", ".join(sorted({_NEEDED[name] for name in missing}))
    raise CudaError(f"CUDA's headers are not installed ({', '.join(sorted(missing))} of {wheels}): {INSTALL}")


def installations() -> Iterator[tuple[Path, ...]]:
    """Each toolkit as the folders that it is made of: wheels of CUDA 13, of CUDA 12, then an installed one."""
    spec = find_spec("nvidia")
    for base in map(Path, (spec and spec.submodule_search_locations) or ()):
        yield (base / "cu13",)
        yield tuple(base / part for part in ("cuda_nvrtc", "cuda_runtime", "cuda_cccl", "cuda_nvcc"))
    for variable in _TOOLKIT_VARIABLES:
        if os.environ.get(variable):
            yield (Path(os.environ[variable]),)
    yield (Path("/usr/local/cuda"),)


def _includes(installation: tuple[Path, ...]) -> Iterator[Path]:
    for folder in installation:
        yield folder / "include"
        yield folder / "include" / "cccl"
