"""Mixture of experts: moe_route picks experts, moe_experts runs them, moe_shared_add adds the shared expert.

Math: moe_route: p = softmax(logits); ids = the k greatest p, falling, ties: lower id first;
        weights = p[ids] / sum p[ids].
    moe_experts: out = sum_s weights[s] * down_e(SiLU(gate_e x) * up_e x), e = ids[s], added in rising s. Inputs of a
        weight are quantised and rotated as `linear` says.
    moe_shared_add: out = residual + (routed + shared / (1 + exp(-score))).
Shapes: logits [T, E]; ids, weights [T, k]; x, shared, routed, residual, out [T, H]; score [T, 1]; per expert gate|up
    [2I, H] and down [H, I].
Dtypes: ids int64, all else fp32; expert weights as in `linear`.
Domain: finite inputs; 1 <= k <= E; ids of a row distinct, in [0, E), which only the torch route checks, because tapes
    read them when they run; any T >= 0. A row that is not finite affects only itself, and gets ids in [0, E).
Effects: each writes its outputs. out of moe_shared_add may be any of its inputs. Only the experts in ids are read.
Workspace: moe_experts: torch allocates [T * k, H] and the products of one expert at a time; compiled routes take
    [T * k, I] from the team (with [T, H] and [T * k, I] in 8 bits where inputs are quantised, [T * k, H] where they are
    rotated), and from each thread up to 1 MiB of results, or [T * k, 16] if that is more; CUDA keeps [T * k, I] and
    [T * k, H], and for tiles of many rows the inputs of one product in bf16.
Numeric criterion: tolerances.PROBABILITY (ids exact), MATMUL_CHAIN and ELEMENTWISE against the oracle. CUDA rounds the
    inputs of both products to bf16 where their weights are not fp32; the oracle then gets them so. A row's experts are
    added in the order of its own list, each with the bits of gate_up_swiglu and linear: a row's bits are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from ninfer.kernels.checks import check, check_matrix
from ninfer.kernels.dispatch import problem
from ninfer.kernels.moe import compiled_cpu, cuda, cuda_experts, torch_cpu
from ninfer.kernels.moe.experts import ExpertWeights, prepare_experts
from ninfer.kernels.moe.plan import plan
from ninfer.kernels.native import compiled_routes
from ninfer.kernels.routes import Route

__all__ = ["IMPLEMENTATIONS", "ExpertWeights", "moe_experts", "moe_route", "moe_shared_add", "prepare_experts"]

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {
        "moe_route": MappingProxyType(
            compiled_routes(compiled_cpu.moe_route) | {Route.CPU_TORCH: torch_cpu.moe_route, Route.CUDA: cuda.moe_route}
        ),
        "moe_experts": MappingProxyType(
            compiled_routes(compiled_cpu.moe_experts)
            | {Route.CPU_TORCH: torch_cpu.moe_experts, Route.CUDA: cuda_experts.moe_experts}
        ),
        "moe_shared_add": MappingProxyType(
            compiled_routes(compiled_cpu.moe_shared_add)
            | {Route.CPU_TORCH: torch_cpu.moe_shared_add, Route.CUDA: cuda.moe_shared_add}
        ),
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
    route = plan(problem(logits, compiled_cpu.SOURCE))[0]
    IMPLEMENTATIONS["moe_route"][route](logits, top_k, ids_out, weights_out)


def moe_experts(
    x: torch.Tensor, experts: ExpertWeights, ids: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
) -> None:
    """Write the weighted sum of each row's experts to out; see the module's contract.

    Raises:
        ValueError: a shape or dtype outside the contract, or, in the torch route, an id outside [0, E).
    """
    rows, top_k = check_matrix("moe_experts", "ids", ids, torch.int64)
    check("moe_experts", "x", x, (rows, experts.columns), torch.float32)
    check("moe_experts", "weights", weights, (rows, top_k), torch.float32)
    check("moe_experts", "out", out, (rows, experts.columns), torch.float32)
    route = plan(problem(x, compiled_cpu.EXPERTS_SOURCE if experts.table is not None else None))[0]
    IMPLEMENTATIONS["moe_experts"][route](x, experts, ids, weights, out)


def moe_shared_add(
    shared: torch.Tensor, score: torch.Tensor, routed: torch.Tensor, residual: torch.Tensor, out: torch.Tensor
) -> None:
    """Write residual + routed + the gated shared expert to out; see the module's contract.

    Raises:
        ValueError: a shape or dtype outside the contract.
    """
    shape = check_matrix("moe_shared_add", "shared", shared, torch.float32)
    check("moe_shared_add", "score", score, (shape[0], 1), torch.float32)
    for name, tensor in (("routed", routed), ("residual", residual), ("out", out)):
        check("moe_shared_add", name, tensor, shape, torch.float32)
    route = plan(problem(out, compiled_cpu.SOURCE))[0]
    IMPLEMENTATIONS["moe_shared_add"][route](shared, score, routed, residual, out)
