"""conv_silu in CUDA C++."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import torch

from ninfer.kernels.conv_silu.plan import CUDA_THREADS, cuda_plan
from ninfer.kernels.jit import CudaSource, Launch
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import StateSlots
from ninfer.kernels.steps import whole_steps


class _Args(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("weight", ctypes.c_void_p),
        ("history", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("segments", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("run", ctypes.c_int64),
    )


_SOURCE = CudaSource(Path(__file__).with_name("conv_silu.cu"), {"conv_silu": _Args})


def _macros(taps: int, whole: bool) -> Mapping[str, int]:
    return {"NINFER_TAPS": taps, "NINFER_WHOLE": int(whole)}


WARM: tuple[tuple[CudaSource, Mapping[str, int]], ...] = ((_SOURCE, _macros(4, True)),)
DECODE_KERNELS = frozenset({"conv_silu"})


def conv_silu(
    x: torch.Tensor,
    weight: torch.Tensor,
    history: torch.Tensor,
    slots: StateSlots,
    segments: Segments,
    out: torch.Tensor,
) -> None:
    """See the contract in the package's docstring."""
    taps, channels = weight.shape
    plan = cuda_plan(segments.counts, channels, taps)
    args = _Args(
        x=x.data_ptr(),
        weight=weight.data_ptr(),
        history=history.data_ptr(),
        out=out.data_ptr(),
        slots=slots.data.data_ptr(),
        segments=segments.data.data_ptr(),
        batch=segments.batch,
        channels=channels,
        run=plan.run,
    )
    macros = _macros(taps, whole_steps(channels, x, weight, history, out))
    how = Launch((plan.blocks, plan.runs, segments.batch), (CUDA_THREADS, 1, 1), macros=macros)
    _SOURCE.launch("conv_silu", how, args, x, weight, history, slots, segments, out)
