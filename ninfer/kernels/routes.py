"""The ways in which an op can be computed, and the machines that decide between them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Route(enum.Enum):
    """One implementation of an op. Every route is held to the same oracle and the same exactness."""

    CPU_AVX512 = "cpu_avx512"
    """Compiled C++ for x86-64 with AVX-512 and VNNI."""
    CPU_AVX2 = "cpu_avx2"
    """Compiled C++ for x86-64 with AVX2, FMA and F16C."""
    CPU_PORTABLE = "cpu_portable"
    """Compiled C++ for any machine."""
    CPU_AVX512_PLAIN = "cpu_avx512_plain"
    """The AVX-512 body over plain C++: runs anywhere, for tests only; no plan names it."""
    CPU_TORCH = "cpu_torch"
    CPU_ONEDNN = "cpu_onednn"
    CUDA = "cuda"
    """CUDA C++, compiled at run time. Which kernel, tile and split serve a call, the route's own plan says."""


class DeviceKind(enum.Enum):
    """The kind of machine that holds an op's tensors."""

    CPU = "cpu"
    CUDA = "cuda"


class Problem(NamedTuple):
    """What a plan looks at when nothing but the machine decides. A tuple, because it is built once per call.

    Attributes:
        body: the best body of the op's C++ source here; None where it has none or cannot be compiled.
    """

    device: DeviceKind
    body: Route | None = None


COMPILED_OR_TORCH: Mapping[Problem, tuple[Route, ...]] = MappingProxyType(
    {
        Problem(DeviceKind.CPU, Route.CPU_AVX512): (
            Route.CPU_AVX512,
            Route.CPU_AVX2,
            Route.CPU_PORTABLE,
            Route.CPU_TORCH,
        ),
        Problem(DeviceKind.CPU, Route.CPU_AVX2): (Route.CPU_AVX2, Route.CPU_PORTABLE, Route.CPU_TORCH),
        Problem(DeviceKind.CPU, Route.CPU_PORTABLE): (Route.CPU_PORTABLE, Route.CPU_TORCH),
        Problem(DeviceKind.CPU): (Route.CPU_TORCH,),
        Problem(DeviceKind.CUDA): (Route.CUDA,),
    }
)
"""The plan of an op whose one C++ source serves every call on a CPU."""
