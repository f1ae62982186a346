"""Routing, and products with the chosen experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from ops import Experts

from gpu.checks.linears import product_with, stored_weight
from gpu.checks.outcome import Outcome, Sizes, as_numpy, outcome
from ninfer.artifact.formats import Format
from ninfer.kernels import (
    gate_up_swiglu,
    moe_experts,
    moe_route,
    moe_shared_add,
)
from ninfer.kernels import tolerances as within
from ninfer.kernels.moe import oracle as moe_oracle
from ninfer.kernels.moe import prepare_experts
from ninfer.kernels.weights import LinearWeight, prepare_linear


def check_experts(sizes: Sizes) -> Iterator[Outcome]:
    g, experts = sizes.geometry, sizes.geometry.experts
    if experts is None:
        return
    yield from _routing(experts, sizes.prompt)
    up = [stored_weight(Format.Q4, 2 * experts.size, g.hidden) for _ in range(experts.count)]
    down = [stored_weight(Format.Q4, g.hidden, experts.size) for _ in range(experts.count)]
    sides = [[prepare_linear([view]) for view, _ in side] for side in (up, down)]
    weights, products = prepare_experts(*sides), [product_with(stored) for _, stored in down]
    for tokens in sizes.tokens:
        x, shares = torch.randn(tokens, g.hidden), torch.rand(tokens, experts.chosen)
        ids = torch.stack([torch.randperm(experts.count)[: experts.chosen] for _ in range(tokens)])
        out = torch.empty_like(x)
        moe_experts(x, weights, ids, shares, out)
        wanted = _mixed([as_numpy(_gated(x, weight)) for weight in sides[0]], products, as_numpy(ids), as_numpy(shares))
        yield outcome(
            "moe_experts", f"{experts.chosen} of {experts.count} x {tokens}", out, wanted, within.MATMUL_CHAIN
        )
    x, score, routed = (torch.randn(5, width) for width in (g.hidden, 1, g.hidden))
    residual = torch.rand(5, g.hidden) + 16  # no sum cancels
    out = torch.empty_like(x)
    moe_shared_add(x, score, routed, residual, out)
    wanted = moe_oracle.moe_shared_add(*map(as_numpy, (x, score, routed, residual)))
    yield outcome("moe_shared_add", f"{g.hidden}", out, wanted, within.ELEMENTWISE)


def _gated(x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    out = torch.empty(len(x), weight.rows // 2)
    gate_up_swiglu(x, weight, out)
    return out


def _mixed(
    gated: Sequence[np.ndarray[Any, Any]],
    down: Sequence[moe_oracle.Linear],
    ids: np.ndarray[Any, Any],
    shares: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """What moe_experts should make of each expert's gated products f32[T, I].

    Those are the device's, which gate_up_swiglu gives with the same bits: of fp64's, some would lie beyond a border
    between two bf16, and a sum shows which way a single one of its terms was rounded.
    """
    rows = [
        sum(float(share) * down[expert](gated[expert][row : row + 1])[0] for expert, share in zip(*chosen, strict=True))
        for row, chosen in enumerate(zip(ids, shares, strict=True))
    ]
    return np.array(rows)


def _routing(experts: Experts, tokens: int) -> Iterator[Outcome]:
    logits, ids = torch.randn(tokens, experts.count), torch.empty(tokens, experts.chosen, dtype=torch.int64)
    shares = torch.empty(tokens, experts.chosen)
    moe_route(logits, experts.chosen, ids, shares)
    wanted_ids, wanted = moe_oracle.moe_route(as_numpy(logits), experts.chosen)
    yield outcome("moe_route ids", f"{experts.count}", ids, wanted_ids, within.EXACT)
    yield outcome("moe_route", f"{experts.count}", shares, wanted, within.PROBABILITY)


CHECKS = (check_experts,)
