"""Python's side of native_probe.cpp: kernels that show what the loader, the team and simd.hpp do."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from ninfer.kernels.native import Kernel
from ninfer.kernels.routes import Route

SOURCE = Path(__file__).with_name("native_probe.cpp")
VECTOR_FUNCTIONS = (
    "vexp",
    "vsilu",
    "vsigmoid",
    "from_half",
    "from_bf16",
    "from_int8",
    "round_even",
    "sum",
    "greatest",
    "sum_integers",
    "fma",
    "vmax",
    "vmin",
    "vabs",
    "truncate",
    "to_f32",
    "load_head",
    "store_head",
    "splat",
    "splati",
    "from_half_word",
    "from_bf16_word",
)
"""The functions that `vectors` applies, by number."""


class WaveArgs(ctypes.Structure):
    _fields_ = (
        ("values", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("grain", ctypes.c_int64),
        ("rounds", ctypes.c_int64),
    )


class _CountArgs(ctypes.Structure):
    _fields_ = (
        ("visits", ctypes.c_void_p),
        ("sizes", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("grain", ctypes.c_int64),
    )


class _ScratchArgs(ctypes.Structure):
    _fields_ = (("faults", ctypes.c_void_p), ("own", ctypes.c_int64), ("shared", ctypes.c_int64))


class _VectorArgs(ctypes.Structure):
    _fields_ = (
        ("values", ctypes.c_void_p),
        ("more", ctypes.c_void_p),
        ("last", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("what", ctypes.c_int64),
    )


def fresh_process(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program in the repository, where nothing has been loaded yet."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **environment},
        cwd=Path(__file__).parents[2],
    )


def wave(body: Route, values: torch.Tensor, grain: int, rounds: int) -> None:
    """After an even number of rounds, values[0] (of i64[2, N], zero before) is that number everywhere."""
    args = WaveArgs(values.data_ptr(), values.shape[1], grain, rounds)
    Kernel(SOURCE, "wave", WaveArgs).launch(body, args, values)


def count(body: Route, visits: torch.Tensor, sizes: torch.Tensor, grain: int) -> None:
    """Add 1 to each of visits i32[N]; sizes i32[1] gets the number of threads."""
    args = _CountArgs(visits.data_ptr(), sizes.data_ptr(), len(visits), grain)
    Kernel(SOURCE, "count", _CountArgs).launch(body, args, visits, sizes)


def scratch(body: Route, faults: torch.Tensor, own: int, shared: int) -> None:
    """Add to faults i64[1] whatever is wrong with two own blocks (of 12 and `own` bytes) and `shared` i64 of all."""
    Kernel(SOURCE, "scratch", _ScratchArgs).launch(body, _ScratchArgs(faults.data_ptr(), own, shared), faults)


def lanes(body: Route) -> int:
    """Elements of one vector."""
    return 16 if body in (Route.CPU_AVX512, Route.CPU_AVX512_PLAIN) else 8


def vectors(
    body: Route, name: str, *operands: NDArray[np.generic], dtype: DTypeLike = np.float32, per_vector: bool = False
) -> NDArray[np.generic]:
    """One of VECTOR_FUNCTIONS over operands of a whole number of vectors; one result per vector if `per_vector`."""
    inputs = [np.ascontiguousarray(operand) for operand in operands]
    assert inputs[0].size % lanes(body) == 0
    number = inputs[0].size // lanes(body)
    out = np.zeros(number if per_vector else inputs[0].size, dtype)
    pointers = [operand.ctypes.data for operand in inputs] + [0] * (3 - len(inputs))
    args = _VectorArgs(*pointers, out.ctypes.data, number, VECTOR_FUNCTIONS.index(name))
    Kernel(SOURCE, "vectors", _VectorArgs).launch(body, args, inputs, out)
    return out
