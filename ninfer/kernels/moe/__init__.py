"""Mixture of experts: moe_route picks experts, moe_experts runs them, moe_shared_add adds the shared expert.

Math: moe_route: p = softmax(logits); ids = the k greatest p, falling, ties: lower id first;
        weights = p[ids] / sum p[ids].
    moe_experts: out = sum_s weights[s] * down_e(SiLU(gate_e x) * up_e x), e = ids[s], added in rising s.
    moe_shared_add: out = out + shared / (1 + exp(-score)).
Shapes: logits [T, E]; ids, weights [T, k]; x, shared, out [T, H]; score [T, 1]; per expert gate|up [2I, H] and
    down [H, I].
Dtypes: ids int64, all else fp32; expert weights as in `linear`.
Domain: finite inputs; 1 <= k <= E; ids of a row distinct, in [0, E); any T >= 0.
Effects: each writes its outputs. Only the experts in ids are read.
Workspace: the torch route allocates [T * k, H] and the products of one expert at a time.
Numeric criterion: tolerances.PROBABILITY (ids exact), MATMUL_CHAIN and ELEMENTWISE against the oracle. A row's experts
    are added in the order of its own list, each computed by row tiles, so its bits are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from ninfer.kernels.checks import check, check_matrix
from ninfer.kernels.moe import torch_cpu
from ninfer.kernels.moe.experts import ExpertWeights, prepare_experts
from ninfer.kernels.moe.plan import plan
from ninfer.kernels.routes import Problem, Route, device_kind

__all__ = ["IMPLEMENTATIONS", "ExpertWeights", "moe_experts", "moe_route", "moe_shared_add", "prepare_experts"]

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {
        "moe_route": MappingProxyType({Route.CPU_TORCH: torch_cpu.moe_route}),
        "moe_experts": MappingProxyType({Route.CPU_TORCH: torch_cpu.moe_experts}),
        "moe_shared_add": MappingProxyType({Route.CPU_TORCH: torch_cpu.moe_shared_add}),
    }
)


def moe_route(logits: torch.Tensor, top_k: int, ids_out: torch.Tensor, weights_out: torch.Tensor) -> None:
    """Write the experts of each row and their weights; see the module's contract.

    Raises:
        ValueError: a shape or dtype outside the contract, or top_k outside [1, E].
    """
    rows, experts = check_matrix("moe_route", "logits", logits, torch.float32)
    if not 1 <= top_k <= experts:
        raise ValueError(f"moe_route: top_k must lie in [1, {experts}], got {top_k}")
    check("moe_route", "ids_out", ids_out, (rows, top_k), torch.int64)
    check("moe_route", "weights_out", weights_out, (rows, top_k), torch.float32)
    route = plan(Problem(device_kind(logits)))[0]
    IMPLEMENTATIONS["moe_route"][route](logits, top_k, ids_out, weights_out)


def moe_experts(
    x: torch.Tensor, experts: ExpertWeights, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
) -> None:
    """Write the weighted sum of each row's experts to out; see the module's contract.

    Raises:
        ValueError: a shape or dtype outside the contract, or an id outside [0, E).
    """
    rows, top_k = check_matrix("moe_experts", "ids", ids, torch.int64)
    check("moe_experts", "x", x, (rows, experts.columns), torch.float32)
    check("moe_experts", "weights", weights, (rows, top_k), torch.float32)
    check("moe_experts", "out", out, (rows, experts.columns), torch.float32)
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < experts.count:
        raise ValueError(f"moe_experts: ids must lie in [0, {experts.count}), got {ids.tolist()}")
    route = plan(Problem(device_kind(x)))[0]
    IMPLEMENTATIONS["moe_experts"][route](x, experts, ids, weights, out)


def moe_shared_add(shared: torch.Tensor, score: torch.Tensor, out: torch.Tensor) -> None:
    """Add the gated shared expert to out; see the module's contract.

    Raises:
        ValueError: a shape or dtype outside the contract.
    """
    shape = check_matrix("moe_shared_add", "shared", shared, torch.float32)
    check("moe_shared_add", "score", score, (shape[0], 1), torch.float32)
    check("moe_shared_add", "out", out, shape, torch.float32)
    route = plan(Problem(device_kind(out)))[0]
    IMPLEMENTATIONS["moe_shared_add"][route](shared, score, out)
