"""swiglu and gate_up_swiglu: every route against the oracles; the fused product has the bits of its two steps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from ninfer.artifact.formats import Format
from ninfer.kernels import gate_up_swiglu, swiglu
from ninfer.kernels.linear import IMPLEMENTATIONS as LINEAR_ROUTES
from ninfer.kernels.linear import compiled_cpu as linear_compiled
from ninfer.kernels.mlp import IMPLEMENTATIONS, cases, compiled_cpu, oracle
from ninfer.kernels.routes import Route
from ninfer.kernels.tolerances import ELEMENTWISE, MATMUL_CHAIN
from ninfer.kernels.weights import WeightView, prepare_linear
from tests.kernels.harness import ROW_COUNTS, Trial, assert_rows_independent, conform, poisoned, routes_here, same_bits
from tests.kernels.weight_samples import fp32_view, fp32_weight, normal, represented, view

SWIGLU = routes_here(IMPLEMENTATIONS["swiglu"], compiled_cpu.SOURCE)
FUSED = routes_here(IMPLEMENTATIONS["gate_up_swiglu"], linear_compiled.A16_SOURCE)


@pytest.mark.parametrize("case", cases.CASES["swiglu"], ids=lambda case: case.name)
def test_swiglu_matches_the_oracle(case: cases.Case) -> None:
    gate_up, out = normal(case.rows, 2 * case.products, spread=3.0), poisoned(case.rows, case.products)
    trial = Trial(
        {"gate_up": gate_up},
        {"out": out},
        lambda route: IMPLEMENTATIONS["swiglu"][route](gate_up, out),
        {"out": oracle.swiglu(gate_up.numpy())},
        {"out": ELEMENTWISE},
    )
    conform(trial, SWIGLU)


@pytest.mark.parametrize("case", cases.CASES["gate_up_swiglu"], ids=lambda case: case.name)
def test_gate_up_swiglu_matches_the_oracle(case: cases.Case) -> None:
    stored = fp32_view(2 * case.products, case.columns, seed=1)
    x, out = normal(case.rows, case.columns), poisoned(case.rows, case.products)
    weights = {route: prepare_linear([stored], route=route) for route in FUSED}
    trial = Trial(
        {"x": x, "weight": stored.data},
        {"out": out},
        lambda route: gate_up_swiglu(x, weights[route], out),
        {"out": oracle.gate_up_swiglu(x.numpy(), represented(stored))},
        {"out": MATMUL_CHAIN},
    )
    conform(trial, FUSED)


@pytest.mark.parametrize("route", SWIGLU)
@pytest.mark.parametrize("width", [1, 7, 8, 31, 257, 3584])
def test_swiglu_rows_have_their_own_bits(width: int, route: Route) -> None:
    def run(gate_up: torch.Tensor) -> tuple[torch.Tensor]:
        out = poisoned(len(gate_up), width)
        IMPLEMENTATIONS["swiglu"][route](gate_up, out)
        return (out,)

    assert_rows_independent(run, normal(9, 2 * width, spread=3.0), counts=(1, 2, 9, 33))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("route", FUSED)
def test_gate_up_swiglu_rows_have_their_own_bits(route: Route, threads: int) -> None:
    weight = prepare_linear([fp32_view(62, 100, seed=1)], route=route)

    def run(x: torch.Tensor) -> tuple[torch.Tensor]:
        out = poisoned(len(x), 31)
        gate_up_swiglu(x, weight, out)
        return (out,)

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_rows_independent(run, normal(9, 100), counts=ROW_COUNTS if threads == 1 else (7, 33))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("route", FUSED)
@pytest.mark.parametrize("tokens", [1, 2, 11, 70])
@pytest.mark.parametrize(
    "parts",
    [
        [fp32_view(62, 100, seed=1)],
        [view(Format.Q4, (118, 128)), view(Format.Q6, (30, 128), 3, 13)],
        [view(Format.NVFP4, (128, 128)), view(Format.NVFP4, (128, 128), seed=1)],
    ],
    ids=["fp32", "halves_across_parts", "nvfp4"],
)
def test_gate_up_swiglu_is_linear_then_swiglu(parts: Sequence[WeightView], tokens: int, route: Route) -> None:
    weight, x = prepare_linear(parts, route=route), normal(tokens, parts[0].columns)
    products = weight.rows // 2
    fused, between, apart = poisoned(tokens, products), poisoned(tokens, 2 * products), poisoned(tokens, products)
    gate_up_swiglu(x, weight, fused)
    LINEAR_ROUTES["linear"][route](x, weight, between)
    step = Route.CPU_TORCH if route is Route.CPU_ONEDNN else route
    IMPLEMENTATIONS["swiglu"][step](between, apart)
    assert same_bits(fused, apart)


def test_wrong_shapes_name_op_and_argument() -> None:
    with pytest.raises(ValueError, match="swiglu: gate_up must be"):
        swiglu(normal(2, 7), poisoned(2, 4))
    with pytest.raises(ValueError, match="as many up rows as gate rows"):
        gate_up_swiglu(normal(2, 4), fp32_weight(3, 4, seed=1), poisoned(2, 1))
