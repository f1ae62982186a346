"""gdn_gates and gated_rmsnorm against their oracles, and rows that do not depend on the call."""

from __future__ import annotations

import pytest
import torch

from ninfer.kernels import gated_rmsnorm, gdn_gates
from ninfer.kernels.gated_rmsnorm import IMPLEMENTATIONS as NORM
from ninfer.kernels.gated_rmsnorm import cases as norm_cases
from ninfer.kernels.gated_rmsnorm import compiled_cpu as norm_compiled
from ninfer.kernels.gated_rmsnorm import oracle as norm_oracle
from ninfer.kernels.gdn_gates import IMPLEMENTATIONS as GATES_ROUTES
from ninfer.kernels.gdn_gates import cases as gate_cases
from ninfer.kernels.gdn_gates import compiled_cpu as gate_compiled
from ninfer.kernels.gdn_gates import oracle as gate_oracle
from ninfer.kernels.routes import Route
from ninfer.kernels.tolerances import GATES, ROW_NORM
from tests.kernels.harness import Trial, assert_rows_independent, conform, poisoned, routes_here

NORM_HERE = routes_here(NORM["gated_rmsnorm"], norm_compiled.SOURCE)
GATES_HERE = routes_here(GATES_ROUTES["gdn_gates"], gate_compiled.SOURCE)


def _normal(*shape: int, seed: int = 0, spread: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize("case", gate_cases.CASES["gdn_gates"], ids=lambda case: case.name)
def test_gates_match_the_oracle(case: gate_cases.Case) -> None:
    a, b = (_normal(case.tokens, case.heads, seed=i, spread=case.spread) for i in (0, 1))
    a_log, bias = _normal(case.heads, seed=2), _normal(case.heads, seed=3)
    g, beta = poisoned(*a.shape), poisoned(*a.shape)
    inputs = {"a": a, "b": b, "a_log": a_log, "dt_bias": bias}
    wanted = gate_oracle.gdn_gates(*(x.numpy() for x in inputs.values()))
    trial = Trial(
        inputs,
        {"g": g, "beta": beta},
        lambda route: GATES_ROUTES["gdn_gates"][route](*inputs.values(), g, beta),
        {"g": wanted[0], "beta": wanted[1]},
        {"g": GATES, "beta": GATES},
    )
    conform(trial, GATES_HERE)


@pytest.mark.parametrize("route", GATES_HERE, ids=lambda route: route.value)
@pytest.mark.parametrize("heads", [1, 3, 48])
def test_gates_of_a_row_are_its_own(heads: int, route: Route, two_threads: None) -> None:
    a_log, bias = _normal(heads, seed=2), _normal(heads, seed=3)

    def run(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        g, beta = poisoned(*a.shape), poisoned(*a.shape)
        GATES_ROUTES["gdn_gates"][route](a, b, a_log, bias, g, beta)
        return g, beta

    assert_rows_independent(run, _normal(9, heads, spread=3), _normal(9, heads, seed=1, spread=3))


@pytest.mark.parametrize("case", norm_cases.CASES["gated_rmsnorm"], ids=lambda case: case.name)
def test_norm_matches_the_oracle(case: norm_cases.Case) -> None:
    x, z = (_normal(case.tokens, case.heads, case.width, seed=i, spread=case.spread) for i in (0, 1))
    weight, out = _normal(case.width, seed=2), poisoned(*x.shape)
    trial = Trial(
        {"x": x, "z": z, "weight": weight},
        {"out": out},
        lambda route: NORM["gated_rmsnorm"][route](x, z, weight, 1e-6, out),
        {"out": norm_oracle.gated_rmsnorm(x.numpy(), z.numpy(), weight.numpy(), 1e-6)},
        {"out": ROW_NORM},
    )
    conform(trial, NORM_HERE)


@pytest.mark.parametrize("route", NORM_HERE, ids=lambda route: route.value)
@pytest.mark.parametrize(("heads", "width"), [(1, 16), (3, 20), (16, 128)])
def test_norm_of_a_row_is_its_own(heads: int, width: int, route: Route, two_threads: None) -> None:
    weight = _normal(width, seed=2)

    def run(x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor]:
        out = poisoned(*x.shape)
        NORM["gated_rmsnorm"][route](x, z, weight, 1e-6, out)
        return (out,)

    assert_rows_independent(run, _normal(9, heads, width), _normal(9, heads, width, seed=1))


def test_bad_arguments_are_named() -> None:
    x = torch.zeros(2, 3, 4)
    with pytest.raises(ValueError, match="gated_rmsnorm: weight"):
        gated_rmsnorm(x, x, torch.zeros(3), 1e-6, poisoned(2, 3, 4))
    with pytest.raises(ValueError, match="gated_rmsnorm: x must have shape"):
        gated_rmsnorm(x[0], x, torch.zeros(4), 1e-6, poisoned(2, 3, 4))
    a = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="gdn_gates: dt_bias"):
        gdn_gates(a, a, torch.zeros(3), torch.zeros(2), poisoned(2, 3), poisoned(2, 3))
