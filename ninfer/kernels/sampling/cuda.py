"""sample on a GPU: the rows' parameters go there in one copy, the tokens and faults come back in one."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch

from ninfer.kernels.jit import CudaSource, Launch, on_device, workspace
from ninfer.kernels.sampling.params import SampleFault, SamplingBatch, SamplingRow
from ninfer.kernels.sampling.plan import cuda_plan
from ninfer.kernels.spans import THREADS

_ROW_THREADS = 512
_SCORED_BYTES = 16
_ALIGN = 16
_ID_OUTSIDE = 2


class _Parameters(ctypes.Structure):
    _fields_ = (
        ("temperature", ctypes.c_double),
        ("top_p", ctypes.c_double),
        ("min_p", ctypes.c_double),
        ("presence", ctypes.c_double),
        ("frequency", ctypes.c_double),
        ("repetition", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("position", ctypes.c_uint64),
        ("top_k", ctypes.c_int64),
        ("output_ids", ctypes.c_void_p),
        ("output_counts", ctypes.c_void_p),
        ("prompt_ids", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
        ("penalised", ctypes.c_void_p),
        ("output_count", ctypes.c_int32),
        ("prompt_count", ctypes.c_int32),
        ("purpose", ctypes.c_uint32),
        ("unused", ctypes.c_int32),
    )


class _Args(ctypes.Structure):
    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("states", ctypes.c_void_p),
        ("peaks", ctypes.c_void_p),
        ("masses", ctypes.c_void_p),
        ("fresh", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("outcome", ctypes.c_void_p),
        ("count", ctypes.c_int32),
        ("columns", ctypes.c_int32),
        ("spans", ctypes.c_int32),
        ("words", ctypes.c_int32),
        ("scale", ctypes.c_int32),
        ("unused", ctypes.c_int32),
    )


_KERNELS = ("sample_open", "sample_peaks", "sample_masses", "sample_choose")
SOURCE = CudaSource(Path(__file__).with_name("sampling.cu"), dict.fromkeys(_KERNELS, _Args))
WARM: tuple[tuple[CudaSource, dict[str, int]], ...] = ((SOURCE, {}),)
DECODE_KERNELS = frozenset(_KERNELS)


def sample(logits: torch.Tensor, params: SamplingBatch, out_ids: torch.Tensor) -> None:
    """See the contract in the package's docstring. Waits for the outcome in order to check it."""
    if not params.rows:
        return
    settle(choose(logits, params, out_ids), logits.shape[1])


def choose(logits: torch.Tensor, params: SamplingBatch, out_ids: torch.Tensor) -> torch.Tensor:
    """Bring the parameters over and launch the choice.

    Returns:
        int64 [2, B] for `settle`, written when the kernels have run: tokens (if every row has one) and a status each.
        It lies in scratch memory, which the next call uses again.
    """
    rows, columns = logits.shape
    plan = cuda_plan(rows, columns)
    scratch = workspace("sample", plan.workspace, like=logits)
    table = _bring(params, logits)
    base = scratch.data_ptr()
    args = _Args(
        logits.data_ptr(),
        table.data_ptr(),
        base + plan.states,
        base,
        base + plan.masses,
        base + plan.fresh,
        out_ids.data_ptr(),
        base + plan.outcome,
        rows,
        columns,
        plan.spans,
        plan.words,
        plan.scale,
    )
    keep = (logits, out_ids, scratch, table, *(t for row in params.rows for t in (row.prompt_ids, row.mask)))
    per_row, per_span = Launch((rows, 1, 1), (_ROW_THREADS, 1, 1)), Launch(plan.grid, (THREADS, 1, 1))
    for kernel, how in zip(_KERNELS, (per_row, per_span, per_span, per_row), strict=True):
        SOURCE.launch(kernel, how, args, *keep)
    return scratch[plan.outcome : plan.outcome + rows * 16].view(torch.int64).view(2, rows)


def settle(outcome: torch.Tensor, columns: int) -> list[int]:
    """The tokens of `choose`; waits for them.

    Raises:
        SampleFault, ValueError: as `sample` does.
    """
    tokens, status = outcome.tolist()
    if _ID_OUTSIDE in status:
        row = status.index(_ID_OUTSIDE)
        raise ValueError(f"sample: row {row}: prompt_ids and outputs must lie in [0, {columns})")
    if any(status):
        raise SampleFault(tuple(row for row, fault in enumerate(status) if fault))
    return list(tokens)


# ---- the table of parameters ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece:
    """Host memory that travels with the table.

    Attributes:
        address, size: where it is, and its bytes.
        offset: where it goes.
    """

    address: int
    size: int
    offset: int


class _Layout:
    """Places in the table, taken one after another."""

    def __init__(self, rows: int) -> None:
        self.used = rows * ctypes.sizeof(_Parameters)
        self.pieces: list[_Piece] = []

    def room(self, size: int) -> int:
        """A place of `size` bytes."""
        offset = -(-self.used // _ALIGN) * _ALIGN
        self.used = offset + size
        return offset

    def copy(self, address: int, size: int) -> int:
        """A place that gets `size` bytes of the host's memory."""
        offset = self.room(size)
        self.pieces.append(_Piece(address, size, offset))
        return offset


@dataclass(frozen=True, slots=True)
class _Places:
    """Where a row's parts lie in the table; None where they do not."""

    output_ids: int | None = None
    output_counts: int | None = None
    prompt_ids: int | None = None
    mask: int | None = None


def _bring(params: SamplingBatch, logits: torch.Tensor) -> torch.Tensor:
    """The table in the memory of the device: parameters per row, then what they point to."""
    layout = _Layout(len(params.rows))
    places = [_place(row, layout) for row in params.rows]
    copied = layout.used
    scratch = [layout.room(_SCORED_BYTES * sum(_counts(row))) for row in params.rows]
    table = workspace("sample rows", layout.used, like=logits)
    parameters = [
        _parameters(row, position, place, table.data_ptr(), table.data_ptr() + penalised)
        for row, position, place, penalised in zip(params.rows, params.positions, places, scratch, strict=True)
    ]
    host = torch.empty(copied, dtype=torch.uint8, device="cpu", pin_memory=logits.is_cuda)
    packed = (_Parameters * len(parameters))(*parameters)
    ctypes.memmove(host.data_ptr(), packed, ctypes.sizeof(packed))
    for piece in layout.pieces:
        ctypes.memmove(host.data_ptr() + piece.offset, piece.address, piece.size)
    table[:copied].copy_(host, non_blocking=True)
    return table


def _counts(row: SamplingRow) -> tuple[int, int]:
    """How many output and prompt tokens are penalised."""
    repeats = row.repetition_penalty != 1
    if not (repeats or row.presence_penalty or row.frequency_penalty):
        return 0, 0
    outputs = 0 if row.outputs is None else row.outputs.packed.count
    return outputs, row.packed.prompt_count if repeats else 0


def _place(row: SamplingRow, layout: _Layout) -> _Places:
    outputs, prompts = _counts(row)
    ids = counts = prompt = mask = None
    if outputs and row.outputs is not None:
        ids = layout.copy(row.outputs.packed.ids, outputs * 8)
        counts = layout.copy(row.outputs.packed.counts, outputs * 8)
    if prompts and row.prompt_ids is not None and not on_device(row.prompt_ids):
        prompt = layout.copy(row.prompt_ids.data_ptr(), prompts * 8)
    if row.mask is not None and not on_device(row.mask):
        mask = layout.copy(row.mask.data_ptr(), row.mask.numel() * 4)
    return _Places(ids, counts, prompt, mask)


def _parameters(row: SamplingRow, position: int, place: _Places, base: int, penalised: int) -> _Parameters:
    def address(offset: int | None, elsewhere: torch.Tensor | None) -> int | None:
        if offset is not None:
            return base + offset
        return None if elsewhere is None else elsewhere.data_ptr()

    outputs, prompts = _counts(row)
    return _Parameters(
        temperature=row.temperature,
        top_p=row.top_p,
        min_p=row.min_p,
        presence=row.presence_penalty,
        frequency=row.frequency_penalty,
        repetition=row.repetition_penalty,
        seed=row.seed,
        position=position,
        top_k=row.packed.top_k,
        output_ids=address(place.output_ids, None),
        output_counts=address(place.output_counts, None),
        prompt_ids=address(place.prompt_ids, row.prompt_ids),
        mask=address(place.mask, row.mask),
        penalised=penalised,
        output_count=outputs,
        prompt_count=prompts,
        purpose=row.purpose,
    )
