"""log_softmax_gather and top_logprobs against their oracles; ties; rows that do not depend on the call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ninfer.kernels import log_softmax_gather, top_logprobs
from ninfer.kernels.log_softmax_gather import IMPLEMENTATIONS, cases, compiled_cpu, oracle
from ninfer.kernels.routes import Route
from ninfer.kernels.tolerances import EXACT, LOG_PROBABILITY
from tests.kernels.harness import Trial, assert_rows_independent, conform, poisoned, routes_here, same_bits
from tests.kernels.weight_samples import normal

ROUTES = routes_here(IMPLEMENTATIONS["log_softmax_gather"], compiled_cpu.SOURCE)


def _logits(case: cases.Case) -> torch.Tensor:
    if case.levels:
        generator = torch.Generator().manual_seed(case.vocab)
        return torch.randint(case.levels, (case.rows, case.vocab), generator=generator).float()
    return normal(case.rows, case.vocab, spread=case.spread)


@pytest.mark.parametrize("case", cases.CASES["log_softmax_gather"], ids=lambda case: case.name)
def test_log_softmax_gather_matches_the_oracle(case: cases.Case) -> None:
    logits, out = _logits(case), poisoned(case.rows)
    targets = torch.randint(case.vocab, (case.rows,), generator=torch.Generator().manual_seed(1))
    trial = Trial(
        {"logits": logits, "targets": targets},
        {"out": out},
        lambda route: IMPLEMENTATIONS["log_softmax_gather"][route](logits, targets, out),
        {"out": oracle.log_softmax_gather(logits.numpy(), targets.numpy())},
        {"out": LOG_PROBABILITY},
    )
    conform(trial, ROUTES)


@pytest.mark.parametrize("case", cases.CASES["top_logprobs"], ids=lambda case: case.name)
def test_top_logprobs_matches_the_oracle(case: cases.Case) -> None:
    logits = _logits(case)
    ids, values = poisoned(case.rows, case.top, dtype=torch.int64), poisoned(case.rows, case.top)
    wanted_ids, wanted_values = oracle.top_logprobs(logits.numpy(), case.top)
    trial = Trial(
        {"logits": logits},
        {"ids": ids, "values": values},
        lambda route: IMPLEMENTATIONS["top_logprobs"][route](logits, case.top, ids, values),
        {"ids": wanted_ids, "values": wanted_values},
        {"ids": EXACT, "values": LOG_PROBABILITY},
    )
    conform(trial, ROUTES)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("vocab", [1, 7, 259, 5000])
def test_rows_have_their_own_bits(vocab: int, route: Route) -> None:
    assert_rows_independent(_gather(route), normal(9, vocab, spread=3.0), torch.arange(9) % vocab, counts=(1, 2, 9, 40))
    assert_rows_independent(_top(route), normal(9, vocab, spread=3.0), counts=(1, 2, 9, 40))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("vocab", [5000, 40001])
def test_two_threads_give_the_same_bits(vocab: int, route: Route) -> None:
    logits, targets = normal(9, vocab, spread=3.0), torch.arange(9) % vocab
    assert_rows_independent(_gather(route), logits, targets, counts=(1, 9))
    together = *_gather(route)(logits, targets), *_top(route)(logits)
    torch.set_num_threads(1)
    alone = *_gather(route)(logits, targets), *_top(route)(logits)
    assert all(map(same_bits, together, alone))


@pytest.mark.parametrize("route", ROUTES)
def test_a_row_with_nan_spoils_no_other(route: Route) -> None:
    logits, targets = normal(3, 1000), torch.zeros(3, dtype=torch.int64)
    spoilt = logits.clone()
    spoilt[1, 500:] = torch.nan
    others = torch.tensor([0, 2])
    assert same_bits(_gather(route)(spoilt, targets)[0][others], _gather(route)(logits, targets)[0][others])
    if route is not Route.CPU_TORCH:  # it refuses the call
        for got, wanted in zip(_top(route)(spoilt), _top(route)(logits), strict=True):
            assert same_bits(got[others], wanted[others])


def _gather(route: Route) -> Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor]]:
    def run(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor]:
        out = poisoned(len(logits))
        IMPLEMENTATIONS["log_softmax_gather"][route](logits, targets, out)
        return (out,)

    return run


def _top(route: Route) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    def run(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k = min(logits.shape[1], 5)
        ids, values = poisoned(len(logits), k, dtype=torch.int64), poisoned(len(logits), k)
        IMPLEMENTATIONS["top_logprobs"][route](logits, k, ids, values)
        return ids, values

    return run


@pytest.mark.parametrize("route", ROUTES)
def test_a_masked_token_has_probability_zero(route: Route) -> None:
    logits = torch.tensor([[1.0, float("-inf"), 2.0]])
    assert _gather(route)(logits, torch.tensor([1]))[0].item() == float("-inf")
    assert _gather(route)(logits, torch.tensor([2]))[0].item() == pytest.approx(-0.31326169, abs=1e-6)


@pytest.mark.parametrize("route", ROUTES)
def test_masked_tokens_come_last_by_id(route: Route) -> None:
    logits = torch.full((1, 300), float("-inf"))
    logits[0, [290, 17]] = torch.tensor([1.0, 1.0])
    ids, values = _top(route)(logits)
    assert ids[0].tolist() == [17, 290, 0, 1, 2]
    assert values[0, 2:].tolist() == [float("-inf")] * 3


@pytest.mark.parametrize("route", ROUTES)
def test_top_gives_the_values_of_gather(route: Route) -> None:
    logits = normal(3, 5000, spread=3.0)
    ids, values = _top(route)(logits)
    for slot in range(5):
        (gathered,) = _gather(route)(logits, ids[:, slot].contiguous())
        assert same_bits(values[:, slot].contiguous(), gathered)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"targets must lie in \[0, 5\)"):
        log_softmax_gather(normal(1, 5), torch.tensor([5]), poisoned(1))
    with pytest.raises(ValueError, match=r"k must lie in \[0, 5\]"):
        top_logprobs(normal(1, 5), 6, poisoned(1, 6, dtype=torch.int64), poisoned(1, 6))
    with pytest.raises(ValueError, match="values_out must be"):
        top_logprobs(normal(1, 5), 2, poisoned(1, 2, dtype=torch.int64), poisoned(1, 3))
