"""Mixture-of-experts ops against their oracles; ties; rows that do not depend on the call."""

from __future__ import annotations

import pytest
import torch

from ninfer.errors import ConfigError
from ninfer.kernels import moe_experts, moe_route, moe_shared_add
from ninfer.kernels.moe import IMPLEMENTATIONS, ExpertWeights, cases, oracle, prepare_experts
from ninfer.kernels.moe.plan import plan
from ninfer.kernels.routes import DeviceKind, Problem, Route
from ninfer.kernels.tolerances import ELEMENTWISE, EXACT, MATMUL_CHAIN, PROBABILITY
from ninfer.kernels.weights import prepare_linear
from tests.kernels.harness import Trial, assert_rows_independent, conform, poisoned, same_bits
from tests.kernels.weight_samples import fp32_view, fp32_weight, normal, represented

CPU = Problem(DeviceKind.CPU)


def _logits(case: cases.Case) -> torch.Tensor:
    if case.levels:
        generator = torch.Generator().manual_seed(case.experts)
        return torch.randint(case.levels, (case.rows, case.experts), generator=generator).float()
    return normal(case.rows, case.experts, spread=2.0)


def _choice(rows: int, experts: int, top_k: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    ids, weights = poisoned(rows, top_k, dtype=torch.int64), poisoned(rows, top_k)
    moe_route(normal(rows, experts, seed=seed, spread=2.0), top_k, ids, weights)
    return ids, weights


def _experts(count: int, hidden: int, products: int) -> ExpertWeights:
    return prepare_experts(
        [fp32_weight(2 * products, hidden, seed=e) for e in range(count)],
        [fp32_weight(hidden, products, seed=100 + e) for e in range(count)],
    )


@pytest.mark.parametrize("case", cases.CASES["moe_route"], ids=lambda case: case.name)
def test_route_matches_the_oracle(case: cases.Case) -> None:
    logits = _logits(case)
    ids, weights = poisoned(case.rows, case.top_k, dtype=torch.int64), poisoned(case.rows, case.top_k)
    wanted_ids, wanted_weights = oracle.moe_route(logits.numpy(), case.top_k)
    trial = Trial(
        {"logits": logits},
        {"ids": ids, "weights": weights},
        lambda route: IMPLEMENTATIONS["moe_route"][route](logits, case.top_k, ids, weights),
        {"ids": wanted_ids, "weights": wanted_weights},
        {"ids": EXACT, "weights": PROBABILITY},
    )
    conform(trial, plan(CPU))


@pytest.mark.parametrize("case", cases.CASES["moe_experts"], ids=lambda case: case.name)
def test_experts_match_the_oracle(case: cases.Case) -> None:
    gate_up = [fp32_view(2 * case.products, case.hidden, seed=e) for e in range(case.experts)]
    down = [fp32_view(case.hidden, case.products, seed=100 + e) for e in range(case.experts)]
    experts = prepare_experts([prepare_linear([v]) for v in gate_up], [prepare_linear([v]) for v in down])
    ids, weights = _choice(case.rows, case.experts, case.top_k)
    x, out = normal(case.rows, case.hidden), poisoned(case.rows, case.hidden)
    trial = Trial(
        {"x": x, "ids": ids, "weights": weights},
        {"out": out},
        lambda route: IMPLEMENTATIONS["moe_experts"][route](x, experts, ids, weights, out),
        {
            "out": oracle.moe_experts(
                x.numpy(),
                [represented(v) for v in gate_up],
                [represented(v) for v in down],
                ids.numpy(),
                weights.numpy(),
            )
        },
        {"out": MATMUL_CHAIN},
    )
    conform(trial, plan(CPU))


@pytest.mark.parametrize("case", cases.CASES["moe_shared_add"], ids=lambda case: case.name)
def test_shared_add_matches_the_oracle(case: cases.Case) -> None:
    shared, score = normal(case.rows, case.hidden), normal(case.rows, 1, seed=1, spread=3.0)
    old, out = normal(case.rows, case.hidden, seed=2).abs() + 4, poisoned(case.rows, case.hidden)

    def run(route: Route) -> None:
        out.copy_(old)
        IMPLEMENTATIONS["moe_shared_add"][route](shared, score, out)

    wanted = oracle.moe_shared_add(shared.numpy(), score.numpy(), old.numpy())
    inputs = {"shared": shared, "score": score, "old": old}
    conform(Trial(inputs, {"out": out}, run, {"out": wanted}, {"out": ELEMENTWISE}), plan(CPU))


@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (7, 3), (64, 6), (256, 8)])
def test_routing_of_a_row_is_its_own(experts: int, top_k: int) -> None:
    def run(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ids, weights = poisoned(len(logits), top_k, dtype=torch.int64), poisoned(len(logits), top_k)
        moe_route(logits, top_k, ids, weights)
        return ids, weights

    assert_rows_independent(run, normal(11, experts, spread=2.0))


@pytest.mark.parametrize(("hidden", "products"), [(64, 32), (65, 7)])
def test_experts_of_a_row_are_its_own(hidden: int, products: int) -> None:
    experts = _experts(5, hidden, products)

    def run(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor]:
        out = poisoned(*x.shape)
        moe_experts(x, experts, ids, weights, out)
        return (out,)

    assert_rows_independent(run, normal(11, hidden), *_choice(11, 5, 3), counts=(1, 2, 7, 8, 9, 33, 300))


def test_shared_add_of_a_row_is_its_own() -> None:
    def run(shared: torch.Tensor, score: torch.Tensor) -> tuple[torch.Tensor]:
        out = torch.ones_like(shared)
        moe_shared_add(shared, score, out)
        return (out,)

    assert_rows_independent(run, normal(9, 67), normal(9, 1, seed=1))


def test_experts_that_nobody_chose_are_not_read() -> None:
    experts, (ids, weights) = _experts(3, 16, 8), _choice(4, 2, 2)
    broken = ExpertWeights((*experts.gate_up[:2], fp32_weight(16, 16, 9, spread=float("nan"))), experts.down)
    x, clean, out = normal(4, 16), poisoned(4, 16), poisoned(4, 16)
    moe_experts(x, experts, ids, weights, clean)
    moe_experts(x, broken, ids, weights, out)
    assert same_bits(out, clean)


def test_no_rows_is_no_work() -> None:
    moe_experts(normal(0, 16), _experts(2, 16, 8), torch.empty(0, 2, dtype=torch.int64), normal(0, 2), poisoned(0, 16))


def test_wrong_arguments_are_refused() -> None:
    experts = _experts(2, 16, 8)
    with pytest.raises(ValueError, match=r"ids must lie in \[0, 2\)"):
        moe_experts(normal(1, 16), experts, torch.tensor([[2]]), normal(1, 1), poisoned(1, 16))
    with pytest.raises(ValueError, match=r"top_k must lie in \[1, 4\]"):
        moe_route(normal(1, 4), 5, poisoned(1, 5, dtype=torch.int64), poisoned(1, 5))


def test_experts_must_fit_together() -> None:
    first, second = fp32_weight(16, 16, 1), fp32_weight(16, 8, 2)
    with pytest.raises(ConfigError, match="as many gate_up as down"):
        prepare_experts([first], [])
    with pytest.raises(ConfigError, match="expert 1"):
        prepare_experts([first, fp32_weight(18, 16, 1)], [second, second])
