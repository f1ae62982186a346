"""gdn_gates with torch, from the elementwise functions whose bits do not depend on the shape of the call."""

from __future__ import annotations

import torch

from ninfer.kernels.exact import sigmoid, softplus


def gdn_gates(
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    g_out: torch.Tensor,
    beta_out: torch.Tensor,
) -> None:
    """See the contract in the package's docstring."""
    torch.mul(softplus(a + dt_bias), a_log.exp().neg_(), out=g_out)
    beta_out.copy_(sigmoid(b))
