"""Mixture of experts: routing, and the products with the chosen experts, each token choosing its own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from ninfer.kernels import moe_experts, moe_route
from ninfer.kernels.moe import prepare_experts
from ops.geometry import Experts
from ops.linear import FORMATS, random_weight
from ops.work import Setting, Work


def works(setting: Setting) -> Iterator[Work]:
    """At each number of tokens, in each format; nothing for a dense model."""
    experts = setting.geometry.experts
    if experts is None:
        return
    for count in setting.tokens:
        yield _route(experts, count)
    for name in setting.formats:
        yield from _products(setting, experts, name)


def _route(experts: Experts, count: int) -> Work:
    logits = torch.randn(count, experts.count)
    ids = torch.empty(count, experts.chosen, dtype=torch.int64)
    call = partial(moe_route, logits, experts.chosen, ids, torch.empty(count, experts.chosen))
    return Work("moe_route", f"{count} x {experts.count}", (call,), logits.nbytes + 12 * ids.numel())


def _products(setting: Setting, experts: Experts, name: str) -> Iterator[Work]:
    hidden, size = setting.geometry.hidden, experts.size
    make = partial(random_weight, FORMATS[name.removesuffix("-a8")], name.endswith("-a8"))
    weights = prepare_experts(
        [make(2 * size, hidden) for _ in range(experts.count)], [make(hidden, size) for _ in range(experts.count)]
    )
    for count in setting.tokens:
        x = torch.randn(count, hidden)
        chosen = [torch.randperm(experts.count, device="cpu")[: experts.chosen] for _ in range(count)]
        ids, read = setting.placement.upload(torch.stack(chosen)), len(torch.cat(chosen).unique())
        shares = torch.full(ids.shape, 1 / experts.chosen)
        call = partial(moe_experts, x, weights, ids, shares, torch.empty_like(x))
        nbytes = read * weights.nbytes // experts.count + 2 * x.nbytes
        flops = 6 * ids.numel() * hidden * size
        yield Work("moe_experts", f"{name} {count} x {experts.chosen} of {experts.count}", (call,), nbytes, flops)
