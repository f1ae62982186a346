"""gated_sigmoid: an attention block's output gate.

Math: out = x / (1 + exp(-gate)).
Shapes: x, gate, out [T, N].
Dtypes: all fp32.
Domain: finite inputs; any T >= 0.
Effects: writes out, which may be x itself.
Workspace: the compiled and CUDA routes need none; the torch route allocates one tensor of [T, N].
Numeric criterion: tolerances.ELEMENTWISE against the oracle; element by element, so a row's bits are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from ninfer.kernels.checks import check, check_matrix
from ninfer.kernels.dispatch import problem
from ninfer.kernels.gated_sigmoid import compiled_cpu, cuda, torch_cpu
from ninfer.kernels.gated_sigmoid.plan import plan
from ninfer.kernels.native import compiled_routes
from ninfer.kernels.routes import Route

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {
        "gated_sigmoid": MappingProxyType(
            compiled_routes(compiled_cpu.gated_sigmoid)
            | {Route.CPU_TORCH: torch_cpu.gated_sigmoid, Route.CUDA: cuda.gated_sigmoid}
        )
    }
)


def gated_sigmoid(x: torch.Tensor, gate: torch.Tensor, out: torch.Tensor) -> None:
    """Write x * sigmoid(gate) to out; see the module's contract.

    Raises:
        ValueError: a shape or dtype outside the contract.
    """
    shape = check_matrix("gated_sigmoid", "x", x, torch.float32)
    check("gated_sigmoid", "gate", gate, shape, torch.float32)
    check("gated_sigmoid", "out", out, shape, torch.float32)
    route = plan(problem(x, compiled_cpu.SOURCE))[0]
    IMPLEMENTATIONS["gated_sigmoid"][route](x, gate, out)
