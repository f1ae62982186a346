"""qk_norm_rope: norm of every query and key head, then rotation by position.

Math, per token and head x with weight w: y = (1 + w) x / sqrt(mean(x^2) + eps); then, for pair r < R / 2 of the
    R = rotary_dim leading dimensions, with angle a_r = fp32(position[axis_r] * f_r):
    out[r] = y[r] cos a_r - y[r + R/2] sin a_r;  out[r + R/2] = y[r + R/2] cos a_r + y[r] sin a_r;
    dimensions from R on are y. axis_r is 1 if r % 3 == 1 and r < 3 sections[1], 2 if r % 3 == 2 and
    r < 3 sections[2], else 0.
    f_r = fp32(1 / fp32(theta ** fp32(2 r / R))): frequencies and angles are rounded to fp32 where Hugging Face
    transformers' Qwen3.5 rounds them, which for positions near 262144 moves an angle by up to 0.008.
Shapes: q, q_out [T, Hq, D]; k, k_out [T, Hkv, D]; q_weight, k_weight [D]; positions [3, T] (t, h, w).
Dtypes: all fp32, positions int32.
Domain: rotary_dim <= D; positions in [0, 2**24). On CUDA rotary_dim is at most 256.
Effects: writes q_out and k_out, which may be q and k themselves.
Workspace: the compiled route keeps one token's sines in scratch; the torch route allocates a few tensors of the
    outputs' size; the CUDA route needs none.
Numeric criterion: tolerances.ROTATION against the oracle at the same represented angles; a row's bits are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from ninfer.kernels.checks import check
from ninfer.kernels.dispatch import problem
from ninfer.kernels.native import compiled_routes
from ninfer.kernels.qk_norm_rope import compiled_cpu, cuda, torch_cpu
from ninfer.kernels.qk_norm_rope.plan import plan
from ninfer.kernels.qk_norm_rope.spec import AXES, RopeSpec
from ninfer.kernels.routes import Route

__all__ = ["IMPLEMENTATIONS", "RopeSpec", "qk_norm_rope"]

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {
        "qk_norm_rope": MappingProxyType(
            compiled_routes(compiled_cpu.qk_norm_rope)
            | {Route.CPU_TORCH: torch_cpu.qk_norm_rope, Route.CUDA: cuda.qk_norm_rope}
        )
    }
)


def qk_norm_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    rope: RopeSpec,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
) -> None:
    """Norm and rotate q and k into q_out and k_out; see the module's contract.

    Raises:
        ValueError: a shape or dtype outside the contract.
    """
    for name, tensor, weight, out in (("q", q, q_weight, q_out), ("k", k, k_weight, k_out)):
        if tensor.dim() != 3 or tensor.shape[-1] < rope.rotary_dim:
            raise ValueError(
                f"qk_norm_rope: {name} must be [T, heads, D >= {rope.rotary_dim}], got {list(tensor.shape)}"
            )
        tokens, heads, width = tensor.shape
        check("qk_norm_rope", name, tensor, (tokens, heads, width), torch.float32)
        check("qk_norm_rope", f"{name}_out", out, (tokens, heads, width), torch.float32)
        check("qk_norm_rope", f"{name}_weight", weight, (width,), torch.float32)
        check("qk_norm_rope", "positions", positions, (AXES, tokens), torch.int32)
    route = plan(problem(q, compiled_cpu.SOURCE))[0]
    IMPLEMENTATIONS["qk_norm_rope"][route](q, k, q_weight, k_weight, eps, positions, rope, q_out, k_out)
