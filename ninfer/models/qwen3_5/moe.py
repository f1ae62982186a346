"""Mixture of experts with one gated shared expert.

p = softmax(Wr x);  y = Σ_{e ∈ top-k} p_e / Σ p · expert_e(x)  +  σ(ws x) · shared(x)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ninfer.kernels import gate_up_swiglu, linear, moe_experts, moe_route, moe_shared_add, projections
from ninfer.kernels.arena import Arena
from ninfer.kernels.moe import ExpertWeights
from ninfer.kernels.weights import LinearWeight
from ninfer.models.qwen3_5.config import MoeConfig


@dataclass(frozen=True, slots=True)
class MoeWeights:
    """Router [E, H], shared score [1, H], routed experts, and the shared expert's gate|up and down."""

    router: LinearWeight
    shared_score: LinearWeight
    experts: ExpertWeights
    shared_gate_up: LinearWeight
    shared_down: LinearWeight


@dataclass(frozen=True, slots=True)
class Moe:
    """One layer's expert block."""

    weights: MoeWeights
    config: MoeConfig

    def forward(self, x: torch.Tensor, residual: torch.Tensor, arena: Arena, out: torch.Tensor) -> None:
        """out f32[T, H] = residual + moe(x f32[T, H])."""
        w, c, tokens = self.weights, self.config, x.shape[0]
        logits, score = arena.take(tokens, c.experts), arena.take(tokens, 1)
        projections(x, (w.router, w.shared_score), (logits, score))
        ids = arena.take(tokens, c.experts_per_token, dtype=torch.int64)
        shares = arena.take(tokens, c.experts_per_token)
        moe_route(logits, c.experts_per_token, ids, shares)
        routed = arena.take(*x.shape)
        moe_experts(x, w.experts, ids, shares, routed)
        moe_shared_add(self._shared(x, arena), score, routed, residual, out)

    def _shared(self, x: torch.Tensor, arena: Arena) -> torch.Tensor:
        w, product, shared = self.weights, arena.take(x.shape[0], self.config.shared_size), arena.take(*x.shape)
        gate_up_swiglu(x, w.shared_gate_up, product)
        linear(product, w.shared_down, shared)
        return shared
