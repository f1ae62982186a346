"""qk_norm_rope with torch: sums along contiguous heads, then arithmetic that rounds element by element."""

from __future__ import annotations

import torch

from ninfer.kernels.exact import row_sum
from ninfer.kernels.kv_cache import KvPool
from ninfer.kernels.kv_cache import torch_cpu as kv_cache
from ninfer.kernels.qk_norm_rope.spec import RopeSpec, frequencies


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
    """See the contract in the package's docstring."""
    angles = _angles(positions, rope)
    cosines, sines = angles.cos().unsqueeze(1), angles.sin_().unsqueeze(1)
    for x, weight, out in ((q, q_weight, q_out), (k, k_weight, k_out)):
        _norm(x, weight, eps, out)
        _rotate(out, cosines, sines)


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
    """See the contract in the package's docstring."""
    qk_norm_rope(q, k, q_weight, k_weight, eps, positions, rope, q, k)
    kv_cache.kv_append(pool, k, v, slots)


def _angles(positions: torch.Tensor, rope: RopeSpec) -> torch.Tensor:
    """Angles fp32 [T, rotary_dim / 2]."""
    return positions.float()[list(rope.axes)].mul_(frequencies(rope).unsqueeze(1)).t().contiguous()


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    width = x.shape[-1]
    rows = x.view(-1, width)
    scale = row_sum(rows.square()).div_(width).add_(eps).rsqrt_()
    torch.mul(rows, scale, out=out.view(-1, width)).mul_(weight + 1.0)


def _rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> None:
    pairs = cosines.shape[-1]
    first, second = x[..., :pairs].clone(), x[..., pairs : 2 * pairs].clone()
    x[..., :pairs] = first * cosines - second * sines
    x[..., pairs : 2 * pairs] = second * cosines + first * sines
