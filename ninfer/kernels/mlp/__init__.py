"""swiglu: the gated activation of a feed-forward block; gate_up_swiglu: the same from the block's input.

Math: swiglu: out = up * gate / (1 + exp(-gate)), the columns of gate_up being gate, then up.
    gate_up_swiglu: swiglu(x W^T), the rows of W being gate's, then up's.
Shapes: gate_up [T, 2I]; x [T, K]; W [2I, K]; out [T, I].
Dtypes: all fp32; W as in `linear`.
Domain: finite inputs; any T >= 0.
Effects: writes out.
Workspace: the torch route allocates [T, I], and [T, 2I] for gate_up_swiglu. Compiled routes and CUDA finish
    gate_up_swiglu in the launch of its product, with the workspace of `linear`; CUDA does so where gate and up rows are
    of one format, and not fp32, else through a workspace of [T, 2I].
Numeric criterion: tolerances.ELEMENTWISE for swiglu and MATMUL_CHAIN for gate_up_swiglu, which takes its weight's route
    and has exactly the bits of that route's linear followed by swiglu; a row's bits are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from ninfer.kernels.checks import check, check_matrix
from ninfer.kernels.dispatch import problem
from ninfer.kernels.linear import compiled_cpu as linear_compiled
from ninfer.kernels.mlp import compiled_cpu, cuda, torch_cpu
from ninfer.kernels.mlp.plan import plan
from ninfer.kernels.native import compiled_routes
from ninfer.kernels.routes import Route

if TYPE_CHECKING:
    from ninfer.kernels.weights import LinearWeight

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {
        "swiglu": MappingProxyType(
            compiled_routes(compiled_cpu.swiglu) | {Route.CPU_TORCH: torch_cpu.swiglu, Route.CUDA: cuda.swiglu}
        ),
        "gate_up_swiglu": MappingProxyType(
            compiled_routes(linear_compiled.gate_up_swiglu)
            | {Route.CPU_ONEDNN: torch_cpu.gate_up_swiglu, Route.CPU_TORCH: torch_cpu.gate_up_swiglu}
            | {Route.CUDA: cuda.gate_up_swiglu}
        ),
    }
)


def swiglu(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """Write SiLU(gate) * up to out; see the module's contract.

    Raises:
        ValueError: a shape or dtype outside the contract.
    """
    rows, columns = check_matrix("swiglu", "out", out, torch.float32)
    check("swiglu", "gate_up", gate_up, (rows, 2 * columns), torch.float32)
    route = plan(problem(out, compiled_cpu.SOURCE))[0]
    IMPLEMENTATIONS["swiglu"][route](gate_up, out)


def gate_up_swiglu(x: torch.Tensor, w: LinearWeight, out: torch.Tensor) -> None:
    """Write SiLU(gate x) * (up x) to out, W = [gate; up]; see the module's contract.

    Raises:
        ValueError: a shape or dtype outside the contract.
    """
    rows = x.shape[0]
    check("gate_up_swiglu", "x", x, (rows, w.columns), torch.float32)
    if w.rows % 2:
        raise ValueError(f"gate_up_swiglu: w must hold as many up rows as gate rows, got {w.rows} rows together")
    check("gate_up_swiglu", "out", out, (rows, w.rows // 2), torch.float32)
    IMPLEMENTATIONS["gate_up_swiglu"][w.route](x, w, out)
