"""linear: every route at every case against the oracle; bits of a row alone, in tiles, in batches and by threads."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.artifact.formats import Format
from ninfer.errors import ConfigError
from ninfer.kernels import linear, projections
from ninfer.kernels.linear import IMPLEMENTATIONS, cases, compiled_cpu, onednn_cpu, oracle
from ninfer.kernels.linear.hadamard import rotate
from ninfer.kernels.native import record
from ninfer.kernels.routes import Route
from ninfer.kernels.tolerances import MATMUL
from ninfer.kernels.weights import LinearWeight, WeightView, prepare_linear
from tests.kernels.harness import COMPILED, Trial, assert_rows_independent, conform, poisoned, routes_here, same_bits
from tests.kernels.weight_samples import fp32_view, normal, view

ROUTES = routes_here(IMPLEMENTATIONS["linear"], compiled_cpu.A16_SOURCE)
COMPILED_HERE = [route for route in ROUTES if route in COMPILED]
ROWWISE = [fmt for fmt in Format if fmt not in (Format.INT32, Format.NVFP4)]
SHAPES = [(64, 1), (64, 2), (65, 5), (127, 17), (256, 768), (1, 3), (1000, 257), (1024, 33), (3584, 31), (5120, 9)]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Two threads compute only where a test asks for them: waiting for one another takes longer than these products."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _product(weight: LinearWeight) -> Callable[[torch.Tensor], Sequence[torch.Tensor]]:
    def run(x: torch.Tensor) -> Sequence[torch.Tensor]:
        out = poisoned(len(x), weight.rows)
        linear(x, weight, out)
        return (out,)

    return run


def _signs(columns: int) -> torch.Tensor:
    return torch.where(normal(columns, seed=9) < 0, -1.0, 1.0)


def _stored(part: WeightView) -> oracle.StoredRows:
    return oracle.StoredRows(part.format, part.shape, part.row_begin, part.row_end, part.data.numpy())


@pytest.mark.parametrize("case", cases.CASES["linear"], ids=lambda case: case.name)
def test_every_route_matches_the_oracle(case: cases.Case) -> None:
    parts = [view(p.format, (p.parent_rows, case.columns), p.begin, p.end, i) for i, p in enumerate(case.parts)]
    x, rows = normal(case.tokens, case.columns), sum(part.rows for part in parts)
    signs = _signs(case.columns) if case.signs else None
    residual = normal(case.tokens, rows, seed=1) if case.residual else None
    weights = {route: prepare_linear(parts, signs=signs, route=route) for route in ROUTES}
    out = poisoned(case.tokens, rows)
    given_inputs = {"x": x, "signs": signs, "residual": residual} | {f"part{i}": p.data for i, p in enumerate(parts)}
    expected = oracle.linear(
        x.numpy(),
        [_stored(part) for part in parts],
        None if signs is None else signs.numpy(),
        None if residual is None else residual.numpy(),
    )
    trial = Trial(
        {name: tensor for name, tensor in given_inputs.items() if tensor is not None},
        {"out": out},
        lambda route: linear(x, weights[route], out, residual),
        {"out": expected},
        {"out": MATMUL},
    )
    conform(trial, ROUTES)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("columns", "rows"), SHAPES)
def test_a_row_has_its_own_bits(columns: int, rows: int, route: Route) -> None:
    weight = prepare_linear([fp32_view(rows, columns, 1)], route=route)
    counts = (1, 2, 3, 5, 7, 8, 9, 16, 23, 300)
    assert_rows_independent(_product(weight), normal(11, columns, seed=2), counts=counts)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("columns", "rows"), [(256, 768), (65, 5), (1000, 257)])
def test_a_row_has_its_own_bits_with_two_threads(columns: int, rows: int, route: Route) -> None:
    weight = prepare_linear([fp32_view(rows, columns, 1)], route=route)
    assert_rows_independent(_product(weight), normal(3, columns, seed=2), counts=(7, 33))


@pytest.mark.parametrize("route", ROUTES)
def test_a_row_of_the_vocabulary_has_its_own_bits(route: Route) -> None:
    weight = prepare_linear([fp32_view(248320, 64, 1)], route=route)
    x, alone, among = normal(11, 64, seed=2), poisoned(1, 248320), poisoned(11, 248320)
    linear(x[9:10].clone(), weight, alone)
    linear(x, weight, among)
    assert same_bits(among[9:10], alone)


@settings(max_examples=60, deadline=None)
@given(
    columns=st.integers(1, 300),
    rows=st.integers(1, 80),
    count=st.integers(1, 40),
    position=st.integers(0, 39),
    misalignment=st.integers(0, 15),
    route=st.sampled_from(ROUTES),
)
def test_neither_position_neighbours_nor_alignment_change_a_row(
    columns: int, rows: int, count: int, position: int, misalignment: int, route: Route
) -> None:
    weight = prepare_linear([fp32_view(rows, columns, seed=columns)], route=route)
    x, at = normal(1, columns, seed=rows), position % count
    alone, among = poisoned(1, rows), poisoned(count, rows)
    linear(x, weight, alone)
    batch = torch.empty(misalignment + count * columns)[misalignment:].view(count, columns)
    batch.copy_(normal(count, columns, seed=count, spread=100.0))
    batch[at] = x[0]
    linear(batch, weight, among)
    assert same_bits(among[at : at + 1], alone)


@pytest.mark.parametrize("route", ROUTES)
def test_non_finite_rows_stay_by_themselves(route: Route) -> None:
    weight = prepare_linear([fp32_view(48, 96, 1)], route=route)
    x, alone, among = normal(8, 96), poisoned(1, 48), poisoned(8, 48)
    linear(x[3:4].clone(), weight, alone)
    x[2], x[4] = float("nan"), float("inf")
    linear(x, weight, among)
    assert same_bits(among[3:4], alone)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("tokens", [1, 8, 13])
def test_residual_may_be_the_output(tokens: int, route: Route) -> None:
    weight = prepare_linear([fp32_view(48, 96, 1)], route=route)
    x, residual, apart = normal(tokens, 96), normal(tokens, 48, seed=1), poisoned(tokens, 48)
    linear(x, weight, apart, residual)
    linear(x, weight, residual, residual)
    assert same_bits(residual, apart)


def _mixed(columns: int) -> list[WeightView]:
    """Ranges of a parent of every format that has ranges, an odd number of rows each."""
    return [view(fmt, (9, columns), 1, 6, seed) for seed, fmt in enumerate(ROWWISE)]


@pytest.mark.parametrize("route", COMPILED_HERE)
@pytest.mark.parametrize(
    "parts",
    [_mixed(130), _mixed(2110), [view(Format.NVFP4, (128, 1088))], [fp32_view(1, 1, 1)]],
    ids=["one_block", "blocks_of_columns", "nvfp4", "one"],
)
def test_a_stored_row_has_its_own_bits(parts: list[WeightView], route: Route) -> None:
    weight = prepare_linear(parts, route=route)
    counts = (*range(2, 10), 16, 31, 33, 64, 129, 300) if weight.columns < 1000 else (2, 3, 4, 7, 9, 16, 33)
    assert_rows_independent(_product(weight), normal(5, weight.columns, seed=2), counts=counts)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("route", COMPILED_HERE)
def test_threads_do_not_change_bits(route: Route) -> None:
    weight = prepare_linear([*_mixed(192), view(Format.Q8, (700, 192)), view(Format.NVFP4, (128, 192))], route=route)
    for tokens in (1, 2, 8, 33, 200):
        x, together, alone = normal(tokens, 192), poisoned(tokens, weight.rows), poisoned(tokens, weight.rows)
        linear(x, weight, together)
        torch.set_num_threads(1)
        linear(x, weight, alone)
        torch.set_num_threads(2)
        assert same_bits(together, alone)


@pytest.mark.parametrize("route", COMPILED_HERE)
@pytest.mark.parametrize("columns", [130, 2110])
def test_ranges_and_places_do_not_change_a_row(columns: int, route: Route) -> None:
    """A row has the same bits wherever it stands in the weight, and however its neighbours are stored."""
    whole = [view(fmt, (9, columns), seed=seed) for seed, fmt in enumerate(ROWWISE)]
    for tokens in (1, 3, 10):
        x = normal(tokens, columns)
        places = [poisoned(tokens, 9 * len(whole)), poisoned(tokens, 9 * len(whole) + 1)]
        linear(x, prepare_linear(whole, route=route), places[0])
        linear(x, prepare_linear([fp32_view(1, columns, 3), *whole], route=route), places[1])
        assert same_bits(places[0], places[1][:, 1:].contiguous())
        for index, part in enumerate(whole):
            rows = poisoned(tokens, 4)
            linear(x, prepare_linear([replace(part, row_begin=3, row_end=7)], route=route), rows)
            assert same_bits(rows, places[0][:, 9 * index + 3 : 9 * index + 7].contiguous())


@pytest.mark.parametrize("route", ROUTES)
def test_a_rotated_row_has_its_own_bits(route: Route) -> None:
    weight = prepare_linear([fp32_view(17, 2048, 1)], signs=_signs(2048), route=route)
    assert_rows_independent(_product(weight), normal(5, 2048), counts=(1, 2, 9, 40))


@pytest.mark.parametrize("route", COMPILED_HERE)
def test_the_rotation_is_the_torch_routes(route: Route) -> None:
    """Its bits are part of the contract where x is quantised afterwards."""
    x, signs, out = normal(3, 2048, spread=7.0), _signs(2048), poisoned(3, 2048)
    identity = WeightView(Format.FP32, (2048, 2048), 0, 2048, torch.eye(2048).view(torch.uint8).flatten())
    linear(x, prepare_linear([identity], signs=signs, route=route), out)
    assert same_bits(out, rotate(x, signs))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("tokens", [0, 1, 5, 40])
def test_projections_are_linears(tokens: int, route: Route) -> None:
    signs, others = _signs(1024), -_signs(1024)
    weights = [
        prepare_linear([view(Format.Q4, (30, 1024))], route=route),
        prepare_linear([view(Format.BF16, (1, 1024))], signs=signs, route=route),
        prepare_linear([view(Format.Q6, (25, 1024)), view(Format.Q8, (7, 1024))], route=route, allow_a8=True),
        prepare_linear([view(Format.Q8, (16, 1024))], signs=others, route=route, allow_a8=True),
        prepare_linear([view(Format.T2, (3, 1024))], signs=signs, route=route),
    ]
    x = normal(tokens, 1024)
    outs = [poisoned(tokens, weight.rows) for weight in weights]
    projections(x, weights, outs)
    for weight, out in zip(weights, outs, strict=True):
        alone = poisoned(tokens, weight.rows)
        linear(x, weight, alone)
        assert same_bits(out, alone)


def test_projections_of_several_routes_are_linears() -> None:
    weights = [prepare_linear([view(Format.Q4, (30, 64))], route=route) for route in ROUTES]
    x, outs = normal(3, 64), [poisoned(3, 30) for _ in weights]
    projections(x, weights, outs)
    for weight, out in zip(weights, outs, strict=True):
        alone = poisoned(3, 30)
        linear(x, weight, alone)
        assert same_bits(out, alone)


@pytest.mark.skipif(not COMPILED_HERE, reason="no compiler")
def test_tapes_keep_what_they_read() -> None:
    """A tape multiplies what its x holds when it runs, after everything else that took part is forgotten."""
    x, plain, rotated, fused = normal(2, 1024), poisoned(2, 30), poisoned(2, 9), poisoned(2, 30)

    def launch() -> None:
        w = prepare_linear([view(Format.Q4, (30, 1024))])
        projections(x, [w, prepare_linear([view(Format.Q5, (9, 1024))], signs=_signs(1024))], [plain, rotated])
        linear(x, w, fused, plain)

    with record() as tape:
        launch()
    gc.collect()
    ballast = [torch.full((2, 1024), float("nan")) for _ in range(50)]
    x.copy_(normal(2, 1024, seed=5))
    tape.run()
    taped = [out.clone() for out in (plain, rotated, fused)]
    launch()
    assert len(ballast) == 50
    assert all(same_bits(*pair) for pair in zip(taped, (plain, rotated, fused), strict=True))


@pytest.mark.parametrize("route", COMPILED_HERE)
def test_memory_may_begin_anywhere(route: Route) -> None:
    part = view(Format.Q5, (13, 200))
    memory = torch.empty(part.data.numel() + 3, dtype=torch.uint8)
    for shift in (1, 3):
        data = memory[shift : shift + part.data.numel()]
        data.copy_(part.data)
        x, wanted, out = normal(5, 200), poisoned(5, 13), poisoned(5, 13)
        linear(x, prepare_linear([part], route=route), wanted)
        linear(x, prepare_linear([replace(part, data=data)], route=route), out)
        assert same_bits(out, wanted)


@pytest.mark.parametrize("route", ROUTES)
def test_no_rows_is_no_work(route: Route) -> None:
    linear(normal(0, 96), prepare_linear([fp32_view(48, 96, 1)], route=route), poisoned(0, 48))


class _PositionDependent:
    """Stands for oneDNN on a machine whose tiles of more than `safe` rows order the last row's additions otherwise."""

    def __init__(self, safe: int) -> None:
        self.safe = safe
        self.heights: list[int] = []

    def __call__(self, x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
        self.heights.append(len(x))
        product = (x.unsqueeze(1) * packed).sum(-1)
        if len(x) > self.safe:
            product[-1] *= 1 + 2e-7
        return product


@pytest.mark.parametrize(("safe", "kept"), [(1, (1,)), (7, (1, 4)), (16, (1, 4, 8, 16)), (99, onednn_cpu.HEIGHTS)])
def test_only_heights_with_equal_bits_are_used(
    safe: int, kept: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    multiply = _PositionDependent(safe)
    monkeypatch.setattr(onednn_cpu, "_multiply", multiply)
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", lambda dense, rows: dense)
    matrix = onednn_cpu.prepare(normal(48, 96))
    assert matrix.heights == kept
    multiply.heights.clear()
    x, out = normal(37, 96), poisoned(37, 48)
    onednn_cpu.multiply(x, matrix, out, None)
    assert set(multiply.heights) <= set(kept)
    for row in range(37):
        alone = poisoned(1, 48)
        onednn_cpu.multiply(x[row : row + 1], matrix, alone, None)
        assert same_bits(out[row : row + 1], alone)


def test_weight_describes_itself() -> None:
    weight: LinearWeight = prepare_linear([view(Format.Q4, (20, 64), 4, 9), view(Format.BF16, (3, 64))])
    assert (weight.rows, weight.columns, weight.formats) == (8, 64, (Format.Q4, Format.BF16))
    assert weight.nbytes == 5 * (64 + 4) + 3 * 128
    dense = prepare_linear([view(Format.BF16, (3, 64))], route=Route.CPU_TORCH)
    assert dense.nbytes == 3 * 64 * 4


@pytest.mark.parametrize(
    ("x", "out"),
    [
        (normal(2, 95), poisoned(2, 48)),
        (normal(2, 96), poisoned(3, 48)),
        (normal(2, 96).double(), poisoned(2, 48)),
        (normal(96, 2).t(), poisoned(2, 48)),
    ],
)
def test_wrong_tensors_are_refused_before_anything_is_written(x: torch.Tensor, out: torch.Tensor) -> None:
    before = out.clone()
    with pytest.raises(ValueError, match=r"linear: (x|out) must be"):
        linear(x, prepare_linear([fp32_view(48, 96, 1)]), out)
    assert same_bits(out, before)


def test_wrong_projections_are_refused() -> None:
    weight, x = prepare_linear([fp32_view(48, 96, 1)]), normal(2, 96)
    with pytest.raises(ValueError, match="projections: expected one out for each"):
        projections(x, [weight], [])
    with pytest.raises(ValueError, match="projections: out must be"):
        projections(x, [weight, weight], [poisoned(2, 48), poisoned(2, 47)])


def test_parts_must_agree() -> None:
    with pytest.raises(ConfigError, match="64 and 128 columns"):
        prepare_linear([view(Format.Q4, (4, 64)), view(Format.Q4, (4, 128))])
    with pytest.raises(ConfigError, match="at least one"):
        prepare_linear([])


def test_unusable_signs_are_refused() -> None:
    with pytest.raises(ConfigError, match="multiple of 1024"):
        prepare_linear([fp32_view(4, 512, 1)], signs=torch.ones(512))
    with pytest.raises(ConfigError, match=r"float32 \[1024\]"):
        prepare_linear([fp32_view(4, 1024, 1)], signs=torch.ones(512))
    with pytest.raises(ConfigError, match=r"\+1 or -1"):
        prepare_linear([fp32_view(4, 1024, 1)], signs=torch.zeros(1024))
