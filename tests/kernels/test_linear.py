"""linear: every route at every case against the oracle; bits of a row alone, in tiles, in batches and by threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.artifact.formats import Format
from ninfer.errors import ConfigError
from ninfer.kernels import linear
from ninfer.kernels.linear import IMPLEMENTATIONS, cases, compiled_cpu, onednn_cpu, oracle
from ninfer.kernels.routes import Route
from ninfer.kernels.tolerances import MATMUL
from ninfer.kernels.weights import LinearWeight, WeightView, prepare_linear
from tests.kernels.harness import Trial, assert_rows_independent, conform, poisoned, routes_here, same_bits
from tests.kernels.weight_samples import fp32_view, normal, view

ROUTES = routes_here(IMPLEMENTATIONS["linear"], compiled_cpu.A16_SOURCE)
SHAPES = [(64, 1), (64, 2), (65, 5), (127, 17), (256, 768), (1, 3), (1000, 257), (1024, 33), (3584, 31), (5120, 9)]


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


def test_a_rotated_row_has_its_own_bits() -> None:
    weight = prepare_linear([fp32_view(17, 2048, 1)], signs=_signs(2048))
    assert_rows_independent(_product(weight), normal(5, 2048), counts=(1, 2, 9, 40))


@pytest.mark.parametrize("fmt", [fmt for fmt in Format if fmt not in (Format.INT32, Format.NVFP4)])
def test_a_row_range_is_the_same_rows_of_the_whole(fmt: Format) -> None:
    x, whole, part = normal(3, 130), poisoned(3, 29), poisoned(3, 12)
    linear(x, prepare_linear([view(fmt, (29, 130))]), whole)
    linear(x, prepare_linear([view(fmt, (29, 130), 11, 23)]), part)
    assert torch.allclose(part, whole[:, 11:23], rtol=1e-5, atol=1e-5)


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
