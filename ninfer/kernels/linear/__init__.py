"""linear: rows times the transpose of a stored weight, with an optional residual.

Math: out = x W^T (+ residual); with Hadamard signs s, x is first replaced by H(diag(s) x) per 1024 columns. The sum
    of products is finished before the residual is added.
Shapes: x [T, K]; W [N, K], the concatenated rows of one or more stored parents; out, residual [T, N].
Dtypes: x, out, residual fp32; W any format of the artifact but int32, see `weights.prepare_linear`.
Domain: any T >= 0; K a multiple of 1024 with signs. Non-finite inputs affect only their own row.
Effects: writes out, which may be the residual itself but must not overlap x.
Workspace: the product of one tile of at most 32 rows (oneDNN) or of one row (torch); a copy of x with signs.
Numeric criterion: tolerances.MATMUL against the oracle. The torch and oneDNN routes may differ from one another in
    bits, but a weight keeps the route it was prepared for; within it a row's bits are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from ninfer.kernels.checks import check
from ninfer.kernels.linear import onednn_cpu, torch_cpu
from ninfer.kernels.linear.hadamard import rotate
from ninfer.kernels.routes import Route

if TYPE_CHECKING:
    from ninfer.kernels.weights import LinearWeight

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {"linear": MappingProxyType({Route.CPU_ONEDNN: onednn_cpu.linear, Route.CPU_TORCH: torch_cpu.linear})}
)


def linear(x: torch.Tensor, w: LinearWeight, out: torch.Tensor, residual: torch.Tensor | None = None) -> None:
    """Write x W^T (+ residual) to out; see the module's contract.

    Raises:
        ValueError: a shape or dtype outside the contract.
    """
    tokens = x.shape[0]
    check("linear", "x", x, (tokens, w.columns), torch.float32)
    check("linear", "out", out, (tokens, w.rows), torch.float32)
    if residual is not None:
        check("linear", "residual", residual, (tokens, w.rows), torch.float32)
    rotated = x if w.signs is None else rotate(x, w.signs)
    IMPLEMENTATIONS["linear"][w.route](rotated, w.matrix, out, residual)
