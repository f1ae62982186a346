"""sample over the vocabulary, and rmsnorm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from ninfer.kernels import rmsnorm, sample
from ninfer.kernels.sampling import SamplingBatch, SamplingRow
from ops.geometry import Geometry
from ops.work import Work

_ROWS = {
    "greedy": SamplingRow(temperature=0.0),
    "top-k 20, top-p 0.8": SamplingRow(temperature=0.7, top_k=20, top_p=0.8),
    "plain": SamplingRow(),
}


def works(shape: Geometry, tokens: Sequence[int], formats: Sequence[str]) -> Iterator[Work]:
    """Up to 8 `tokens` are rows that choose a token."""
    for count in tokens:
        x, weight = torch.randn(count, shape.hidden), torch.randn(shape.hidden)
        call = partial(rmsnorm, x, weight, 1e-6, True, torch.empty_like(x))
        yield Work("rmsnorm", f"{count} x {shape.hidden}", (call,), 2 * x.nbytes, 4 * x.numel())
        if count <= 8:
            for name, row in _ROWS.items():
                yield _sample(shape, count, name, row)


def _sample(shape: Geometry, count: int, name: str, row: SamplingRow) -> Work:
    logits, out = torch.randn(count, shape.vocabulary) * 3, torch.empty(count, dtype=torch.int64)
    batch = SamplingBatch((row,) * count, tuple(range(count)))
    call = partial(sample, logits, batch, out)
    return Work("sample", f"{name}, {count} x {shape.vocabulary}", (call,), logits.nbytes)
