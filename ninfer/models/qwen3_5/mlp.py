"""Dense gated feed-forward:  y = Wd (SiLU(Wg x) · Wu x)"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ninfer.kernels import gate_up_swiglu, linear
from ninfer.kernels.arena import Arena
from ninfer.kernels.weights import LinearWeight


@dataclass(frozen=True, slots=True)
class Mlp:
    """`gate_up` holds the rows of gate, then of up."""

    gate_up: LinearWeight
    down: LinearWeight

    def forward(self, x: torch.Tensor, residual: torch.Tensor, arena: Arena, out: torch.Tensor) -> None:
        """out f32[T, H] = residual + mlp(x f32[T, H])."""
        product = arena.take(x.shape[0], self.down.columns)
        gate_up_swiglu(x, self.gate_up, product)
        linear(product, self.down, out, residual)
