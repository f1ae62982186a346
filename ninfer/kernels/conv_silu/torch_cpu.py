"""conv_silu with torch: whole-row multiplications and additions, which round element by element."""

from __future__ import annotations

import torch

from ninfer.kernels.exact import silu
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import StateSlots, take_starts

_BLOCK = 1 << 17
"""Elements computed at once, so that temporaries stay in the cache; the arithmetic is elementwise."""


def conv_silu(
    x: torch.Tensor,
    weight: torch.Tensor,
    history: torch.Tensor,
    slots: StateSlots,
    segments: Segments,
    out: torch.Tensor,
) -> None:
    """See the contract in the package's docstring."""
    take_starts(history, slots)
    kept, block = history.shape[1], max(1, _BLOCK // x.shape[1])
    for row, target in enumerate(slots.targets):
        begin, end = segments.offsets[row], segments.offsets[row + 1]
        columns = torch.cat((history[target], x[begin:end]))
        for first in range(begin, end, block):
            last = min(first + block, end)
            _convolve(columns[first - begin : last - begin + kept], weight, out[first:last])
        history[target].copy_(columns[columns.shape[0] - kept :])


def _convolve(columns: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    tokens = out.shape[0]
    torch.mul(columns[:tokens], weight[0], out=out)
    for tap in range(1, weight.shape[0]):
        out.add_(columns[tap : tap + tokens] * weight[tap])
    out.copy_(silu(out))
