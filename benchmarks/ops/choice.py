"""What is done with logits over the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from ninfer.kernels import log_softmax_gather, sample
from ninfer.kernels.sampling import SamplingBatch, SamplingRow
from ops.geometry import Geometry
from ops.work import MOST_ROWS, Setting, Work

_ROWS = {
    "greedy": SamplingRow(temperature=0.0),
    "top-k 20, top-p 0.8": SamplingRow(temperature=0.7, top_k=20, top_p=0.8),
    "plain": SamplingRow(),
}


def works(setting: Setting) -> Iterator[Work]:
    """One token for each row of logits, and the log-probabilities of given ones."""
    for count in setting.tokens:
        if count <= MOST_ROWS:
            for name, row in _ROWS.items():
                yield _sample(setting.geometry, count, name, row)
            yield _gather(setting.geometry, count)


def _sample(shape: Geometry, count: int, name: str, row: SamplingRow) -> Work:
    logits, out = torch.randn(count, shape.vocabulary) * 3, torch.empty(count, dtype=torch.int64)
    batch = SamplingBatch((row,) * count, tuple(range(count)))
    call = partial(sample, logits, batch, out)
    return Work("sample", f"{name}, {count} x {shape.vocabulary}", (call,), logits.nbytes, launches_only=False)


def _gather(shape: Geometry, count: int) -> Work:
    logits, targets = torch.randn(count, shape.vocabulary), torch.arange(count)
    call = partial(log_softmax_gather, logits, targets, torch.empty(count))
    return Work("log_softmax_gather", f"{count} x {shape.vocabulary}", (call,), logits.nbytes)
