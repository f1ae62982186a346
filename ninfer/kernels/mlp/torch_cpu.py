"""swiglu and gate_up_swiglu with torch; from exp, because torch's own silu differs at the end of a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ninfer.kernels.exact import silu
from ninfer.kernels.linear import linear

if TYPE_CHECKING:
    from ninfer.kernels.weights import LinearWeight


def swiglu(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    columns = out.shape[1]
    torch.mul(silu(gate_up[:, :columns]), gate_up[:, columns:], out=out)


def gate_up_swiglu(x: torch.Tensor, w: LinearWeight, out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    gate_up = x.new_empty((x.shape[0], w.rows))
    linear(x, w, gate_up)
    swiglu(gate_up, out)
