"""swiglu and gate_up_swiglu as CUDA kernels in the emulator: oracles; the fused product has the bits of its steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from ninfer.artifact.formats import Format
from ninfer.kernels import gate_up_swiglu, linear, swiglu
from ninfer.kernels.jit import DeviceFacts, using
from ninfer.kernels.linear import cuda as linear_cuda
from ninfer.kernels.mlp import IMPLEMENTATIONS, cases, oracle
from ninfer.kernels.routes import Route
from ninfer.kernels.tolerances import ELEMENTWISE, MATMUL_CHAIN
from ninfer.kernels.weights import WeightView, prepare_linear
from tests.kernels.emulator import NEEDS_EMULATOR, Emulator
from tests.kernels.harness import Trial, assert_rows_independent, conform, poisoned, same_bits
from tests.kernels.weight_samples import fp32_view, normal, represented, view

pytestmark = NEEDS_EMULATOR
MANY = DeviceFacts(arch=86, multiprocessors=64, shared_bytes=99 * 1024)
FEW = DeviceFacts(arch=86, multiprocessors=1, shared_bytes=99 * 1024)


@pytest.fixture(autouse=True)
def _one_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled once, with the code of all formats."""
    every = sum(1 << code for code in linear_cuda._FORMATS if code != linear_cuda._FP32)
    monkeypatch.setattr(linear_cuda, "_formats", lambda parts: every)


@pytest.fixture
def checked() -> Iterator[None]:
    with using(Emulator("check", order="sticky")):
        yield


@pytest.mark.usefixtures("checked")
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
    conform(trial, (Route.CUDA,))


@pytest.mark.parametrize("width", [1, 31, 260])
def test_swiglu_rows_have_their_own_bits(width: int) -> None:
    def run(gate_up: torch.Tensor) -> tuple[torch.Tensor]:
        out = poisoned(len(gate_up), width)
        swiglu(gate_up, out)
        return (out,)

    with using(Emulator()):
        assert_rows_independent(run, normal(9, 2 * width, spread=3.0), counts=(1, 2, 9, 33))


@pytest.mark.parametrize("case", cases.CASES["gate_up_swiglu"], ids=lambda case: case.name)
def test_gate_up_swiglu_matches_the_oracle(case: cases.Case) -> None:
    values = normal(2 * case.products, case.columns, seed=1, spread=case.columns**-0.5).bfloat16()
    stored = WeightView(
        Format.BF16, (2 * case.products, case.columns), 0, 2 * case.products, values.view(torch.uint8).flatten()
    )
    x, out = normal(case.rows, case.columns), poisoned(case.rows, case.products)
    with using(Emulator(facts=FEW)):
        weight = prepare_linear([stored])
        trial = Trial(
            {"x": x, "weight": stored.data},
            {"out": out},
            lambda _: gate_up_swiglu(x, weight, out),
            {"out": oracle.gate_up_swiglu(x.bfloat16().float().numpy(), represented(stored))},
            {"out": MATMUL_CHAIN},
        )
        conform(trial, (Route.CUDA,))


PARTS = {
    "q4": [view(Format.Q4, (90, 300))],
    "fp8_ranges": [view(Format.FP8_ROW, (40, 300), 3, 30), view(Format.FP8_ROW, (40, 300), 2, 29, seed=1)],
    "parts_cut_the_halves": [view(Format.Q6, (60, 300)), view(Format.Q6, (40, 300), 3, 33, seed=1)],
    "formats_differ": [view(Format.Q4, (118, 300)), view(Format.Q6, (30, 300), 3, 13)],
    "nvfp4": [view(Format.NVFP4, (128, 320)), view(Format.NVFP4, (128, 320), seed=1)],
    "nvfp4_within": [view(Format.NVFP4, (256, 320))],
    "nvfp4_cannot": [view(Format.NVFP4, (128, 320))],
    "fp32": [fp32_view(62, 300, seed=1)],
}
FUSED = {"q4", "fp8_ranges", "parts_cut_the_halves", "nvfp4", "nvfp4_within"}


@pytest.mark.parametrize("facts", [FEW, MANY], ids=["whole", "segmented"])
@pytest.mark.parametrize("tokens", [1, 5, 11])
@pytest.mark.parametrize("name", PARTS)
def test_gate_up_swiglu_is_linear_then_swiglu(name: str, tokens: int, facts: DeviceFacts) -> None:
    parts, x = PARTS[name], normal(tokens, PARTS[name][0].columns)
    with using(Emulator(order="random", seed=2, facts=facts)):
        weight = prepare_linear(parts)
        assert isinstance(weight.matrix, linear_cuda.DeviceMatrix)
        assert (weight.matrix.pairs is not None) == (name in FUSED)
        products = weight.rows // 2
        fused, between, apart = poisoned(tokens, products), poisoned(tokens, 2 * products), poisoned(tokens, products)
        gate_up_swiglu(x, weight, fused)
        linear(x, weight, between)
        swiglu(between, apart)
    assert same_bits(fused, apart)


@pytest.mark.parametrize("tokens", [3, 9])
def test_every_access_is_legal(tokens: int) -> None:
    parts: Sequence[WeightView] = [view(Format.Q5, (46, 300)), view(Format.Q5, (30, 300), 5, 13)]
    outs = []
    for facts in (DeviceFacts(90, 1, 227 * 1024), DeviceFacts(90, 64, 227 * 1024)):
        with using(Emulator("check", cp_async="eager", order="sticky", facts=facts)):
            outs.append(poisoned(tokens, 27))
            gate_up_swiglu(normal(tokens, 300), prepare_linear(parts), outs[-1])
    assert same_bits(*outs)
