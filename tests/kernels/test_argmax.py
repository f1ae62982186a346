"""argmax against its oracle; ties, masks and rows without an answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ninfer.kernels.argmax import IMPLEMENTATIONS, argmax, oracle
from ninfer.kernels.argmax.cases import CASES, Case
from ninfer.kernels.argmax.plan import plan
from ninfer.kernels.bitset import allow_only, allowed, mask_words
from ninfer.kernels.routes import DeviceKind, Problem
from ninfer.kernels.tolerances import EXACT
from tests.kernels.harness import Trial, conform, poisoned


def _inputs(case: Case) -> tuple[torch.Tensor, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(case.vocab)
    logits = torch.randn(case.batch, case.vocab, generator=generator)
    if case.levels:
        logits = torch.randint(case.levels, logits.shape, generator=generator).float()
    if not case.mask_rows:
        return logits, None
    shape = (case.mask_rows, mask_words(case.vocab))
    mask = torch.randint(-(2**31), 2**31, shape, generator=generator).int()
    mask[:, 0] |= 1  # at least one id stays allowed
    return logits, mask


@pytest.mark.parametrize("case", CASES["argmax"], ids=lambda case: case.name)
def test_matches_the_oracle(case: Case) -> None:
    logits, mask = _inputs(case)
    out = poisoned(case.batch, dtype=torch.int64)
    expected = oracle.argmax(logits.numpy(), None if mask is None else mask.numpy())
    inputs = {"logits": logits} if mask is None else {"logits": logits, "mask": mask}
    trial = Trial(
        inputs,
        {"out": out},
        lambda route: IMPLEMENTATIONS["argmax"][route](logits, mask, out),
        {"out": expected},
        {"out": EXACT},
    )
    conform(trial, plan(Problem(DeviceKind.CPU)))


def test_the_lowest_of_equal_maxima_wins_wherever_it_stands() -> None:
    out = poisoned(1, dtype=torch.int64)
    for vocab in (5, 64, 1000, 40000):
        for first in (0, 1, vocab // 2, vocab - 2):
            logits = torch.zeros(1, vocab)
            logits[0, [first, vocab - 1]] = 1.0
            argmax(logits, None, out)
            assert out.item() == first


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_row_without_an_answer_is_an_error_that_names_it(value: float) -> None:
    logits = torch.zeros(3, 40)
    logits[1] = value
    with pytest.raises(ValueError, match="row 1"):
        argmax(logits, None, poisoned(3, dtype=torch.int64))


def test_an_empty_mask_is_an_error() -> None:
    mask = torch.zeros(1, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match="row 0"):
        argmax(torch.zeros(1, 40), mask, poisoned(1, dtype=torch.int64))


def test_bits_past_the_vocabulary_allow_nothing() -> None:
    mask = torch.tensor([[1 << 3, -1]], dtype=torch.int32)
    out = poisoned(1, dtype=torch.int64)
    argmax(torch.arange(32.0)[None], mask[:, :1].contiguous(), out)
    assert out.item() == 3
    assert allowed(mask, 33).sum() == 2


def test_allow_only_sets_exactly_the_bits_of_the_layout() -> None:
    ids = [0, 31, 32, 63, 95]
    words = allow_only(ids, 100)
    assert words.dtype is torch.int32
    assert words.tolist() == [-(2**31) + 1, -(2**31) + 1, -(2**31), 0]
    assert np.flatnonzero(allowed(words, 100).numpy()).tolist() == ids
    with pytest.raises(ValueError, match="token id 100"):
        allow_only([100], 100)


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="argmax: mask"):
        argmax(torch.zeros(2, 40), torch.zeros(3, 2, dtype=torch.int32), poisoned(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="argmax: out"):
        argmax(torch.zeros(2, 40), None, poisoned(2))
