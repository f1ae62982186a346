"""gdn and gdn_fold in CUDA C++: short rows token by token, long ones in chunks."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import torch

from ninfer.kernels.gdn.plan import (
    MOST_ROWS,
    Wave,
    advance_bytes,
    cuda_plan,
    prepare_bytes,
    record_bytes,
    slab_warps,
)
from ninfer.kernels.jit import CudaSource, Launch, device, workspace
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import StateSlots
from ninfer.kernels.steps import whole_steps

_STEP_ROWS = 16  # of the state, for a block of 128 threads
_POINTERS = ("qkv", "g", "beta", "state", "out", "slots", "segments")


class _StepArgs(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        ("batch", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("key_heads", ctypes.c_int64),
        ("value_heads", ctypes.c_int64),
        ("dv", ctypes.c_int64),
        ("most", ctypes.c_int64),
    )


class _ChunkArgs(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        ("records", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("key_heads", ctypes.c_int64),
        ("value_heads", ctypes.c_int64),
        ("first_chunk", ctypes.c_int64),
        ("chunks", ctypes.c_int64),
        ("rows", ctypes.c_int32 * MOST_ROWS),
    )


_STEPS = CudaSource(Path(__file__).with_name("steps.cu"), {"gdn_steps": _StepArgs})
_CHUNKS = CudaSource(Path(__file__).with_name("chunks.cu"), {"gdn_prepare": _ChunkArgs, "gdn_advance": _ChunkArgs})


def _step_macros(dk: int, whole: bool) -> Mapping[str, int]:
    return {"NINFER_DK": dk, "NINFER_WHOLE": int(whole)}


def _chunk_macros(dk: int, dv: int) -> Mapping[str, int]:
    sizes = {"NINFER_RECORD": record_bytes(dk, dv), "NINFER_PREPARE_SHARED": prepare_bytes(dk, dv)}
    return {"NINFER_DK": dk, "NINFER_DV": dv} | sizes


WARM: tuple[tuple[CudaSource, Mapping[str, int]], ...] = (
    (_STEPS, _step_macros(128, True)),
    (_CHUNKS, _chunk_macros(128, 128)),
)
DECODE_KERNELS = frozenset({"gdn_steps"})


def gdn(
    qkv: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    slots: StateSlots,
    segments: Segments,
    out: torch.Tensor,
) -> None:
    """See the contract in the package's docstring."""
    _run(qkv, g, beta, state, slots, segments, out)


def gdn_fold(
    qkv: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    slots: StateSlots,
    segments: Segments,
) -> None:
    """See the contract in the package's docstring."""
    _run(qkv, g, beta, state, slots, segments, None)


def _run(
    qkv: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    slots: StateSlots,
    segments: Segments,
    out: torch.Tensor | None,
) -> None:
    _, heads, dv, dk = state.shape
    width = qkv.shape[1]
    whole = whole_steps(dk, qkv, state) and whole_steps(width, qkv)
    plan = cuda_plan(segments.counts, heads, dk, dv, device().facts.shared_bytes if whole else 0)
    keep = (qkv, g, beta, state, slots, segments, *(() if out is None else (out,)))
    common = {
        **_pointers(qkv, g, beta, state, slots, segments, out),
        "batch": segments.batch,
        "width": width,
        "key_heads": (width - heads * dv) // (2 * dk),
        "value_heads": heads,
    }
    if plan.stepped:
        grid = -(-dv // _STEP_ROWS), heads, segments.batch
        how = Launch(grid, (128, 1, 1), macros=_step_macros(dk, whole))
        _STEPS.launch("gdn_steps", how, _StepArgs(**common, dv=dv, most=plan.most), *keep)
    for wave in plan.waves:
        _run_wave(wave, common, state, keep)


def _run_wave(wave: Wave, common: Mapping[str, int], state: torch.Tensor, keep: tuple[object, ...]) -> None:
    _, heads, dv, dk = state.shape
    rows, macros = len(wave.rows), _chunk_macros(dk, dv)
    warps = slab_warps(dv, rows * heads, device().facts.multiprocessors)
    records = workspace("gdn", rows * heads * wave.chunks * record_bytes(dk, dv), like=state)
    places = (ctypes.c_int32 * MOST_ROWS)(*wave.rows)
    args = _ChunkArgs(**common, records=records.data_ptr(), first_chunk=wave.first, chunks=wave.chunks, rows=places)
    prepare = Launch((wave.chunks, heads, rows), (256, 1, 1), prepare_bytes(dk, dv), macros)
    advance = Launch((dv // (16 * warps), heads, rows), (32 * warps, 1, 1), advance_bytes(dk, warps), macros)
    _CHUNKS.launch("gdn_prepare", prepare, args, *keep, records)
    _CHUNKS.launch("gdn_advance", advance, args, *keep, records)


def _pointers(
    qkv: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    slots: StateSlots,
    segments: Segments,
    out: torch.Tensor | None,
) -> dict[str, int]:
    owners = (qkv, g, beta, state, out, slots.data, segments.data)
    return {name: 0 if x is None else x.data_ptr() for name, x in zip(_POINTERS, owners, strict=True)}
