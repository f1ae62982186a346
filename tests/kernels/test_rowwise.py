"""rmsnorm and gated_sigmoid against their oracles; rows that do not depend on the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from ninfer.kernels import exact, gated_sigmoid, rmsnorm
from ninfer.kernels.gated_sigmoid import IMPLEMENTATIONS as GATE_ROUTES
from ninfer.kernels.gated_sigmoid import cases as gate_cases
from ninfer.kernels.gated_sigmoid import compiled_cpu as gate_compiled
from ninfer.kernels.gated_sigmoid import oracle as gate_oracle
from ninfer.kernels.rmsnorm import IMPLEMENTATIONS as NORM_ROUTES
from ninfer.kernels.rmsnorm import cases as norm_cases
from ninfer.kernels.rmsnorm import compiled_cpu as norm_compiled
from ninfer.kernels.rmsnorm import oracle as norm_oracle
from ninfer.kernels.routes import DeviceKind, Problem
from ninfer.kernels.tolerances import ELEMENTWISE, ROW_NORM
from tests.kernels.harness import ROW_COUNTS, Trial, assert_rows_independent, conform, poisoned, routes_here, same_bits
from tests.kernels.weight_samples import normal

CPU = Problem(DeviceKind.CPU)
WIDTHS = [1, 2, 3, 7, 8, 9, 31, 64, 100, 257, 1024, 2048, 5121]


@pytest.mark.parametrize("case", norm_cases.CASES["rmsnorm"], ids=lambda case: case.name)
def test_rmsnorm_matches_the_oracle(case: norm_cases.Case) -> None:
    x, weight = normal(case.rows, case.columns, spread=case.spread), normal(case.columns, seed=1)
    out = poisoned(case.rows, case.columns)
    trial = Trial(
        {"x": x, "weight": weight},
        {"out": out},
        lambda route: NORM_ROUTES["rmsnorm"][route](x, weight, 1e-6, case.offset, out),
        {"out": norm_oracle.rmsnorm(x.numpy(), weight.numpy(), 1e-6, case.offset)},
        {"out": ROW_NORM},
    )
    conform(trial, routes_here(NORM_ROUTES["rmsnorm"], norm_compiled.SOURCE))


@pytest.mark.parametrize("case", gate_cases.CASES["gated_sigmoid"], ids=lambda case: case.name)
def test_gated_sigmoid_matches_the_oracle(case: gate_cases.Case) -> None:
    x, gate = normal(case.rows, case.columns), normal(case.rows, case.columns, seed=1, spread=case.spread)
    out = poisoned(case.rows, case.columns)
    trial = Trial(
        {"x": x, "gate": gate},
        {"out": out},
        lambda route: GATE_ROUTES["gated_sigmoid"][route](x, gate, out),
        {"out": gate_oracle.gated_sigmoid(x.numpy(), gate.numpy())},
        {"out": ELEMENTWISE},
    )
    conform(trial, routes_here(GATE_ROUTES["gated_sigmoid"], gate_compiled.SOURCE))


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_have_their_own_bits(width: int) -> None:
    _assert_rows_have_their_own_bits(width, ROW_COUNTS)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("width", [2048, 5121])
def test_rows_have_their_own_bits_with_two_threads(width: int) -> None:
    _assert_rows_have_their_own_bits(width, (7, 33))


def _assert_rows_have_their_own_bits(width: int, counts: Sequence[int]) -> None:
    weight, x, gate = normal(width, seed=5), normal(9, width, spread=3.0), normal(9, width, seed=1, spread=3.0)

    def norm(rows: torch.Tensor) -> tuple[torch.Tensor]:
        out = poisoned(*rows.shape)
        rmsnorm(rows, weight, 1e-6, True, out)
        return (out,)

    def gated(rows: torch.Tensor, gates: torch.Tensor) -> tuple[torch.Tensor]:
        out = poisoned(*rows.shape)
        gated_sigmoid(rows, gates, out)
        return (out,)

    assert_rows_independent(norm, x, counts=counts)
    assert_rows_independent(gated, x, gate, counts=counts)


def test_outputs_may_replace_their_input() -> None:
    x, weight, gate, wanted = normal(3, 65), normal(65, seed=1), normal(3, 65, seed=2), poisoned(3, 65)
    rmsnorm(x, weight, 1e-6, False, wanted)
    replaced = x.clone()
    rmsnorm(replaced, weight, 1e-6, False, replaced)
    assert same_bits(replaced, wanted)
    gated_sigmoid(x, gate, wanted)
    replaced = x.clone()
    gated_sigmoid(replaced, gate, replaced)
    assert same_bits(replaced, wanted)


@pytest.mark.parametrize("function", [exact.sigmoid, exact.silu, exact.softplus, exact.row_sum])
@pytest.mark.parametrize("width", [1, 5, 33, 4096, 4097])
def test_exact_functions_do_not_see_the_shape_or_strides(
    function: Callable[[torch.Tensor], torch.Tensor], width: int
) -> None:
    assert_rows_independent(lambda x: (function(x),), normal(5, width, spread=3.0), counts=(1, 2, 7, 40))
    x = normal(3, 2 * width + 1)[:, 1 : width + 1]
    assert same_bits(function(x), function(x.contiguous()))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("function", [exact.sigmoid, exact.silu, exact.softplus, exact.row_sum])
def test_exact_functions_do_not_see_the_threads(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = normal(3, 40001, spread=3.0)
    together = function(x)
    assert same_bits(function(x[1:2].clone()), together[1:2])
    torch.set_num_threads(1)
    assert same_bits(function(x), together)


@pytest.mark.parametrize(
    ("function", "reference"),
    [
        (exact.sigmoid, torch.sigmoid),
        (exact.silu, torch.nn.functional.silu),
        (exact.softplus, torch.nn.functional.softplus),
    ],
)
def test_exact_functions_are_accurate_over_the_whole_range(
    function: Callable[[torch.Tensor], torch.Tensor], reference: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    x = torch.linspace(-87, 87, 40001)
    wanted = reference(x.double())
    assert ((function(x).double() - wanted).abs() <= 4e-7 * wanted.abs() + 1e-37).all()
    assert function(torch.tensor([-1e4, 1e4])).isfinite().all()


def test_wrong_shapes_name_op_and_argument() -> None:
    with pytest.raises(ValueError, match=r"rmsnorm: weight must be .* \[4\]"):
        rmsnorm(normal(2, 4), normal(3), 1e-6, True, poisoned(2, 4))
    with pytest.raises(ValueError, match="gated_sigmoid: gate must be"):
        gated_sigmoid(normal(2, 4), normal(2, 5), poisoned(2, 4))
