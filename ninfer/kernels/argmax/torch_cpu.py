"""argmax with torch: a comparison has no rounding, so no order of work can show in the result."""

from __future__ import annotations

import torch

from ninfer.kernels.bitset import allowed


def argmax(logits: torch.Tensor, mask: torch.Tensor | None, out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    if mask is not None:
        logits = torch.where(allowed(mask, logits.shape[1]), logits, -torch.inf)
    best, ids = logits.max(dim=1)  # torch.max along a dimension gives the first of equal maxima
    for row, value in enumerate(best.tolist()):
        if not value > -torch.inf:
            raise ValueError(f"argmax: row {row} has no answer: its best allowed logit is {value}")
    out.copy_(ids)
