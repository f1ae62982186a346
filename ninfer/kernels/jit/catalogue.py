"""What the ops' CUDA routes declare: the modules to compile before the first request, and kernels that must not spill.

A route module `ninfer/kernels/<op>/cuda*.py` exports them as

    WARM: tuple[tuple[CudaSource, Mapping[str, int]], ...]  # each source with each combination of macros
    DECODE_KERNELS: frozenset[str]                          # names of kernels that run in every decode round
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from ninfer.kernels.jit.headers import KERNELS

if TYPE_CHECKING:
    from ninfer.kernels.jit import CudaSource


def warm() -> tuple[tuple[CudaSource, Mapping[str, int]], ...]:
    """Each source with each combination of macros that the official models use, once."""
    found = {}
    for module in route_modules():
        for source, macros in getattr(module, "WARM", ()):
            found[source.path, frozenset(macros.items())] = (source, macros)
    return tuple(found.values())


def decode_kernels() -> frozenset[str]:
    """Names of the kernels in which registers must not spill."""
    return frozenset().union(*(getattr(module, "DECODE_KERNELS", ()) for module in route_modules()))


def sources() -> tuple[Path, ...]:
    """Every `.cu` file of the kernels."""
    return tuple(sorted(KERNELS.glob("*/*.cu")))


def route_modules(op: str = "*") -> Iterator[ModuleType]:
    """The CUDA route modules of one op, or of all."""
    for path in sorted(KERNELS.glob(f"{op}/cuda*.py")):
        yield import_module(f"ninfer.kernels.{path.parent.name}.{path.stem}")
