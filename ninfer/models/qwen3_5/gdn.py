"""Gated DeltaNet: a causal convolution, a gated delta-rule recurrence per value head, and a gated norm.

qkv = SiLU(conv(Wqkv x));  g = −exp(a_log) softplus(Wa x + dt_bias);  β = σ(Wb x)
S ← e^g S;  S ← S + β (v − S k) kᵀ;  o = S q / √dk;  y = Wo (norm(o) · SiLU(Wz x))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ninfer.kernels import conv_silu, gated_rmsnorm, gdn, gdn_gates, linear, projections
from ninfer.kernels.arena import Arena
from ninfer.kernels.weights import LinearWeight
from ninfer.models.qwen3_5.batch import Batch
from ninfer.models.qwen3_5.config import GdnConfig
from ninfer.models.qwen3_5.state import GdnImages


@dataclass(frozen=True, slots=True)
class GdnWeights:
    """`qkv` holds the rows of query, key and value; `convolution` is f32[taps, C]; the rest are vectors."""

    qkv: LinearWeight
    z: LinearWeight
    a: LinearWeight
    b: LinearWeight
    convolution: torch.Tensor
    a_log: torch.Tensor
    dt_bias: torch.Tensor
    norm: torch.Tensor
    output: LinearWeight


@dataclass(frozen=True, slots=True)
class Gdn:
    """One layer's GDN mixer."""

    weights: GdnWeights
    config: GdnConfig
    eps: float

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, batch: Batch, images: GdnImages, arena: Arena, out: torch.Tensor
    ) -> None:
        """out f32[T, H] = residual + gdn(x f32[T, H]); advances the `batch.states` of `images`."""
        w, c, tokens = self.weights, self.config, x.shape[0]
        projected, mixed = arena.take(tokens, c.conv_width), arena.take(tokens, c.conv_width)
        z, o, y = (arena.take(tokens, c.value_heads, c.value_dim) for _ in range(3))
        a, b, g, beta = (arena.take(tokens, c.value_heads) for _ in range(4))
        projections(x, (w.qkv, w.z, w.a, w.b), (projected, z.view(tokens, -1), a, b))
        conv_silu(projected, w.convolution, images.history, batch.states, batch.segments, mixed)
        gdn_gates(a, b, w.a_log, w.dt_bias, g, beta)
        gdn(mixed, g, beta, images.state, batch.states, batch.segments, o)
        gated_rmsnorm(o, z, w.norm, self.eps, y)
        linear(y.view(tokens, -1), w.output, out, residual)
