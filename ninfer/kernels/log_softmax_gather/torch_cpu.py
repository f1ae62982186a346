"""Log-probabilities with torch, one row at a time: the vocabulary is wide, rows are few, and no row sees another."""

from __future__ import annotations

import torch

from ninfer.kernels.exact import row_sum


def log_softmax_gather(logits: torch.Tensor, targets: torch.Tensor, out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    for row in range(len(logits)):
        chosen = logits[row].index_select(0, targets[row : row + 1])
        _log_probabilities(logits[row : row + 1], chosen, out[row : row + 1])


def top_logprobs(logits: torch.Tensor, k: int, ids_out: torch.Tensor, values_out: torch.Tensor) -> None:
    """See the contract in the package's docstring."""
    if k == 0:
        return
    for row in range(len(logits)):
        ids_out[row] = _top(logits[row], k)
        chosen = logits[row].index_select(0, ids_out[row])
        _log_probabilities(logits[row : row + 1], chosen, values_out[row])


def _log_probabilities(row: torch.Tensor, chosen: torch.Tensor, out: torch.Tensor) -> None:
    """lp of the logits `chosen` [n] among those of `row` [1, V]."""
    peak = row.amax()
    total = row_sum((row - peak).exp_()).log_().squeeze()
    torch.sub(chosen, peak, out=out).sub_(total)


def _top(row: torch.Tensor, k: int) -> torch.Tensor:
    """Ids of the k greatest logits of row [V], falling. torch.topk leaves ties open, so they are settled by a stable
    sort of those that reach the k-th greatest."""
    least = row.topk(k).values[-1]
    candidates = (row >= least).nonzero().squeeze(1)
    order = row[candidates].sort(descending=True, stable=True).indices
    return candidates[order[:k]]
