"""Gated attention: grouped-query attention over paged keys and values, with a sigmoid output gate.

q, k = rope(norm(Wq x)), rope(norm(Wk x));  a = softmax(q kᵀ / √D) (Wv x);  y = Wo (a · σ(Wg x))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ninfer.kernels import gated_sigmoid, linear, paged_attention, projections, qk_norm_rope_append
from ninfer.kernels.arena import Arena
from ninfer.kernels.kv_cache import KvPool
from ninfer.kernels.qk_norm_rope import RopeSpec
from ninfer.kernels.weights import LinearWeight
from ninfer.models.qwen3_5.batch import Batch
from ninfer.models.qwen3_5.config import AttentionConfig


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Projections [out, in] and the per-head norm weights f32[D]."""

    query: LinearWeight
    gate: LinearWeight
    key: LinearWeight
    value: LinearWeight
    query_norm: torch.Tensor
    key_norm: torch.Tensor
    output: LinearWeight


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer's attention mixer."""

    weights: AttentionWeights
    config: AttentionConfig
    eps: float

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, batch: Batch, kv: KvPool, arena: Arena, out: torch.Tensor
    ) -> None:
        """out f32[T, H] = residual + attention(x f32[T, H]); appends this batch's keys and values to `kv`."""
        w, c, tokens = self.weights, self.config, x.shape[0]
        heads, kv_heads = (tokens, c.heads, c.head_dim), (tokens, c.kv_heads, c.head_dim)
        q, gate, mixed = (arena.take(*heads) for _ in range(3))
        k, v = arena.take(*kv_heads), arena.take(*kv_heads)
        q_rows, gate_rows, mixed_rows = (y.view(tokens, -1) for y in (q, gate, mixed))
        weights, outs = (w.query, w.gate, w.key, w.value), (q_rows, gate_rows, k.view(tokens, -1), v.view(tokens, -1))
        projections(x, weights, outs)
        rope = RopeSpec(c.rope_theta, c.rotary_dim, c.mrope_section)
        qk_norm_rope_append(q, k, v, w.query_norm, w.key_norm, self.eps, batch.positions, rope, kv, batch.slots)
        paged_attention(q, kv, batch.tables, batch.segments, c.head_dim**-0.5, mixed)
        gated_sigmoid(mixed_rows, gate_rows, mixed_rows)
        linear(mixed_rows, w.output, out, residual)
