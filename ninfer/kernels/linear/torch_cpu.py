"""linear with torch's own product over a dense fp32 weight, one row at a time: for builds of torch without oneDNN.

Libraries choose another kernel, and with it another order of additions, for another number of rows: torch's `x @ W.T`
(MKL) gives a row different bits among 1, 2 or 3 rows than among 4 or more, with two threads also among 5, 6 or 7, and
for some odd shapes, such as [5 -> 4] and [65 -> 5], even at another position among always eight rows. So every row is
its own call, with its operands at the same alignment: equal by construction, and as fast as a lone row can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ninfer.kernels.linear.hadamard import rotated

if TYPE_CHECKING:
    from ninfer.kernels.weights import LinearWeight


def prepare(dense: torch.Tensor) -> torch.Tensor:
    """This route reads the dense weight [N, K] as it is."""
    return dense


def linear(x: torch.Tensor, w: LinearWeight, out: torch.Tensor, residual: torch.Tensor | None = None) -> None:
    """See the contract in the package's docstring."""
    matrix, rows = w.matrix, rotated(x, w.signs)
    assert isinstance(matrix, torch.Tensor), "the weight was prepared for another route"
    vector, product = x.new_empty(matrix.shape[1]), x.new_empty(matrix.shape[0])
    for row in range(len(rows)):
        torch.mv(matrix, vector.copy_(rows[row]), out=product)
        if residual is None:
            out[row] = product
        else:
            torch.add(product, residual[row], out=out[row])


def projections(x: torch.Tensor, weights: Sequence[LinearWeight], outs: Sequence[torch.Tensor]) -> None:
    """See the contract in the package's docstring."""
    for w, out in zip(weights, outs, strict=True):
        linear(x, w, out)
