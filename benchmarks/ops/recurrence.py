"""gdn and conv_silu: decode steps of some rows, and the reading of a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from ninfer.kernels import conv_silu, gdn
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import StateSlots
from ops.geometry import Geometry
from ops.work import Setting, Work

_TAPS = 4
_COPIES = 32


def works(setting: Setting) -> Iterator[Work]:
    """Both at each number of tokens."""
    shape = setting.geometry
    for count in setting.tokens:
        segments = setting.segments(count)
        yield _gdn(shape, segments)
        yield _conv(shape, segments)


def _slots(rows: int, copy: int) -> StateSlots:
    """Every copy of a work reads and writes other slots."""
    first = 2 * rows * copy
    return StateSlots(tuple(range(first, first + rows)), tuple(range(first + rows, first + 2 * rows)))


def _gdn(shape: Geometry, segments: Segments) -> Work:
    count, rows, size = segments.total, segments.batch, shape.gdn_head_dim
    qkv, g = torch.randn(count, shape.conv_width), -torch.rand(count, shape.gdn_value_heads)
    beta, out = torch.rand_like(g), torch.empty(count, shape.gdn_value_heads, size)
    copies = max(1, _COPIES // rows)
    state = torch.zeros(2 * rows * copies, shape.gdn_value_heads, size, size)
    slots = [_slots(rows, copy) for copy in range(copies)]
    calls = tuple(partial(gdn, qkv, g, beta, state, each, segments, out) for each in slots)
    nbytes = 2 * rows * state[0].nbytes + qkv.nbytes + out.nbytes
    return Work("gdn", _name(segments), calls, nbytes, 8 * count * shape.gdn_value_heads * size * size)


def _conv(shape: Geometry, segments: Segments) -> Work:
    x, weight = torch.randn(segments.total, shape.conv_width), torch.randn(_TAPS, shape.conv_width)
    history, out = torch.zeros(2 * segments.batch, _TAPS - 1, shape.conv_width), torch.empty_like(x)
    call = partial(conv_silu, x, weight, history, _slots(segments.batch, 0), segments, out)
    nbytes = x.nbytes + out.nbytes + history.nbytes + weight.nbytes
    return Work("conv_silu", _name(segments), (call,), nbytes, 2 * _TAPS * x.numel())


def _name(segments: Segments) -> str:
    return f"{segments.batch} rows x {segments.counts[0]}"
