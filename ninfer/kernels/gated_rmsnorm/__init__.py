"""gated_rmsnorm: the GDN output norm, gated.

Math: out = weight * x / sqrt(mean(x^2) + eps) * z / (1 + exp(-z)), the mean along the last axis.
Shapes: x, z, out [T, Nv, dv]; weight [dv].
Dtypes: all fp32.
Domain: finite inputs, eps > 0.
Effects: writes out.
Workspace: none but in the torch route, which allocates a few tensors of [T, Nv, dv].
Numeric criterion: tolerances.ROW_NORM against the oracle; one reduction order per head, whatever the call's shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from ninfer.kernels.checks import check
from ninfer.kernels.dispatch import problem
from ninfer.kernels.gated_rmsnorm import compiled_cpu, cuda, torch_cpu
from ninfer.kernels.gated_rmsnorm.plan import plan
from ninfer.kernels.native import compiled_routes
from ninfer.kernels.routes import Route

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {
        "gated_rmsnorm": MappingProxyType(
            compiled_routes(compiled_cpu.gated_rmsnorm)
            | {Route.CPU_TORCH: torch_cpu.gated_rmsnorm, Route.CUDA: cuda.gated_rmsnorm}
        )
    }
)


def gated_rmsnorm(x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
    """Norm each head of x with `weight` and gate it with SiLU(z) into out; see the module's contract.

    Raises:
        ValueError: a shape or dtype outside the contract.
    """
    if x.dim() != 3:
        raise ValueError(f"gated_rmsnorm: x must have shape [T, Nv, dv], got {list(x.shape)}")
    tokens, heads, width = x.shape
    for name, tensor in (("x", x), ("z", z), ("out", out)):
        check("gated_rmsnorm", name, tensor, (tokens, heads, width), torch.float32)
    check("gated_rmsnorm", "weight", weight, (width,), torch.float32)
    route = plan(problem(x, compiled_cpu.SOURCE))[0]
    IMPLEMENTATIONS["gated_rmsnorm"][route](x, z, weight, eps, out)
