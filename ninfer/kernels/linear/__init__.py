"""linear: rows times the transpose of a stored weight, with an optional residual; projections: several weights at once.

Math: out = x W^T (+ residual); with Hadamard signs s, x is first replaced by H(diag(s) x) per 1024 columns. The sum
    of products is finished before the residual is added. Where the weight permits 8-bit activations (`allow_a8`) and
    all its formats are of signed integer codes with scales by group, compiled routes quantise x. Per token and group g
    of the part's format (64 columns for q4, q5 and q6, 32 for q8, 128 for t2), all in fp32, with a = max|x_k| of g:
    s_g = a / 127, c_k = round-half-even(x_k * (127 / a)), all 0 where a < 2^-119; then
    y = sum over g of w_g * s_g * (exact integer sum over g of code_k * c_k), w_g the stored scale.
    CUDA rounds x, after its rotation, to the nearest bf16, except for parts stored as fp32.
    projections: linear of every weight, without residuals; in compiled routes one launch.
Shapes: x [T, K]; W [N, K], the concatenated rows of one or more stored parents; out, residual [T, N].
Dtypes: x, out, residual fp32; W any format of the artifact but int32, see `weights.prepare_linear`.
Domain: any T >= 0; K a multiple of 1024 with signs. Non-finite inputs affect only their own row.
Effects: writes out, which may be the residual itself but must not overlap x. Outputs of projections do not overlap.
Workspace: a copy of x with signs. oneDNN: the product of one tile of at most 32 rows; torch: of one row. Compiled: some
    decoded rows of W per thread, and quantised x. CUDA, in buffers that are kept: a rotated x; beyond eight tokens x as
    bf16, and f32[segments, T, N] where few rows meet few tokens.
Numeric criterion: tolerances.MATMUL against the oracle, which models the rounding of x where the route does. A weight
    keeps the route that it was prepared for; routes may differ from one another in bits, but within one a row's bits
    are its own, and projections has the bits of linear. On CUDA that holds from one token to a prefill: K is split into
    segments by K alone, and every kernel adds in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch

from ninfer.kernels.checks import check
from ninfer.kernels.linear import compiled_cpu, cuda, onednn_cpu, torch_cpu
from ninfer.kernels.native import compiled_routes
from ninfer.kernels.routes import Route

if TYPE_CHECKING:
    from ninfer.kernels.weights import LinearWeight

IMPLEMENTATIONS: Mapping[str, Mapping[Route, Callable[..., None]]] = MappingProxyType(
    {
        "linear": MappingProxyType(
            compiled_routes(compiled_cpu.linear)
            | {Route.CPU_ONEDNN: onednn_cpu.linear, Route.CPU_TORCH: torch_cpu.linear, Route.CUDA: cuda.linear}
        ),
        "projections": MappingProxyType(
            compiled_routes(compiled_cpu.projections)
            | {
                Route.CPU_ONEDNN: onednn_cpu.projections,
                Route.CPU_TORCH: torch_cpu.projections,
                Route.CUDA: cuda.projections,
            }
        ),
    }
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
    IMPLEMENTATIONS["linear"][w.route](x, w, out, residual)


def projections(x: torch.Tensor, weights: Sequence[LinearWeight], outs: Sequence[torch.Tensor]) -> None:
    """Write x W^T of each weight to its out; see the module's contract.

    Raises:
        ValueError: a shape or dtype outside the contract, or not one out per weight.
    """
    tokens = x.shape[0]
    if len(outs) != len(weights) or not weights:
        raise ValueError(f"projections: expected one out for each of at least one weight, got {len(outs)}")
    for w, out in zip(weights, outs, strict=True):
        check("projections", "x", x, (tokens, w.columns), torch.float32)
        check("projections", "out", out, (tokens, w.rows), torch.float32)
    for route in {w.route: None for w in weights}:
        members = [(w, out) for w, out in zip(weights, outs, strict=True) if w.route is route]
        IMPLEMENTATIONS["projections"][route](x, *zip(*members, strict=True))
