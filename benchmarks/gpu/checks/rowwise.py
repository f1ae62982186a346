"""Norms and gates."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gpu.checks.outcome import Outcome, Sizes, as_numpy, outcome
from ninfer.kernels import (
    gated_rmsnorm,
    gated_sigmoid,
    gdn_gates,
    rmsnorm,
    swiglu,
)
from ninfer.kernels import tolerances as within
from ninfer.kernels.gated_rmsnorm import oracle as gated_rmsnorm_oracle
from ninfer.kernels.gated_sigmoid import oracle as gated_sigmoid_oracle
from ninfer.kernels.gdn_gates import oracle as gates_oracle
from ninfer.kernels.mlp import oracle as mlp_oracle
from ninfer.kernels.rmsnorm import oracle as rmsnorm_oracle

_EPS = 1e-6


def check_rowwise(sizes: Sizes) -> Iterator[Outcome]:
    g, tokens = sizes.geometry, sizes.prompt
    x, weight = torch.randn(tokens, g.hidden), torch.randn(g.hidden)
    out = torch.empty_like(x)
    rmsnorm(x, weight, _EPS, True, out)
    wanted = rmsnorm_oracle.rmsnorm(as_numpy(x), as_numpy(weight), _EPS, True)
    yield outcome("rmsnorm", f"{g.hidden}", out, wanted, within.ROW_NORM)
    x = torch.randn(tokens, g.gdn_value_heads, g.gdn_head_dim)
    z, weight, out = torch.randn_like(x), torch.randn(g.gdn_head_dim), torch.empty_like(x)
    gated_rmsnorm(x, z, weight, _EPS, out)
    wanted = gated_rmsnorm_oracle.gated_rmsnorm(as_numpy(x), as_numpy(z), as_numpy(weight), _EPS)
    yield outcome("gated_rmsnorm", f"{g.gdn_value_heads}", out, wanted, within.ROW_NORM)
    x = torch.randn(tokens, g.query_heads * g.head_dim)
    gate, out = torch.randn_like(x), torch.empty_like(x)
    gated_sigmoid(x, gate, out)
    wanted = gated_sigmoid_oracle.gated_sigmoid(as_numpy(x), as_numpy(gate))
    yield outcome("gated_sigmoid", f"{x.shape[1]}", out, wanted, within.ELEMENTWISE)
    both, out = torch.randn(tokens, 2 * g.intermediate), torch.empty(tokens, g.intermediate)
    swiglu(both, out)
    yield outcome("swiglu", f"{g.intermediate}", out, mlp_oracle.swiglu(as_numpy(both)), within.ELEMENTWISE)
    a, b = (torch.randn(tokens, g.gdn_value_heads) for _ in range(2))
    a_log, bias = (torch.randn(g.gdn_value_heads) for _ in range(2))
    decays, betas = torch.empty_like(a), torch.empty_like(a)
    gdn_gates(a, b, a_log, bias, decays, betas)
    for got, wanted in zip(
        (decays, betas), gates_oracle.gdn_gates(as_numpy(a), as_numpy(b), as_numpy(a_log), as_numpy(bias)), strict=True
    ):
        yield outcome("gdn_gates", f"{g.gdn_value_heads}", got, wanted, within.GATES)


CHECKS = (check_rowwise,)
