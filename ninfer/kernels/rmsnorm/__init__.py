"""rmsnorm: root-mean-square normalisation of rows, with a plain or an offset weight.

Math: out = u * x / sqrt(mean(x^2) + eps), u = 1 + weight when `offset`, else weight.
Shapes: x, out [T, H]; weight [H].
Dtypes: all fp32.
Domain: finite inputs whose squares do not overflow; eps > 0; any T >= 0.
Effects: writes out, which may be x itself.
Workspace: the compiled and CUDA routes need none; the torch route allocates one tensor of [T, H] and some of [T, 1].
Numeric criterion: tolerances.ROW_NORM against the oracle; one order of additions per H, so a row's bits are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from ninfer.kernels.checks import check, check_matrix
from ninfer.kernels.dispatch import problem
from ninfer.kernels.native import compiled_routes
from ninfer.kernels.rmsnorm import compiled_cpu, cuda, torch_cpu
from ninfer.kernels.rmsnorm.plan import plan
from ninfer.kernels.routes import Route

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {
        "rmsnorm": MappingProxyType(
            compiled_routes(compiled_cpu.rmsnorm) | {Route.CPU_TORCH: torch_cpu.rmsnorm, Route.CUDA: cuda.rmsnorm}
        )
    }
)


def rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: bool, out: torch.Tensor) -> None:
    """Write the normed rows of x to out; see the module's contract.

    Raises:
        ValueError: a shape or dtype outside the contract.
    """
    rows, columns = check_matrix("rmsnorm", "x", x, torch.float32)
    check("rmsnorm", "weight", weight, (columns,), torch.float32)
    check("rmsnorm", "out", out, (rows, columns), torch.float32)
    route = plan(problem(x, compiled_cpu.SOURCE))[0]
    IMPLEMENTATIONS["rmsnorm"][route](x, weight, eps, offset, out)
