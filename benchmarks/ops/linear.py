"""linear, projections and gate_up_swiglu over random stored weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from ninfer.artifact.formats import Format
from ninfer.artifact.layouts import PlaneName, geometry
from ninfer.kernels import gate_up_swiglu, linear, projections
from ninfer.kernels.weights import LinearWeight, WeightView, prepare_linear
from ops.work import MOST_COPIES, MOST_ROWS, Setting, Work

FORMATS = {fmt.name.lower(): fmt for fmt in Format if fmt is not Format.INT32}


def works(setting: Setting) -> Iterator[Work]:
    """The linears of one block of each kind and the head."""
    shape = setting.geometry
    hidden = shape.hidden
    for name in setting.formats:
        stored, allow_a8 = name.removesuffix("-a8"), name.endswith("-a8")
        make = partial(random_weight, FORMATS[stored], allow_a8)
        for count in setting.tokens:
            yield _linear(name, make, setting.cold_bytes, count, hidden, shape.intermediate, residual=True)
            yield _gate_up(name, make, setting.cold_bytes, count, 2 * shape.intermediate, hidden)
            wide = (shape.conv_width, shape.gdn_value_heads * shape.gdn_head_dim)
            gates = () if stored == "nvfp4" else (shape.gdn_value_heads,) * 2  # nvfp4 has whole blocks of 128 rows
            yield _projections(name, make, setting.cold_bytes, count, (*wide, *gates), hidden)
            if count <= MOST_ROWS:
                yield _linear(name, make, setting.cold_bytes, count, shape.vocabulary, hidden, residual=False)


Make = Callable[[int, int], LinearWeight]


def _linear(name: str, make: Make, cold: int, tokens: int, rows: int, columns: int, residual: bool) -> Work:
    x, out = torch.randn(tokens, columns), torch.zeros(tokens, rows)
    weights = _copies(make, cold, rows, columns)
    calls = tuple(partial(linear, x, weight, out, out if residual else None) for weight in weights)
    return _work("linear", name, calls, weights[0], x, out)


def _gate_up(name: str, make: Make, cold: int, tokens: int, rows: int, columns: int) -> Work:
    x, out = torch.randn(tokens, columns), torch.empty(tokens, rows // 2)
    weights = _copies(make, cold, rows, columns)
    return _work("gate_up_swiglu", name, tuple(partial(gate_up_swiglu, x, w, out) for w in weights), weights[0], x, out)


def _projections(name: str, make: Make, cold: int, tokens: int, rows: Sequence[int], columns: int) -> Work:
    x, outs = torch.randn(tokens, columns), [torch.empty(tokens, count) for count in rows]
    groups = [[make(count, columns) for count in rows] for _ in _copies(make, cold, sum(rows), columns)]
    calls = tuple(partial(projections, x, weights, outs) for weights in groups)
    together = make(sum(rows), columns)
    return _work("projections", name, calls, together, x, torch.cat(outs, dim=1))


def _work(
    op: str, name: str, calls: tuple[Callable[[], None], ...], weight: LinearWeight, x: torch.Tensor, out: torch.Tensor
) -> Work:
    shape = f"{name} [{weight.columns} -> {weight.rows}] x {len(x)}"
    nbytes = weight.nbytes + 4 * (x.numel() + out.numel())
    return Work(op, shape, calls, nbytes, 2 * len(x) * weight.rows * weight.columns)


def _copies(make: Make, cold: int, rows: int, columns: int) -> list[LinearWeight]:
    first = make(rows, columns)
    return [first, *(make(rows, columns) for _ in range(min(cold // first.nbytes, MOST_COPIES)))]


def random_weight(fmt: Format, allow_a8: bool, rows: int, columns: int) -> LinearWeight:
    """A weight of random codes."""
    view = WeightView(fmt, (rows, columns), 0, rows, random_bytes(fmt, (rows, columns)))
    return prepare_linear([view], allow_a8=allow_a8)


def random_bytes(fmt: Format, shape: tuple[int, int], scale: float = 0.5) -> torch.Tensor:
    """A stored matrix, uint8: random codes, all scales equal. On torch's default device."""
    stored = geometry(fmt, shape)
    data = torch.randint(0, 256, (stored.total_bytes,), dtype=torch.uint8)
    for plane in stored.planes:
        part = data[plane.offset : plane.offset + plane.size]
        if plane.name is PlaneName.DIVISOR:
            part.view(torch.float32).fill_(1.0)
        elif fmt is Format.FP32:
            part.view(torch.float32).normal_(0, scale)
        elif fmt is Format.BF16:
            part.view(torch.bfloat16).normal_(0, scale)
        elif plane.name is PlaneName.SCALES:
            _fill_scales(fmt, part, scale)
        elif fmt is Format.FP8_ROW:
            part.bitwise_and_(0xBF)  # no NaN among the codes
    return data


def _fill_scales(fmt: Format, scales: torch.Tensor, scale: float) -> None:
    if fmt is Format.NVFP4:
        scales.fill_(torch.tensor(scale, device="cpu").to(torch.float8_e4m3fn).view(torch.uint8).item())
    else:
        scales.view(torch.bfloat16 if fmt is Format.FP8_ROW else torch.float16).fill_(scale)
