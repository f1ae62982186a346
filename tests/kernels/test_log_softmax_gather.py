"""log_softmax_gather and top_logprobs against their oracles; ties; rows that do not depend on the call."""

from __future__ import annotations

import pytest
import torch

from ninfer.kernels import log_softmax_gather, top_logprobs
from ninfer.kernels.log_softmax_gather import IMPLEMENTATIONS, cases, oracle
from ninfer.kernels.log_softmax_gather.plan import plan
from ninfer.kernels.routes import DeviceKind, Problem
from ninfer.kernels.tolerances import EXACT, LOG_PROBABILITY
from tests.kernels.harness import Trial, assert_rows_independent, conform, poisoned, same_bits
from tests.kernels.weight_samples import normal

CPU = Problem(DeviceKind.CPU)


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
    conform(trial, plan(CPU))


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
    conform(trial, plan(CPU))


@pytest.mark.parametrize("vocab", [1, 7, 259, 5000])
def test_rows_have_their_own_bits(vocab: int) -> None:
    def gather(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor]:
        out = poisoned(len(logits))
        log_softmax_gather(logits, targets, out)
        return (out,)

    def top(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        k = min(vocab, 5)
        ids, values = poisoned(len(logits), k, dtype=torch.int64), poisoned(len(logits), k)
        top_logprobs(logits, k, ids, values)
        return ids, values

    logits, targets = normal(9, vocab, spread=3.0), torch.arange(9) % vocab
    assert_rows_independent(gather, logits, targets, counts=(1, 2, 9, 40))
    assert_rows_independent(top, logits, counts=(1, 2, 9, 40))


def test_a_masked_token_has_probability_zero() -> None:
    logits, out = torch.tensor([[1.0, float("-inf"), 2.0]]), poisoned(1)
    log_softmax_gather(logits, torch.tensor([1]), out)
    assert out.item() == float("-inf")
    log_softmax_gather(logits, torch.tensor([2]), out)
    assert out.item() == pytest.approx(-0.31326169, abs=1e-6)


def test_top_gives_the_values_of_gather() -> None:
    logits = normal(3, 5000, spread=3.0)
    ids, values = poisoned(3, 7, dtype=torch.int64), poisoned(3, 7)
    top_logprobs(logits, 7, ids, values)
    for slot in range(7):
        gathered = poisoned(3)
        log_softmax_gather(logits, ids[:, slot].contiguous(), gathered)
        assert same_bits(values[:, slot].contiguous(), gathered)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"targets must lie in \[0, 5\)"):
        log_softmax_gather(normal(1, 5), torch.tensor([5]), poisoned(1))
    with pytest.raises(ValueError, match=r"k must lie in \[0, 5\]"):
        top_logprobs(normal(1, 5), 6, poisoned(1, 6, dtype=torch.int64), poisoned(1, 6))
    with pytest.raises(ValueError, match="values_out must be"):
        top_logprobs(normal(1, 5), 2, poisoned(1, 2, dtype=torch.int64), poisoned(1, 3))
