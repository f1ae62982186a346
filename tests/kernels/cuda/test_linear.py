"""linear's CUDA kernels in the emulator: oracles, one order of sums for one token and a prefill, what plans choose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from ninfer.artifact.formats import Format
from ninfer.errors import ConfigError
from ninfer.kernels import linear, projections
from ninfer.kernels.jit import DeviceFacts, record, using
from ninfer.kernels.linear import cases, cuda, oracle
from ninfer.kernels.linear.plan import CudaProblem, NarrowPlan, WidePlan, cuda_plan, segments
from ninfer.kernels.routes import Route
from ninfer.kernels.tolerances import MATMUL
from ninfer.kernels.weights import WeightView, prepare_linear
from tests.kernels.emulator import NEEDS_EMULATOR, Emulator
from tests.kernels.harness import Trial, assert_rows_independent, compare, conform, poisoned, same_bits
from tests.kernels.weight_samples import fp32_view, normal, view

pytestmark = NEEDS_EMULATOR
FORMATS = [fmt for fmt in Format if fmt is not Format.INT32]
ROWWISE = [fmt for fmt in FORMATS if fmt is not Format.NVFP4]
FEW = DeviceFacts(arch=86, multiprocessors=2, shared_bytes=99 * 1024)
MANY = DeviceFacts(arch=86, multiprocessors=64, shared_bytes=99 * 1024)
LARGE = DeviceFacts(arch=90, multiprocessors=64, shared_bytes=227 * 1024)
H200 = DeviceFacts(arch=90, multiprocessors=132, shared_bytes=227 * 1024)
TOKENS = (1, 2, 3, 7, 8, 9, 16, 33, 64, 65, 128, 129, 200)


@pytest.fixture(autouse=True)
def _one_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled once, with the code of all formats."""
    every = sum(1 << code for code in cuda._FORMATS if code != cuda._FP32)
    monkeypatch.setattr(cuda, "_formats", lambda parts: every)


@pytest.fixture
def fast() -> Iterator[None]:
    with using(Emulator(order="random", seed=5, facts=FEW)):
        yield


@pytest.fixture
def segmented() -> Iterator[None]:
    """Many multiprocessors: every segment of K has blocks of its own."""
    with using(Emulator(order="sticky", seed=3, facts=MANY)):
        yield


def _signs(columns: int) -> torch.Tensor:
    return torch.where(normal(columns, seed=9) < 0, -1.0, 1.0)


def _stored(part: WeightView) -> oracle.StoredRows:
    return oracle.StoredRows(part.format, part.shape, part.row_begin, part.row_end, part.data.numpy())


def _mixed(columns: int, rows: int = 19) -> list[WeightView]:
    """Ranges of a parent of every format that has ranges, in another order than that of their codes."""
    return [view(fmt, (rows + 4, columns), 3, rows + 3, seed) for seed, fmt in enumerate(reversed(ROWWISE))]


def _product(x: torch.Tensor, parts: Sequence[WeightView]) -> torch.Tensor:
    weight = prepare_linear(parts)
    out = poisoned(len(x), weight.rows)
    linear(x, weight, out)
    return out


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("case", cases.CASES["linear"], ids=lambda case: case.name)
def test_every_case_matches_the_oracle(case: cases.Case) -> None:
    parts = [view(p.format, (p.parent_rows, case.columns), p.begin, p.end, i) for i, p in enumerate(case.parts)]
    weight = prepare_linear(parts, signs=_signs(case.columns) if case.signs else None)
    x, out = normal(case.tokens, case.columns), poisoned(case.tokens, weight.rows)
    residual = normal(case.tokens, weight.rows, seed=1) if case.residual else None
    inputs = {"x": x, "signs": weight.signs, "residual": residual} | {f"part{i}": p.data for i, p in enumerate(parts)}
    expected = oracle.linear_bf16(
        x.numpy(),
        [_stored(part) for part in parts],
        None if weight.signs is None else weight.signs.numpy(),
        None if residual is None else residual.numpy(),
    )
    trial = Trial(
        {name: tensor for name, tensor in inputs.items() if tensor is not None},
        {"out": out},
        lambda _: linear(x, weight, out, residual),
        {"out": expected},
        {"out": MATMUL},
    )
    assert weight.route is Route.CUDA
    conform(trial, (Route.CUDA,))


@pytest.mark.parametrize("cp_async", ["late", "eager"])
@pytest.mark.parametrize(
    ("tokens", "columns", "facts"),
    [(3, 1290, LARGE), (8, 4000, LARGE), (9, 130, FEW), (11, 700, LARGE), (130, 130, FEW)],
    ids=["narrow_staged", "narrow", "wide_16", "wide_segmented", "wide_128"],
)
def test_every_access_is_legal(tokens: int, columns: int, facts: DeviceFacts, cp_async: str) -> None:
    """Every format, ragged in all directions, with each access watched."""
    parts = [*_mixed(columns), view(Format.Q4, (40, columns))]
    x = normal(tokens, columns)
    with using(Emulator("check", order="sticky", cp_async="eager" if cp_async == "eager" else "late", facts=facts)):
        out = _product(x, parts)
    compare("out", out, oracle.linear_bf16(x.numpy(), [_stored(part) for part in parts]), MATMUL)


@pytest.mark.parametrize("tokens", [1, 9])
def test_nvfp4_reads_only_what_is_its_own(tokens: int) -> None:
    part, x = view(Format.NVFP4, (128, 192)), normal(tokens, 192)
    with using(Emulator("check", facts=LARGE)):
        out = _product(x, [part])
    compare("out", out, oracle.linear_bf16(x.numpy(), [_stored(part)]), MATMUL)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("columns", [130, 1290])
def test_a_row_has_the_same_bits_from_one_token_to_a_prefill(columns: int) -> None:
    parts, x = _mixed(columns), normal(max(TOKENS), columns)
    alone = torch.cat([_product(x[i : i + 1].clone(), parts) for i in (0, 1)])
    compare("alone", alone, oracle.linear_bf16(x[:2].numpy(), [_stored(part) for part in parts]), MATMUL)
    for tokens in TOKENS:
        together = _product(x[:tokens].flip(0).contiguous(), parts)
        assert same_bits(together[-2:].flip(0).contiguous()[-min(2, tokens) :], alone[: min(2, tokens)]) or tokens == 1
        assert same_bits(together[-1:], alone[:1])


@pytest.mark.parametrize("tokens", [2, 9, 40])
def test_neither_the_device_nor_the_order_changes_bits(tokens: int) -> None:
    x, parts = normal(tokens, 1100), [*_mixed(1100), view(Format.Q4, (300, 1100))]
    outs = []
    for device in (
        Emulator(order="fifo", facts=FEW),
        Emulator(order="random", seed=11, facts=MANY),
        Emulator(order="sticky", seed=11, facts=MANY),
        Emulator(order="lifo", facts=FEW),
    ):
        with using(device):
            outs.append(_product(x, parts))
    assert all(same_bits(out, outs[0]) for out in outs[1:])


@pytest.mark.parametrize("tokens", [1, 5, 33])
def test_nvfp4_rows_have_their_own_bits(tokens: int) -> None:
    part, x = view(Format.NVFP4, (128, 1088)), normal(tokens, 1088)
    with using(Emulator(facts=FEW)):
        alone, together = _product(x[:1].clone(), [part]), _product(x, [part])
    with using(Emulator(facts=MANY)):
        assert same_bits(_product(x, [part]), together)
    assert same_bits(together[:1], alone)
    compare("out", together, oracle.linear_bf16(x.numpy(), [_stored(part)]), MATMUL)


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("tokens", [3, 12])
def test_places_ranges_and_neighbours_do_not_change_a_row(tokens: int) -> None:
    x, whole = normal(tokens, 260), _mixed(260)
    first = _product(x, whole)
    assert same_bits(_product(x, [view(Format.Q6, (1, 260)), *whole])[:, 1:].contiguous(), first)
    for index, part in enumerate(whole):
        some = _product(x, [replace(part, row_begin=part.row_begin + 2, row_end=part.row_begin + 9)])
        assert same_bits(some, first[:, 19 * index + 2 : 19 * index + 9].contiguous())


@pytest.mark.usefixtures("fast")
def test_rows_are_independent() -> None:
    weight = prepare_linear([view(Format.Q5, (21, 300)), fp32_view(5, 300, 1)])

    def run(x: torch.Tensor) -> Sequence[torch.Tensor]:
        out = poisoned(len(x), weight.rows)
        linear(x, weight, out)
        return (out,)

    assert_rows_independent(run, normal(4, 300, seed=2), counts=(1, 3, 8, 9, 17))


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("tokens", [8, 20])
def test_non_finite_rows_stay_by_themselves(tokens: int) -> None:
    parts, x = _mixed(200), normal(tokens, 200)
    alone = _product(x[3:4].clone(), parts)
    x[2], x[4] = float("nan"), float("inf")
    assert same_bits(_product(x, parts)[3:4], alone)


@pytest.mark.parametrize("facts", [FEW, MANY])
@pytest.mark.parametrize("tokens", [1, 8, 13])
def test_residual_may_be_the_output(tokens: int, facts: DeviceFacts) -> None:
    with using(Emulator(facts=facts)):
        weight = prepare_linear(_mixed(600))
        x, residual, apart = normal(tokens, 600), normal(tokens, weight.rows, seed=1), poisoned(tokens, weight.rows)
        linear(x, weight, apart, residual)
        linear(x, weight, residual, residual)
    assert same_bits(residual, apart)


@pytest.mark.usefixtures("segmented")
@pytest.mark.parametrize("tokens", [0, 1, 5, 40])
def test_projections_are_linears(tokens: int) -> None:
    signs = _signs(1024)
    weights = [
        prepare_linear([view(Format.Q4, (30, 1024))]),
        prepare_linear([view(Format.BF16, (1, 1024))], signs=signs),
        prepare_linear([view(Format.Q6, (25, 1024)), fp32_view(7, 1024, 3)], allow_a8=True),
        prepare_linear([view(Format.T2, (3, 1024))], signs=signs),
    ]
    x = normal(tokens, 1024)
    outs = [poisoned(tokens, weight.rows) for weight in weights]
    projections(x, weights, outs)
    for weight, out in zip(weights, outs, strict=True):
        alone = poisoned(tokens, weight.rows)
        linear(x, weight, alone)
        assert same_bits(out, alone)


@pytest.mark.usefixtures("fast")
def test_more_parts_than_a_launch_holds() -> None:
    x, part = normal(2, 64), view(Format.Q8, (3, 64))
    out = _product(x, [part] * (cuda.MAX_OUTPUTS + 3))
    assert same_bits(out, _product(x, [part]).repeat(1, cuda.MAX_OUTPUTS + 3))


@pytest.mark.parametrize("mode", ["fast", "check"])
def test_the_rotation_is_the_oracles(mode: str) -> None:
    """bf16 turns on its last bit."""
    x, signs, out = normal(3, 2048, spread=7.0), _signs(2048), poisoned(3, 2048)
    identity = WeightView(Format.FP32, (2048, 2048), 0, 2048, torch.eye(2048).view(torch.uint8).flatten())
    with using(Emulator("check" if mode == "check" else "fast")):
        linear(x, prepare_linear([identity], signs=signs), out) if mode == "fast" else cuda._rotated(x, signs)
        rotated = cuda._rotated(x, signs).clone()
    wanted = torch.from_numpy(oracle._rotated(x.numpy(), signs.numpy()))
    assert same_bits(rotated, wanted)
    assert mode == "check" or torch.equal(out, wanted)


@pytest.mark.usefixtures("fast")
def test_a_recording_reads_what_it_finds() -> None:
    x, out = normal(2, 1024), poisoned(2, 20)
    weight = prepare_linear([view(Format.Q4, (20, 1024))], signs=_signs(1024))
    recording = record(lambda: linear(x, weight, out))
    first = out.clone()
    x.copy_(normal(2, 1024, seed=5))
    recording.run()
    wanted = poisoned(2, 20)
    linear(x, weight, wanted)
    assert same_bits(out, wanted)
    assert not same_bits(out, first)


@pytest.mark.usefixtures("fast")
def test_misplaced_parents_are_refused() -> None:
    part = view(Format.Q5, (13, 200))
    memory = torch.empty(part.data.numel() + 4, dtype=torch.uint8)
    memory[4:].copy_(part.data)
    with pytest.raises(ConfigError, match="multiple of 16"):
        prepare_linear([replace(part, data=memory[4:])])


def test_segments_depend_on_columns_alone() -> None:
    assert [segments(columns) for columns in (1, 128, 512, 513, 2048, 4096, 5120, 17408, 40000)] == [
        1, 1, 1, 2, 4, 8, 8, 8, 10
    ]  # fmt: skip


def _problem(tokens: int, rows: int, columns: int, row_bytes: int = 64, paired: bool = False) -> CudaProblem:
    return CudaProblem(tokens, rows, columns, row_bytes, row_bytes == 64, paired, H200)


def test_plans_of_the_official_models() -> None:
    x = 2 * 5120
    assert cuda_plan(_problem(1, 5120, 17408, 80)) == NarrowPlan(1, 8, 8192, True, 8 * 512 + 2 * 17408 + 8 * 8192)
    assert cuda_plan(_problem(2, 5120, 17408, 80)) == NarrowPlan(1, 8, 8192, False, 8 * 512 + 8 * 8192)
    assert cuda_plan(_problem(1, 16480, 5120, 256)) == NarrowPlan(1, 8, 8192, True, 8 * 512 + x + 8 * 8192)
    assert cuda_plan(_problem(8, 16480, 5120, 256)) == NarrowPlan(2, 8, 8192, False, 8 * 1024 + 8 * 16384)
    assert cuda_plan(_problem(1, 34816, 5120, paired=True)) == NarrowPlan(2, 8, 8192, True, 8 * 1024 + x + 8 * 8192)
    assert cuda_plan(_problem(2, 1024, 2048, 128, paired=True)) == NarrowPlan(
        2, 4, 8192, True, 4 * 1024 + 2 * 4096 + 4 * 8192
    )
    assert cuda_plan(_problem(9, 5120, 5120)) == WidePlan(16, True, 2 * (8192 + 4096))
    assert cuda_plan(_problem(4096, 34816, 5120, paired=True)) == WidePlan(128, False, 2 * (8192 + 32768))
    assert cuda_plan(_problem(128, 14336, 5120, 80)) == WidePlan(128, True, 2 * (10240 + 32768))


@pytest.mark.parametrize("facts", [FEW, LARGE, H200])
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("row_bytes", [32, 64, 80, 96, 128, 256])
def test_plans_fit_the_device(facts: DeviceFacts, paired: bool, row_bytes: int) -> None:
    for tokens in (1, 3, 8, 9, 40, 129, 8192):
        for columns in (1, 512, 5120, 17408, 131072):
            chosen = cuda_plan(CudaProblem(tokens, 248320, columns, row_bytes, row_bytes < 80, paired, facts))
            assert chosen.shared <= facts.shared_bytes
            assert isinstance(chosen, NarrowPlan) == (tokens <= 8)
