"""linear, projections and gate_up_swiglu over random stored weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from ninfer.artifact.formats import Format
from ninfer.artifact.layouts import PlaneName, geometry
from ninfer.kernels import gate_up_swiglu, linear, projections
from ninfer.kernels.weights import LinearWeight, WeightView, prepare_linear
from ops.geometry import Geometry
from ops.work import Work

_FORMATS = {fmt.name.lower(): fmt for fmt in Format if fmt is not Format.INT32}
_COLD_BYTES = 96 << 20
_ONE_HALF = 0x3800  # as fp16


def works(shape: Geometry, tokens: Sequence[int], formats: Sequence[str]) -> Iterator[Work]:
    """The linears of one block of each kind and the head. A format may end in `-a8`: activations may be quantised."""
    hidden = shape.hidden
    for name in formats:
        stored, allow_a8 = name.removesuffix("-a8"), name.endswith("-a8")
        make = partial(_weight, _FORMATS[stored], allow_a8)
        for count in tokens:
            yield _linear(name, make, count, hidden, shape.intermediate, residual=True)
            yield _gate_up(name, make, count, 2 * shape.intermediate, hidden)
            value = shape.gdn_value_heads * shape.gdn_head_dim
            yield _projections(name, make, count, (shape.conv_width, value, 16, 16), hidden)
            if count <= 8:
                yield _linear(name, make, count, shape.vocabulary, hidden, residual=False)


Make = Callable[[int, int], LinearWeight]


def _linear(name: str, make: Make, tokens: int, rows: int, columns: int, residual: bool) -> Work:
    x, out = torch.randn(tokens, columns), torch.zeros(tokens, rows)
    weights = _copies(make, rows, columns)
    calls = tuple(partial(linear, x, weight, out, out if residual else None) for weight in weights)
    return _work("linear", name, calls, weights[0], x, out)


def _gate_up(name: str, make: Make, tokens: int, rows: int, columns: int) -> Work:
    x, out = torch.randn(tokens, columns), torch.empty(tokens, rows // 2)
    weights = _copies(make, rows, columns)
    return _work("gate_up_swiglu", name, tuple(partial(gate_up_swiglu, x, w, out) for w in weights), weights[0], x, out)


def _projections(name: str, make: Make, tokens: int, rows: Sequence[int], columns: int) -> Work:
    x, outs = torch.randn(tokens, columns), [torch.empty(tokens, count) for count in rows]
    groups = [[make(count, columns) for count in rows] for _ in _copies(make, sum(rows), columns)]
    calls = tuple(partial(projections, x, weights, outs) for weights in groups)
    together = make(sum(rows), columns)
    return _work("projections", name, calls, together, x, torch.cat(outs, dim=1))


def _work(
    op: str, name: str, calls: tuple[Callable[[], None], ...], weight: LinearWeight, x: torch.Tensor, out: torch.Tensor
) -> Work:
    shape = f"{name} [{weight.columns} -> {weight.rows}] x {len(x)}"
    nbytes = weight.nbytes + 4 * (x.numel() + out.numel())
    return Work(op, shape, calls, nbytes, 2 * len(x) * weight.rows * weight.columns)


def _copies(make: Make, rows: int, columns: int) -> list[LinearWeight]:
    first = make(rows, columns)
    return [first, *(make(rows, columns) for _ in range(min(_COLD_BYTES // first.nbytes, 32)))]


def _weight(fmt: Format, allow_a8: bool, rows: int, columns: int) -> LinearWeight:
    """Random codes; scales are one half."""
    stored = geometry(fmt, (rows, columns))
    data = torch.randint(0, 256, (stored.total_bytes,), dtype=torch.uint8)
    for plane in stored.planes:
        part = data[plane.offset : plane.offset + plane.size]
        if plane.name is PlaneName.DIVISOR or fmt is Format.FP32:
            part.view(torch.float32).fill_(0.5)
        elif fmt is Format.BF16:
            part.view(torch.bfloat16).normal_()
        elif plane.name is PlaneName.SCALES:
            part.view(torch.int16).fill_(_ONE_HALF)
        elif fmt is Format.FP8_ROW:
            part.bitwise_and_(0xBF)  # no NaN among the codes
    return prepare_linear([WeightView(fmt, (rows, columns), 0, rows, data)], allow_a8=allow_a8)
