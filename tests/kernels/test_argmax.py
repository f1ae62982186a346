"""argmax against its oracle; ties, masks and rows without an answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ninfer.kernels.argmax import IMPLEMENTATIONS, argmax, compiled_cpu, oracle
from ninfer.kernels.argmax.cases import CASES, Case
from ninfer.kernels.bitset import allow_only, allowed, mask_words
from ninfer.kernels.routes import Route
from ninfer.kernels.tolerances import EXACT
from tests.kernels.harness import Trial, conform, poisoned, routes_here

ROUTES = routes_here(IMPLEMENTATIONS["argmax"], compiled_cpu.SOURCE)


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
    conform(_trial(case), ROUTES)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("case", CASES["argmax"], ids=lambda case: case.name)
def test_matches_the_oracle_with_two_threads(case: Case) -> None:
    conform(_trial(case), ROUTES)


def _trial(case: Case) -> Trial:
    logits, mask = _inputs(case)
    out = poisoned(case.batch, dtype=torch.int64)
    expected = oracle.argmax(logits.numpy(), None if mask is None else mask.numpy())
    inputs = {"logits": logits} if mask is None else {"logits": logits, "mask": mask}
    return Trial(
        inputs,
        {"out": out},
        lambda route: IMPLEMENTATIONS["argmax"][route](logits, mask, out),
        {"out": expected},
        {"out": EXACT},
    )


@pytest.mark.parametrize("route", ROUTES)
def test_the_lowest_of_equal_maxima_wins_wherever_it_stands(route: Route) -> None:
    out = poisoned(1, dtype=torch.int64)
    for vocab in (2, 5, 31, 64, 255, 257, 1000, 40000):
        for first in (0, 1, vocab // 2, vocab - 2):
            logits = torch.zeros(1, vocab)
            logits[0, [first, vocab - 1]] = 1.0
            IMPLEMENTATIONS["argmax"][route](logits, None, out)
            assert out.item() == first


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("place", [0, 7, 8, 255, 299])
def test_a_row_with_nan_is_an_error_that_names_it(route: Route, place: int) -> None:
    logits = torch.zeros(3, 300)
    logits[1, place] = torch.nan
    with pytest.raises(ValueError, match="row 1"):
        IMPLEMENTATIONS["argmax"][route](logits, None, poisoned(3, dtype=torch.int64))


@pytest.mark.parametrize("route", ROUTES)
def test_nothing_but_negative_infinity_is_an_error(route: Route) -> None:
    logits = torch.zeros(3, 40)
    logits[2] = -torch.inf
    with pytest.raises(ValueError, match="row 2"):
        IMPLEMENTATIONS["argmax"][route](logits, None, poisoned(3, dtype=torch.int64))


@pytest.mark.parametrize("route", ROUTES)
def test_an_empty_mask_is_an_error(route: Route) -> None:
    mask = torch.zeros(1, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match="row 0"):
        IMPLEMENTATIONS["argmax"][route](torch.zeros(1, 40), mask, poisoned(1, dtype=torch.int64))


@pytest.mark.parametrize("route", ROUTES)
def test_what_is_masked_is_not_looked_at(route: Route) -> None:
    logits, out = torch.tensor([[0.0, torch.nan, torch.inf, 1.0, 2.0]]), poisoned(1, dtype=torch.int64)
    IMPLEMENTATIONS["argmax"][route](logits, allow_only([0, 3], 5)[None], out)
    assert out.item() == 3


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
