"""What is done with logits over the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from gpu.checks.outcome import Outcome, Sizes, as_numpy, outcome
from ninfer.kernels import (
    argmax,
    log_softmax_gather,
    sample,
    top_logprobs,
)
from ninfer.kernels import tolerances as within
from ninfer.kernels.argmax import oracle as argmax_oracle
from ninfer.kernels.log_softmax_gather import oracle as log_softmax_oracle
from ninfer.kernels.philox import Purpose, uniform
from ninfer.kernels.sampling import SamplingBatch, SamplingRow
from ninfer.kernels.sampling import oracle as sampling_oracle


def check_choice(sizes: Sizes) -> Iterator[Outcome]:
    vocab, rows = sizes.geometry.vocabulary, 2
    logits = torch.randn(rows, vocab) * 3
    ids = torch.empty(rows, dtype=torch.int64)
    argmax(logits, None, ids)
    yield outcome("argmax", f"{vocab}", ids, argmax_oracle.argmax(as_numpy(logits), None), within.EXACT)
    values, targets = torch.empty(rows), torch.randint(0, vocab, (rows,))
    log_softmax_gather(logits, targets, values)
    wanted = log_softmax_oracle.log_softmax_gather(as_numpy(logits), as_numpy(targets))
    yield outcome("log_softmax_gather", f"{vocab}", values, wanted, within.LOG_PROBABILITY)
    top_ids, top_values = torch.empty(rows, 20, dtype=torch.int64), torch.empty(rows, 20)
    top_logprobs(logits, 20, top_ids, top_values)
    wanted_ids, wanted = log_softmax_oracle.top_logprobs(as_numpy(logits), 20)
    yield outcome("top_logprobs ids", f"{vocab}", top_ids, wanted_ids, within.EXACT)
    yield outcome("top_logprobs", f"{vocab}", top_values, wanted, within.LOG_PROBABILITY)
    for name, settings in _SAMPLING.items():
        yield _sampled(logits, name, settings)


_SAMPLING: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "top-k 20, top-p 0.8": {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
}


def _sampled(logits: torch.Tensor, name: str, settings: Mapping[str, Any]) -> Outcome:
    rows, ids = len(logits), torch.empty(len(logits), dtype=torch.int64)
    batch = SamplingBatch(tuple(SamplingRow(seed=row, **settings) for row in range(rows)), tuple(range(rows)))
    sample(logits, batch, ids)
    wanted = [
        sampling_oracle.draw(
            sampling_oracle.distribution(row, sampling_oracle.Parameters(**settings)), uniform(i, i, Purpose.TOKEN)
        )
        for i, row in enumerate(as_numpy(logits).tolist())
    ]
    return outcome("sample", name, ids, np.array(wanted), within.EXACT)


CHECKS = (check_choice,)
