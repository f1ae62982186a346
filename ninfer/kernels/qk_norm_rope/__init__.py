"""qk_norm_rope: norm of every query and key head, then rotation by position. qk_norm_rope_append: that in place, and
kv_append of the keys that come out and of the values, which is one kernel less on CUDA.

Math, per token and head x with weight w: y = (1 + w) x / sqrt(mean(x^2) + eps); then, for pair r < R / 2 of the
    R = rotary_dim leading dimensions, with angle a_r = fp32(position[axis_r] * f_r):
    out[r] = y[r] cos a_r - y[r + R/2] sin a_r;  out[r + R/2] = y[r + R/2] cos a_r + y[r] sin a_r;
    dimensions from R on are y. axis_r is 1 if r % 3 == 1 and r < 3 sections[1], 2 if r % 3 == 2 and
    r < 3 sections[2], else 0.
    f_r = fp32(1 / fp32(theta ** fp32(2 r / R))): frequencies and angles are rounded to fp32 where Hugging Face
    transformers' Qwen3.5 rounds them, which for positions near 262144 moves an angle by up to 0.008.
    qk_norm_rope_append: q, k = qk_norm_rope(q, k); then kv_append(pool, k, v, slots), see kv_cache.
Shapes: q, q_out [T, Hq, D]; k, k_out [T, Hkv, D]; q_weight, k_weight [D]; positions [3, T] (t, h, w); v as k;
    slots [T].
Dtypes: all fp32, positions int32, slots int64.
Domain: rotary_dim <= D; positions in [0, 2**24). On CUDA rotary_dim is at most 256.
Effects: writes q_out and k_out, which may be q and k themselves; qk_norm_rope_append writes q, k and the named columns
    of the pool.
Workspace: the compiled route keeps one token's sines in scratch; the torch route allocates a few tensors of the
    outputs' size; the CUDA route needs none.
Numeric criterion: tolerances.ROTATION against the oracle at the same represented angles; a row's bits are its own.
    qk_norm_rope_append has the bits of the two ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from ninfer.kernels.checks import check
from ninfer.kernels.dispatch import problem
from ninfer.kernels.kv_cache import KvPool, check_append
from ninfer.kernels.native import compiled_routes
from ninfer.kernels.qk_norm_rope import compiled_cpu, cuda, torch_cpu
from ninfer.kernels.qk_norm_rope.plan import plan
from ninfer.kernels.qk_norm_rope.spec import AXES, RopeSpec
from ninfer.kernels.routes import Route

__all__ = ["IMPLEMENTATIONS", "RopeSpec", "qk_norm_rope", "qk_norm_rope_append"]

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {
        "qk_norm_rope": MappingProxyType(
            compiled_routes(compiled_cpu.qk_norm_rope)
            | {Route.CPU_TORCH: torch_cpu.qk_norm_rope, Route.CUDA: cuda.qk_norm_rope}
        ),
        "qk_norm_rope_append": MappingProxyType(
            compiled_routes(compiled_cpu.qk_norm_rope_append)
            | {Route.CPU_TORCH: torch_cpu.qk_norm_rope_append, Route.CUDA: cuda.qk_norm_rope_append}
        ),
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
        _check_side("qk_norm_rope", name, tensor, weight, positions, rope)
        check("qk_norm_rope", f"{name}_out", out, tuple(tensor.shape), torch.float32)
    route = plan(problem(q, compiled_cpu.SOURCE))[0]
    IMPLEMENTATIONS["qk_norm_rope"][route](q, k, q_weight, k_weight, eps, positions, rope, q_out, k_out)


def qk_norm_rope_append(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    rope: RopeSpec,
    pool: KvPool,
    slots: torch.Tensor,
) -> None:
    """Norm and rotate q and k in place, and append k and v to the pool; see the module's contract.

    Raises:
        ValueError: a shape, dtype or slot outside the contract; nothing is then written.
    """
    op = "qk_norm_rope_append"
    for name, tensor, weight in (("q", q, q_weight), ("k", k, k_weight)):
        _check_side(op, name, tensor, weight, positions, rope)
    check(op, "q", q, (slots.numel(), q.shape[1], pool.head_dim), torch.float32)
    check_append(op, pool, k, v, slots)
    route = plan(problem(q, compiled_cpu.SOURCE))[0]
    IMPLEMENTATIONS[op][route](q, k, v, q_weight, k_weight, eps, positions, rope, pool, slots)


def _check_side(
    op: str, name: str, x: torch.Tensor, weight: torch.Tensor, positions: torch.Tensor, rope: RopeSpec
) -> None:
    if x.dim() != 3 or x.shape[-1] < rope.rotary_dim:
        raise ValueError(f"{op}: {name} must be [T, heads, D >= {rope.rotary_dim}], got {list(x.shape)}")
    tokens, heads, width = x.shape
    check(op, name, x, (tokens, heads, width), torch.float32)
    check(op, f"{name}_weight", weight, (width,), torch.float32)
    check(op, "positions", positions, (AXES, tokens), torch.int32)
