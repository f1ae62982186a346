"""gated_sigmoid with torch; from exp, because torch's own sigmoid differs at the end of a tensor (see `exact`)."""

from __future__ import annotations

import torch


def gated_sigmoid(x: torch.Tensor, gate: torch.Tensor, out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    torch.div(x, gate.neg().exp_().add_(1.0), out=out)
