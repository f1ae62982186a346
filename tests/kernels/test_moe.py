"""Mixture-of-experts ops against their oracles; ties; rows that do not depend on the call; tapes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

import numpy as np
import pytest
import torch

from ninfer.artifact.formats import Format
from ninfer.errors import ConfigError
from ninfer.kernels import moe_experts, moe_route, moe_shared_add
from ninfer.kernels.linear import oracle as linear_oracle
from ninfer.kernels.linear.compiled_cpu import A8_FORMATS
from ninfer.kernels.moe import IMPLEMENTATIONS, ExpertWeights, cases, compiled_cpu, oracle, prepare_experts, torch_cpu
from ninfer.kernels.native import record
from ninfer.kernels.routes import Route
from ninfer.kernels.tolerances import ELEMENTWISE, EXACT, MATMUL_CHAIN, PROBABILITY
from ninfer.kernels.weights import LinearWeight, WeightView, linear_routes, prepare_linear
from tests.kernels.harness import (
    COMPILED,
    Trial,
    assert_rows_independent,
    conform,
    poisoned,
    routes_here,
    same_bits,
)
from tests.kernels.weight_samples import fp32_view, fp32_weight, normal, view

Tensors = tuple[torch.Tensor, torch.Tensor]
ROUTES = {name: routes_here(IMPLEMENTATIONS[name], compiled_cpu.SOURCE) for name in ("moe_route", "moe_shared_add")}
ROUTES["moe_experts"] = routes_here(IMPLEMENTATIONS["moe_experts"], compiled_cpu.EXPERTS_SOURCE)
BODIES = [route for route in ROUTES["moe_experts"] if route in COMPILED]
DENSE = next(route for route in linear_routes() if route not in COMPILED)
every_body = pytest.mark.parametrize("body", BODIES, ids=lambda body: body.value)


def _route(logits: torch.Tensor, top_k: int) -> Tensors:
    ids, weights = poisoned(len(logits), top_k, dtype=torch.int64), poisoned(len(logits), top_k)
    moe_route(logits, top_k, ids, weights)
    return ids, weights


def _choice(rows: int, experts: int, top_k: int, seed: int = 0) -> Tensors:
    return _route(normal(rows, experts, seed=seed, spread=2.0), top_k)


# ---- moe_route -----------------------------------------------------------------------------------------


def _logits(case: cases.Case) -> torch.Tensor:
    if case.levels:
        generator = torch.Generator().manual_seed(case.experts)
        return torch.randint(case.levels, (case.rows, case.experts), generator=generator).float()
    return normal(case.rows, case.experts, spread=2.0)


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
    conform(trial, ROUTES["moe_route"])


@pytest.mark.parametrize("route", ROUTES["moe_route"], ids=lambda route: route.value)
@pytest.mark.parametrize("experts", [3, 8, 17, 64])
def test_zeros_of_both_signs_tie(route: Route, experts: int) -> None:
    logits = torch.zeros(2, experts)
    logits[0, ::2] = -0.0
    logits[1, 1::2] = -0.0
    ids, weights = poisoned(2, 3, dtype=torch.int64), poisoned(2, 3)
    IMPLEMENTATIONS["moe_route"][route](logits, 3, ids, weights)
    assert ids.tolist() == [[0, 1, 2]] * 2
    assert (weights - 1 / 3).abs().max() < 1e-7


@pytest.mark.parametrize("route", ROUTES["moe_route"], ids=lambda route: route.value)
def test_a_row_that_is_not_finite_gets_experts_that_exist(route: Route) -> None:
    logits, clean = normal(5, 20), normal(5, 20)
    logits[1], logits[2], logits[3, :18] = float("nan"), -float("inf"), float("inf")
    ids, weights = poisoned(5, 8, dtype=torch.int64), poisoned(5, 8)
    wanted_ids, wanted = poisoned(5, 8, dtype=torch.int64), poisoned(5, 8)
    IMPLEMENTATIONS["moe_route"][route](logits, 8, ids, weights)
    IMPLEMENTATIONS["moe_route"][route](clean, 8, wanted_ids, wanted)
    assert ((ids >= 0) & (ids < 20)).all()
    assert torch.equal(ids[[0, 4]], wanted_ids[[0, 4]])
    assert same_bits(weights[[0, 4]], wanted[[0, 4]])


@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (7, 3), (64, 6), (256, 8)])
def test_routing_of_a_row_is_its_own(experts: int, top_k: int) -> None:
    assert_rows_independent(partial(_route, top_k=top_k), normal(11, experts, spread=2.0))


# ---- moe_shared_add ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases.CASES["moe_shared_add"], ids=lambda case: case.name)
def test_shared_add_matches_the_oracle(case: cases.Case) -> None:
    shared, score = normal(case.rows, case.hidden), normal(case.rows, 1, seed=1, spread=3.0)
    routed, residual = normal(case.rows, case.hidden, seed=2), normal(case.rows, case.hidden, seed=3).abs() + 8
    out = poisoned(case.rows, case.hidden)
    wanted = oracle.moe_shared_add(shared.numpy(), score.numpy(), routed.numpy(), residual.numpy())
    trial = Trial(
        {"shared": shared, "score": score, "routed": routed, "residual": residual},
        {"out": out},
        lambda route: IMPLEMENTATIONS["moe_shared_add"][route](shared, score, routed, residual, out),
        {"out": wanted},
        {"out": ELEMENTWISE},
    )
    conform(trial, ROUTES["moe_shared_add"])


def test_shared_add_of_a_row_is_its_own() -> None:
    def run(*rows: torch.Tensor) -> Sequence[torch.Tensor]:
        out = poisoned(*rows[0].shape)
        moe_shared_add(*rows, out)
        return (out,)

    rows = [normal(9, 67, seed=seed) for seed in range(3)]
    assert_rows_independent(run, rows[0], normal(9, 1, seed=3), *rows[1:])


@pytest.mark.parametrize("route", ROUTES["moe_shared_add"], ids=lambda route: route.value)
@pytest.mark.parametrize("replaced", [0, 2, 3])
def test_the_output_may_replace_an_input(route: Route, replaced: int) -> None:
    rows = [normal(3, 67), normal(3, 1, seed=1), normal(3, 67, seed=2), normal(3, 67, seed=3)]
    wanted = poisoned(3, 67)
    IMPLEMENTATIONS["moe_shared_add"][route](*rows, wanted)
    IMPLEMENTATIONS["moe_shared_add"][route](*rows, rows[replaced])
    assert same_bits(rows[replaced], wanted)


# ---- moe_experts ---------------------------------------------------------------------------------------


def _signs(columns: int, seed: int) -> torch.Tensor:
    return torch.where(normal(columns, seed=seed) < 0, -1.0, 1.0)


class Sample:
    """Random experts of one case: stored matrices, and what each route and the oracle make of them."""

    def __init__(self, case: cases.Case) -> None:
        self.case = case
        seeds = range(case.experts)
        self.gate_up = [self._view(case.gate_up, 2 * case.products, case.hidden, seed) for seed in seeds]
        self.down = [self._view(case.down, case.hidden, case.products, 100 + seed) for seed in seeds]

    @staticmethod
    def _view(fmt: Format, rows: int, columns: int, seed: int) -> WeightView:
        return fp32_view(rows, columns, seed) if fmt is Format.FP32 else view(fmt, (rows, columns), seed=seed)

    def _rotation(self, part: WeightView) -> torch.Tensor | None:
        return _signs(part.columns, part.rows) if self.case.signs else None

    def weights(self, route: Route) -> ExpertWeights:
        def prepared(part: WeightView) -> LinearWeight:
            chosen = route if route in COMPILED else BODIES[0] if self.case.a8 else DENSE
            return prepare_linear([part], signs=self._rotation(part), allow_a8=self.case.a8, route=chosen)

        return prepare_experts([prepared(part) for part in self.gate_up], [prepared(part) for part in self.down])

    def linear(self, part: WeightView) -> oracle.Linear:
        stored = linear_oracle.StoredRows(part.format, part.shape, part.row_begin, part.row_end, part.data.numpy())
        signs = self._rotation(part)
        quantised = self.case.a8 and part.format in A8_FORMATS
        function = linear_oracle.linear_a8 if quantised else linear_oracle.linear
        return lambda x: function(x, [stored], None if signs is None else signs.numpy())

    def expected(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> np.ndarray:
        gate_up, down = ([self.linear(part) for part in parts] for parts in (self.gate_up, self.down))
        return oracle.moe_experts(x.numpy(), gate_up, down, ids.numpy(), weights.numpy())

    def input(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows whose products round to their 8-bit codes the same way in fp32 as in fp64."""
        for seed in itertools.count():
            x = normal(self.case.rows, self.case.hidden, seed=seed)
            if not (self.case.a8 and self.case.down in A8_FORMATS) or self._clear_of_ties(x, ids):
                return x
        raise AssertionError

    def _clear_of_ties(self, x: torch.Tensor, ids: torch.Tensor) -> bool:
        group = self.case.down.spec.group
        for row, chosen in enumerate(ids.tolist()):
            for expert in chosen:
                product = oracle.gated(x[row : row + 1].numpy(), self.linear(self.gate_up[expert]))
                signs = self._rotation(self.down[expert])
                if signs is not None:
                    product = linear_oracle._rotated(product, signs.numpy())
                groups = np.pad(product, ((0, 0), (0, -product.shape[1] % group))).reshape(-1, group)
                steps = groups * (127 / np.maximum(np.abs(groups).max(axis=1, keepdims=True), 1e-30))
                if np.abs(np.abs(steps - np.floor(steps)) - 0.5).min() < 2e-4:
                    return False
        return True


sample = cache(Sample)


@pytest.mark.parametrize("case", cases.CASES["moe_experts"], ids=lambda case: case.name)
def test_experts_match_the_oracle(case: cases.Case) -> None:
    ids, weights = _choice(case.rows, case.experts, case.top_k)
    x, out = sample(case).input(ids), poisoned(case.rows, case.hidden)
    routes = [route for route in ROUTES["moe_experts"] if BODIES or not case.a8]
    experts = {route: sample(case).weights(route) for route in routes}
    trial = Trial(
        {"x": x, "ids": ids, "weights": weights},
        {"out": out},
        lambda route: IMPLEMENTATIONS["moe_experts"][route](x, experts[route], ids, weights, out),
        {"out": sample(case).expected(x, ids, weights)},
        {"out": MATMUL_CHAIN},
    )
    conform(trial, routes or pytest.skip("no C++ compiler here"))


def _run(body: Route, experts: ExpertWeights, *inputs: torch.Tensor) -> torch.Tensor:
    out = poisoned(*inputs[0].shape)
    IMPLEMENTATIONS["moe_experts"][body](inputs[0], experts, *inputs[1:], out)
    return out


@every_body
@pytest.mark.parametrize("case", cases.CASES["moe_experts"], ids=lambda case: case.name)
def test_experts_have_the_bits_of_their_linears(case: cases.Case, body: Route) -> None:
    experts, (ids, weights) = sample(case).weights(body), _choice(case.rows, case.experts, case.top_k)
    x, apart = normal(case.rows, case.hidden), poisoned(case.rows, case.hidden)
    torch_cpu.moe_experts(x, experts, ids, weights, apart)
    assert same_bits(_run(body, experts, x, ids, weights), apart)


OWN_BITS = [case for case in cases.CASES["moe_experts"] if case.hidden <= 1024 and case.experts > 1]


@every_body
@pytest.mark.parametrize("case", OWN_BITS, ids=lambda case: case.name)
def test_experts_of_a_row_are_its_own(case: cases.Case, body: Route) -> None:
    experts = sample(case).weights(body)
    counts, rows = ((1, 3, 8, 33), 9) if case.hidden < 512 else ((1, 3, 9), 4)
    inputs = (normal(rows, case.hidden), *_choice(rows, case.experts, case.top_k))
    assert_rows_independent(lambda *some: (_run(body, experts, *some),), *inputs, counts=counts)


@pytest.mark.parametrize(("hidden", "products"), [(64, 32), (65, 7)])
def test_experts_of_a_row_are_its_own_with_torch(hidden: int, products: int) -> None:
    weights = [fp32_view(2 * products, hidden, seed=e) for e in range(5)]
    seconds = [fp32_view(hidden, products, seed=100 + e) for e in range(5)]
    dense = partial(prepare_linear, route=DENSE)
    experts = prepare_experts([dense([part]) for part in weights], [dense([part]) for part in seconds])
    assert experts.table is None

    def run(x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor]:
        out = poisoned(*x.shape)
        moe_experts(x, experts, ids, weights, out)
        return (out,)

    assert_rows_independent(run, normal(11, hidden), *_choice(11, 5, 3), counts=(1, 2, 7, 33))


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@every_body
@pytest.mark.parametrize("name", ["official_35b", "official_35b_a8", "rotated_a8", "many_rows", "one_takes_all"])
def test_threads_do_not_matter(name: str, body: Route, threads: Callable[[int], None]) -> None:
    case = next(case for case in cases.CASES["moe_experts"] if case.name == name)
    experts = sample(case).weights(body)
    inputs = (normal(case.rows, case.hidden), *_choice(case.rows, case.experts, case.top_k))
    results = []
    for count in (1, 2, 5):
        threads(count)
        results.append(_run(body, experts, *inputs))
    assert all(same_bits(result, results[0]) for result in results)


def _mixed() -> ExpertWeights:
    """Five experts of [64 -> 32 -> 64] in formats and permissions of their own."""
    formats = (Format.Q4, Format.BF16, Format.Q8, Format.T2, Format.FP8_ROW)

    def prepared(shape: tuple[int, int], seed: int) -> LinearWeight:
        part = view(formats[seed % 5], shape, seed=seed)
        return prepare_linear([part], allow_a8=seed % 2 == 0)

    return prepare_experts([prepared((64, 64), e) for e in range(5)], [prepared((64, 32), e + 3) for e in range(5)])


@pytest.mark.parametrize("rows", [0, 1, 8, 130])
def test_experts_of_different_formats(rows: int) -> None:
    experts, (ids, weights) = _mixed(), _choice(rows, 5, 3)
    x, out, apart = normal(rows, 64), poisoned(rows, 64), poisoned(rows, 64)
    moe_experts(x, experts, ids, weights, out)
    torch_cpu.moe_experts(x, experts, ids, weights, apart)
    assert same_bits(out, apart)
    assert not out.isnan().any()


def test_all_rows_may_choose_the_same_experts() -> None:
    experts, x, out = _mixed(), normal(140, 64), poisoned(140, 64)
    ids, weights = torch.tensor([[4, 0]]).repeat(140, 1), torch.full((140, 2), 0.5)
    moe_experts(x, experts, ids, weights, out)
    for row in (0, 1, 77, 139):
        alone = poisoned(1, 64)
        moe_experts(x[row : row + 1], experts, ids[:1], weights[:1], alone)
        assert same_bits(out[row : row + 1], alone)


@pytest.mark.parametrize("a8", [False, True])
def test_a_row_that_is_not_finite_affects_only_itself(a8: bool) -> None:
    prepared = partial(prepare_linear, allow_a8=a8)
    experts = prepare_experts(
        [prepared([view(Format.Q4, (64, 64), seed=e)]) for e in range(3)],
        [prepared([view(Format.Q8, (64, 32), seed=e)]) for e in range(3)],
    )
    x, (ids, weights), clean, out = normal(9, 64), _choice(9, 3, 2), poisoned(9, 64), poisoned(9, 64)
    moe_experts(x, experts, ids, weights, clean)
    for row, value in ((2, float("nan")), (5, float("inf"))):
        x[row, 7] = value
    moe_experts(x, experts, ids, weights, out)
    others = [row for row in range(9) if row not in (2, 5)]
    assert same_bits(out[others], clean[others])
    assert not out[[2, 5]].isfinite().all(dim=1).any()


def test_experts_that_nobody_chose_are_not_read() -> None:
    first = [fp32_weight(16, 16, seed=e) for e in range(3)]
    second = [fp32_weight(16, 8, seed=100 + e) for e in range(3)]
    experts, (ids, weights) = prepare_experts(first, second), _choice(4, 2, 2)
    broken = prepare_experts((*first[:2], fp32_weight(16, 16, 9, spread=float("nan"))), second)
    x, clean, out = normal(4, 16), poisoned(4, 16), poisoned(4, 16)
    moe_experts(x, experts, ids, weights, clean)
    moe_experts(x, broken, ids, weights, out)
    assert same_bits(out, clean)


@every_body
def test_a_tape_reads_ids_when_it_runs(body: Route) -> None:
    case = next(case for case in cases.CASES["moe_experts"] if case.name == "demo_a8")
    experts = sample(case).weights(body)
    logits, x, out = normal(3, 8), normal(3, 256), poisoned(3, 256)
    ids, weights = poisoned(3, 2, dtype=torch.int64), poisoned(3, 2)
    with record() as tape:
        IMPLEMENTATIONS["moe_route"][body](logits, 2, ids, weights)
        IMPLEMENTATIONS["moe_experts"][body](x, experts, ids, weights, out)
        IMPLEMENTATIONS["moe_shared_add"][body](x, logits[:, :1].contiguous(), out, x, out)
    assert out.isnan().all()
    for seed in (1, 2):
        logits.copy_(normal(3, 8, seed=seed))
        x.copy_(normal(3, 256, seed=seed))
        tape.run()
        wanted_ids, wanted_weights = oracle.moe_route(logits.numpy(), 2)
        assert np.array_equal(ids.numpy(), wanted_ids)
        assert np.allclose(weights.numpy(), wanted_weights, rtol=1e-5)
        assert out.isfinite().all()


def test_wrong_arguments_are_refused() -> None:
    dense = partial(prepare_linear, route=DENSE)
    experts = prepare_experts(
        [dense([fp32_view(16, 16, seed=e)]) for e in range(2)], [dense([fp32_view(16, 8, 2)])] * 2
    )
    with pytest.raises(ValueError, match=r"ids must lie in \[0, 2\)"):
        moe_experts(normal(1, 16), experts, torch.tensor([[2]]), normal(1, 1), poisoned(1, 16))
    with pytest.raises(ValueError, match="moe_experts: weights must be"):
        moe_experts(normal(1, 16), experts, torch.tensor([[1]]), normal(1, 2), poisoned(1, 16))
    with pytest.raises(ValueError, match=r"top_k must lie in \[1, 4\]"):
        moe_route(normal(1, 4), 5, poisoned(1, 5, dtype=torch.int64), poisoned(1, 5))
    with pytest.raises(ValueError, match="moe_shared_add: residual must be"):
        moe_shared_add(normal(1, 4), normal(1, 1), normal(1, 4), normal(1, 5), poisoned(1, 4))


def test_experts_must_fit_together() -> None:
    first, second = fp32_weight(16, 16, 1), fp32_weight(16, 8, 2)
    with pytest.raises(ConfigError, match="as many gate_up as down"):
        prepare_experts([first], [])
    with pytest.raises(ConfigError, match="expert 1"):
        prepare_experts([first, fp32_weight(18, 16, 1)], [second, second])
