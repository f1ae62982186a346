"""The recurrence and the convolution before it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from ops import Geometry

from gpu.checks.outcome import Outcome, Sizes, as_numpy, outcome
from ninfer.kernels import (
    conv_silu,
    gdn,
    gdn_fold,
)
from ninfer.kernels import tolerances as within
from ninfer.kernels.conv_silu import oracle as conv_oracle
from ninfer.kernels.gdn import oracle as gdn_oracle
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import StateSlots


def check_recurrence(sizes: Sizes) -> Iterator[Outcome]:
    for counts in ((1, 1, 1), (sizes.prompt, 1)):
        yield from _gdn(sizes.geometry, counts)
        yield from _conv(sizes.geometry, counts)


def _places(rows: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Each row from one slot to another; the first from zeros."""
    return (-1, *range(1, rows)), tuple(range(rows, 2 * rows))


def _gdn(g: Geometry, counts: tuple[int, ...]) -> Iterator[Outcome]:
    tokens, (sources, targets) = sum(counts), _places(len(counts))
    qkv, state = torch.randn(tokens, g.conv_width), torch.randn(2 * len(counts), *_state_shape(g)) * 0.1
    decay, beta = -torch.rand(tokens, g.gdn_value_heads), torch.rand(tokens, g.gdn_value_heads)
    keys, before = g.gdn_key_heads * g.gdn_head_dim, as_numpy(state).copy()
    parts = [x.view(tokens, -1, g.gdn_head_dim) for x in qkv.split([keys, keys, qkv.shape[1] - 2 * keys], dim=1)]
    out = torch.empty(tokens, g.gdn_value_heads, g.gdn_head_dim)
    places = StateSlots(sources, targets), Segments(counts, (0,) * len(counts))
    folded = state.clone()
    gdn(qkv, decay, beta, state, *places, out)
    gdn_fold(qkv, decay, beta, folded, *places)
    arrays = (*map(as_numpy, parts), as_numpy(decay), as_numpy(beta), before)
    wanted, after = gdn_oracle.gdn(*arrays, sources, targets, counts)
    yield outcome("gdn", f"{counts}", out, wanted, within.RECURRENCE)
    yield outcome("gdn state", f"{counts}", state, after, within.RECURRENCE)
    yield outcome("gdn_fold", f"{counts}", folded, after, within.RECURRENCE)


def _state_shape(g: Geometry) -> tuple[int, int, int]:
    return g.gdn_value_heads, g.gdn_head_dim, g.gdn_head_dim


def _conv(g: Geometry, counts: tuple[int, ...]) -> Iterator[Outcome]:
    sources, targets = _places(len(counts))
    x, weight = torch.randn(sum(counts), g.conv_width), torch.randn(4, g.conv_width)
    history, out = torch.randn(2 * len(counts), 3, g.conv_width), torch.empty_like(x)
    before = as_numpy(history).copy()
    conv_silu(x, weight, history, StateSlots(sources, targets), Segments(counts, (0,) * len(counts)), out)
    wanted, after = conv_oracle.conv_silu(as_numpy(x), as_numpy(weight), before, sources, targets, counts)
    yield outcome("conv_silu", f"{counts}", out, wanted, within.CONVOLUTION)
    yield outcome("conv_silu history", f"{counts}", history, after, within.EXACT)


CHECKS = (check_recurrence,)
