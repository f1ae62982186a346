"""The row-wise ops' CUDA kernels in the emulator: oracles, aliases, rows of their own, and what plans choose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ninfer.kernels import gated_rmsnorm, gated_sigmoid, gdn_gates, rmsnorm
from ninfer.kernels.gated_rmsnorm import IMPLEMENTATIONS as GATED_NORM
from ninfer.kernels.gated_rmsnorm import cases as gated_norm_cases
from ninfer.kernels.gated_rmsnorm import oracle as gated_norm_oracle
from ninfer.kernels.gated_rmsnorm.plan import CudaPlan as GatedNormPlan
from ninfer.kernels.gated_rmsnorm.plan import cuda_plan as gated_norm_plan
from ninfer.kernels.gated_sigmoid import IMPLEMENTATIONS as GATE
from ninfer.kernels.gated_sigmoid import cases as gate_cases
from ninfer.kernels.gated_sigmoid import oracle as gate_oracle
from ninfer.kernels.gated_sigmoid.plan import cuda_plan as gate_plan
from ninfer.kernels.gdn_gates import IMPLEMENTATIONS as GATES
from ninfer.kernels.gdn_gates import cases as gates_cases
from ninfer.kernels.gdn_gates import oracle as gates_oracle
from ninfer.kernels.gdn_gates.plan import cuda_plan as gates_plan
from ninfer.kernels.jit import using
from ninfer.kernels.rmsnorm import IMPLEMENTATIONS as NORM
from ninfer.kernels.rmsnorm import cases as norm_cases
from ninfer.kernels.rmsnorm import oracle as norm_oracle
from ninfer.kernels.rmsnorm.plan import CudaPlan as NormPlan
from ninfer.kernels.rmsnorm.plan import cuda_plan as norm_plan
from ninfer.kernels.routes import Route
from ninfer.kernels.tolerances import ELEMENTWISE, ROW_NORM
from ninfer.kernels.tolerances import GATES as GATES_TOLERANCE
from tests.kernels.emulator import NEEDS_EMULATOR, Emulator
from tests.kernels.harness import Trial, assert_rows_independent, conform, poisoned, same_bits
from tests.kernels.weight_samples import normal

pytestmark = NEEDS_EMULATOR
CUDA = (Route.CUDA,)
ROWS = (1, 2, 5, 33)


@pytest.fixture
def checked() -> Iterator[None]:
    """Ops run in the emulator, which watches every access."""
    with using(Emulator("check")):
        yield


@pytest.fixture
def fast() -> Iterator[None]:
    """Ops run in the emulator, threads and blocks in some order."""
    with using(Emulator(order="random", seed=5)):
        yield


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("case", norm_cases.CASES["rmsnorm"], ids=lambda case: case.name)
def test_rmsnorm_matches_the_oracle(case: norm_cases.Case) -> None:
    x, weight = normal(case.rows, case.columns, spread=case.spread), normal(case.columns, seed=1)
    out = poisoned(case.rows, case.columns)
    trial = Trial(
        {"x": x, "weight": weight},
        {"out": out},
        lambda route: NORM["rmsnorm"][route](x, weight, 1e-6, case.offset, out),
        {"out": norm_oracle.rmsnorm(x.numpy(), weight.numpy(), 1e-6, case.offset)},
        {"out": ROW_NORM},
    )
    conform(trial, CUDA)


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("case", gated_norm_cases.CASES["gated_rmsnorm"], ids=lambda case: case.name)
def test_gated_rmsnorm_matches_the_oracle(case: gated_norm_cases.Case) -> None:
    x, z = (normal(case.tokens, case.heads, case.width, seed=i, spread=case.spread) for i in (0, 1))
    weight, out = normal(case.width, seed=2), poisoned(*x.shape)
    trial = Trial(
        {"x": x, "z": z, "weight": weight},
        {"out": out},
        lambda route: GATED_NORM["gated_rmsnorm"][route](x, z, weight, 1e-6, out),
        {"out": gated_norm_oracle.gated_rmsnorm(x.numpy(), z.numpy(), weight.numpy(), 1e-6)},
        {"out": ROW_NORM},
    )
    conform(trial, CUDA)


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("case", gate_cases.CASES["gated_sigmoid"], ids=lambda case: case.name)
def test_gated_sigmoid_matches_the_oracle(case: gate_cases.Case) -> None:
    x, gate = normal(case.rows, case.columns), normal(case.rows, case.columns, seed=1, spread=case.spread)
    out = poisoned(case.rows, case.columns)
    trial = Trial(
        {"x": x, "gate": gate},
        {"out": out},
        lambda route: GATE["gated_sigmoid"][route](x, gate, out),
        {"out": gate_oracle.gated_sigmoid(x.numpy(), gate.numpy())},
        {"out": ELEMENTWISE},
    )
    conform(trial, CUDA)


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("case", gates_cases.CASES["gdn_gates"], ids=lambda case: case.name)
def test_gdn_gates_match_the_oracle(case: gates_cases.Case) -> None:
    a, b = (normal(case.tokens, case.heads, seed=i, spread=case.spread) for i in (0, 1))
    inputs = {"a": a, "b": b, "a_log": normal(case.heads, seed=2), "dt_bias": normal(case.heads, seed=3)}
    g, beta = poisoned(*a.shape), poisoned(*a.shape)
    wanted = gates_oracle.gdn_gates(*(x.numpy() for x in inputs.values()))
    trial = Trial(
        inputs,
        {"g": g, "beta": beta},
        lambda route: GATES["gdn_gates"][route](*inputs.values(), g, beta),
        {"g": wanted[0], "beta": wanted[1]},
        {"g": GATES_TOLERANCE, "beta": GATES_TOLERANCE},
    )
    conform(trial, CUDA)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("width", [1, 128, 259])
def test_rows_have_their_own_bits(width: int) -> None:
    weight, x, z = normal(width, seed=5), normal(9, width, spread=3.0), normal(9, width, seed=1, spread=3.0)

    def norm(rows: torch.Tensor, gates: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outs = tuple(poisoned(*rows.shape) for _ in range(3))
        rmsnorm(rows, weight, 1e-6, True, outs[0])
        gated_sigmoid(rows, gates, outs[1])
        gated_rmsnorm(rows[:, None], gates[:, None], weight, 1e-6, outs[2][:, None])
        return outs

    assert_rows_independent(norm, x, z, counts=ROWS)


@pytest.mark.usefixtures("fast")
def test_gates_of_a_row_are_its_own() -> None:
    a_log, bias = normal(48, seed=2), normal(48, seed=3)

    def run(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        g, beta = poisoned(*a.shape), poisoned(*a.shape)
        gdn_gates(a, b, a_log, bias, g, beta)
        return g, beta

    assert_rows_independent(run, normal(9, 48, spread=3), normal(9, 48, seed=1, spread=3), counts=ROWS)


@pytest.mark.usefixtures("fast")
def test_bits_do_not_depend_on_alignment() -> None:
    width = 260
    x, gate, weight = normal(3, width), normal(3, width, seed=1), normal(width, seed=2)
    wanted = poisoned(3, width), poisoned(3, width), poisoned(3, width)
    shifted = torch.zeros(3 * width + 1)[1:].view(3, width).copy_(x)
    got = poisoned(3, width), poisoned(3, width), poisoned(3, width)
    for source, outs in ((x, wanted), (shifted, got)):
        rmsnorm(source, weight, 1e-6, False, outs[0])
        gated_sigmoid(source, gate, outs[1])
        gated_rmsnorm(source[:, None], gate[:, None], weight, 1e-6, outs[2][:, None])
    assert all(same_bits(a, b) for a, b in zip(got, wanted, strict=True))


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("width", [64, 65])
def test_outputs_may_replace_their_input(width: int) -> None:
    x, weight, gate, wanted = normal(3, width), normal(width, seed=1), normal(3, width, seed=2), poisoned(3, width)
    rmsnorm(x, weight, 1e-6, False, wanted)
    replaced = x.clone()
    rmsnorm(replaced, weight, 1e-6, False, replaced)
    assert same_bits(replaced, wanted)
    gated_sigmoid(x, gate, wanted)
    replaced = x.clone()
    gated_sigmoid(replaced, gate, replaced)
    assert same_bits(replaced, wanted)


@pytest.mark.usefixtures("fast")
def test_a_non_finite_row_stays_alone() -> None:
    x, weight = normal(3, 32), normal(32, seed=1)
    alone, out = poisoned(3, 32), poisoned(3, 32)
    rmsnorm(x, weight, 1e-6, True, alone)
    x[1, 3] = float("nan")
    rmsnorm(x, weight, 1e-6, True, out)
    assert out[1].isnan().all()
    assert same_bits(out[::2].contiguous(), alone[::2].contiguous())


@pytest.mark.usefixtures("fast")
def test_no_rows_are_no_work() -> None:
    nothing = torch.zeros(0, 16)
    rmsnorm(nothing, normal(16), 1e-6, True, nothing)
    gated_sigmoid(nothing, nothing, nothing)
    gdn_gates(nothing, nothing, normal(16), normal(16), nothing, nothing)


def test_a_row_is_divided_by_its_width_alone() -> None:
    assert norm_plan(5120) == NormPlan(256, 5)
    assert norm_plan(1) == NormPlan(32, 1)
    for columns in (*range(1, 600), 2048, 8192, 8196, 32768, 40000):
        plan = norm_plan(columns)
        assert plan.threads in (32, 64, 128, 256, 512, 1024)
        assert 4 * plan.threads * plan.steps >= columns > 4 * plan.threads * (plan.steps - 1)


def test_plans_cover_everything_once() -> None:
    assert gated_norm_plan(48, 128) == GatedNormPlan(warps=1, steps=1)
    assert gated_norm_plan(48 * 512, 129) == GatedNormPlan(warps=4, steps=2)
    assert [gate_plan(n) for n in (0, 1, 512, 513)] == [0, 1, 1, 2]
    assert [gates_plan(n) for n in (0, 1, 128, 129)] == [0, 1, 1, 2]
