"""Mixture of experts with torch: rows are gathered per expert, their results are added per row in the row's order."""

from __future__ import annotations

import torch

from ninfer.kernels.exact import sigmoid
from ninfer.kernels.linear import linear
from ninfer.kernels.mlp import gate_up_swiglu
from ninfer.kernels.moe.experts import ExpertWeights


def moe_route(logits: torch.Tensor, top_k: int, ids_out: torch.Tensor, weights_out: torch.Tensor) -> None:
    """See the contract in the package's docstring.

    The softmax over all experts, renormalised over the chosen, is the softmax over the chosen: its denominator cancels.
    """
    ranked = logits.sort(dim=-1, descending=True, stable=True)
    ids_out.copy_(ranked.indices[:, :top_k])
    weights_out.copy_(ranked.values[:, :top_k].softmax(-1))


def moe_experts(
    x: torch.Tensor, experts: ExpertWeights, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
) -> None:
    """See the contract in the package's docstring."""
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < experts.count:
        raise ValueError(f"moe_experts: ids must lie in [0, {experts.count}), got {ids.tolist()}")
    rows, top_k = ids.shape
    results = x.new_empty((rows * top_k, x.shape[1]))
    places_of: dict[int, list[int]] = {}
    for place, expert in enumerate(ids.flatten().tolist()):
        places_of.setdefault(expert, []).append(place)
    for expert, places in places_of.items():
        index = torch.tensor(places)
        results[index] = _expert(x.index_select(0, index // top_k), experts, expert)
    _add_in_order(results.view(rows, top_k, x.shape[1]), weights, out)


def moe_shared_add(
    shared: torch.Tensor, score: torch.Tensor, routed: torch.Tensor, residual: torch.Tensor, out: torch.Tensor
) -> None:
    """See the contract in the package's docstring."""
    torch.add(residual, routed + shared * sigmoid(score), out=out)


def _expert(x: torch.Tensor, experts: ExpertWeights, expert: int) -> torch.Tensor:
    gate_up, down = experts.gate_up[expert], experts.down[expert]
    product, result = x.new_empty((len(x), down.columns)), x.new_empty((len(x), down.rows))
    gate_up_swiglu(x, gate_up, product)
    linear(product, down, result)
    return result


def _add_in_order(results: torch.Tensor, weights: torch.Tensor, out: torch.Tensor) -> None:
    """out [T, H] = sum over slots s, rising, of weights [T, s] * results [T, s, H], product and sum rounded apart."""
    torch.mul(results[:, 0], weights[:, :1], out=out)
    for slot in range(1, results.shape[1]):
        out.add_(results[:, slot] * weights[:, slot : slot + 1])
