"""How a unit's tokens are chosen and described: prepared rows, and log-probabilities where they are wanted."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest
import torch

from ninfer.kernels.log_softmax_gather import oracle
from ninfer.kernels.sampling import allow_only
from ninfer.runtime.core.program import SequenceDemand, SequenceHandle
from ninfer.runtime.program.sequence import Sequence
from ninfer.runtime.program.units import _logprobs
from ninfer.types import ResolvedSampling
from tests.fakes import prompt_of

MASK = allow_only(range(40), 40)


def sequence(presence: float = 0.0, repetition: float = 1.0) -> Sequence:
    """A sequence of the prompt 1, 2, 3."""
    sampling = ResolvedSampling(0.7, 0.8, 20, 0.05, presence, 0.0, repetition, 9)
    return Sequence(SequenceHandle(1, 0), SequenceDemand(prompt_of(3), 8, sampling), Mock())


def test_a_row_is_prepared_once_and_sees_the_answer_grow() -> None:
    s = sequence(presence=1.5)
    row = s.sampling_row(MASK)
    s.append((7, 9))
    s.append((7,))
    assert s.sampling_row(MASK) is row
    assert row.outputs is not None
    assert row.outputs.items() == [(7, 2), (9, 1)]
    assert (row.temperature, row.top_k, row.top_p, row.min_p, row.seed) == (0.7, 20, 0.8, 0.05, 9)
    assert s.sampling_row(MASK.clone()) is not row


def test_only_what_a_penalty_needs_is_kept() -> None:
    assert sequence().sampling_row(MASK).outputs is None
    assert sequence(presence=1.0).sampling_row(MASK).prompt_ids is None
    prompt = sequence(repetition=1.1).sampling_row(MASK).prompt_ids
    assert prompt is not None
    assert prompt.tolist() == [1, 2, 3]


@pytest.mark.parametrize("counts", [[None, 0, 3, None, None], [2, 1, 0, 4, 4], [None] * 5, [3, None, 0, None, 1]])
def test_each_row_has_the_logprobs_that_it_asked_for(counts: list[int | None]) -> None:
    logits = torch.randn(5, 50, generator=torch.Generator().manual_seed(1))
    tokens = [3, 49, 0, 7, 7]
    chosen = oracle.log_softmax_gather(logits.numpy(), np.array(tokens))
    ids, values = oracle.top_logprobs(logits.numpy(), 4)
    found = _logprobs(logits, tokens, counts)
    assert [len(entries) for entries in found] == [0 if count is None else 1 for count in counts]
    for row, count in enumerate(counts):
        for entry in found[row]:
            assert entry.token_id == tokens[row]
            assert entry.logprob == pytest.approx(chosen[row], abs=4e-6)
            assert [token for token, _ in entry.top] == ids[row, :count].tolist()
            assert [value for _, value in entry.top] == pytest.approx(values[row, :count].tolist(), abs=4e-6)
