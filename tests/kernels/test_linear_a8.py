"""linear_a8: 8-bit activations times stored weights, against codes recomputed by NumPy and the codec's weights."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ninfer.artifact import codec
from ninfer.artifact.formats import Format
from ninfer.artifact.layouts import geometry
from ninfer.kernels.linear.compiled_cpu import A8_SOURCE, LinearArgs, Output, StoredMatrix, prepare
from ninfer.kernels.native import bodies
from ninfer.kernels.routes import Route
from ninfer.kernels.tolerances import MATMUL, MATMUL_CHAIN
from ninfer.kernels.weights import WeightView
from tests.kernels.harness import assert_rows_independent, compare, poisoned, same_bits
from tests.kernels.weight_samples import normal, represented, view

F64 = NDArray[np.float64]

FORMATS = (Format.Q4, Format.Q5, Format.Q6, Format.Q8, Format.T2)
BODIES = (*bodies(A8_SOURCE), Route.CPU_AVX512_PLAIN) if bodies(A8_SOURCE) else ()
SHAPES = ((1, 1), (13, 130), (18, 512), (35, 1000), (3, 2048), (7, 5121))
TOKENS = (1, 2, 3, 7, 8, 9, 13, 33, 130)
EXTREMES = {
    Format.Q4: (-8, 7),
    Format.Q5: (-16, 15),
    Format.Q6: (-32, 31),
    Format.Q8: (-127, 127),
    Format.T2: (-1, 1),
}
STORE, RESIDUAL, SWIGLU = range(3)


@dataclass(frozen=True, slots=True)
class Product:
    """One output of a launch: rows of stored parents, and what becomes of the products."""

    parts: tuple[WeightView, ...]
    epilogue: int = STORE
    residual: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def columns(self) -> int:
        return self.rows // 2 if self.epilogue == SWIGLU else self.rows


def launch(body: Route, x: torch.Tensor, *products: Product) -> list[torch.Tensor]:
    """The outputs, [T, columns] each."""
    matrices = [prepare(product.parts, a8=True) for product in products]
    outs = [poisoned(len(x), product.columns) for product in products]
    outputs = (Output * len(products))(*map(_output, products, matrices, outs))
    args = LinearArgs(x.data_ptr(), ctypes.addressof(outputs), len(products), *x.shape)
    matrices[0].kernel.launch(body, args, x, outputs, matrices, outs)
    return outs


def _output(product: Product, matrix: StoredMatrix, out: torch.Tensor) -> Output:
    residual = None if product.residual is None else product.residual.data_ptr()
    return Output(matrix.address, matrix.count, product.rows, out.data_ptr(), residual, product.epilogue)


def quantised(x: torch.Tensor, group: int) -> F64:
    """The values that the codes and scales of a8.hpp stand for, [T, K]."""
    tokens, columns = x.shape
    padded = np.pad(x.numpy(), ((0, 0), (0, -columns % group))).reshape(tokens, -1, group)
    amax = np.abs(padded).max(axis=2, keepdims=True)
    zero = amax < np.float32(2.0**-119)
    inverse = np.float32(127) / np.where(zero, np.float32(1), amax)
    codes = np.where(zero, 0, np.rint(padded * inverse).astype(np.int8)).astype(np.float64)
    assert np.abs(codes).max() <= 127
    scales = np.where(zero, 0, amax / np.float32(127)).astype(np.float64)
    return (codes * scales).reshape(tokens, -1)[:, :columns]


def oracle(x: torch.Tensor, product: Product) -> F64:
    """The output of one product in fp64."""
    y = np.concatenate([quantised(x, part.format.spec.group) @ represented(part).T for part in product.parts], axis=1)
    if product.epilogue == SWIGLU:
        gate, up = np.split(y, 2, axis=1)
        return gate / (1 + np.exp(-gate)) * up
    return y if product.residual is None else y + product.residual.numpy()


def activations(tokens: int, columns: int) -> torch.Tensor:
    """Normal values whose spread varies by column, with groups of zeros and of values too small to matter."""
    x = normal(tokens, columns, seed=columns) * (
        1 + 9 * torch.rand(columns, generator=torch.Generator().manual_seed(3))
    )
    x[tokens // 2, : columns // 2] = 0
    x[0, columns // 2 :] *= 1e-38
    return x


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.value)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.value)
def test_products_match_the_oracle(fmt: Format, body: Route) -> None:
    for rows, columns in SHAPES:
        product = Product((view(fmt, (rows, columns), seed=rows),))
        x = activations(max(TOKENS), columns)
        expected = oracle(x, product)
        for tokens in TOKENS:
            (out,) = launch(body, x[:tokens], product)
            compare(f"{rows} x {columns}, {tokens} tokens", out, expected[:tokens], MATMUL)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.value)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.value)
def test_extreme_codes_do_not_overflow(fmt: Format, body: Route) -> None:
    low, high = EXTREMES[fmt]
    shape = (4, 1024)
    codes = np.full(shape, low, dtype=np.int8)
    codes[1], codes[2, ::2] = high, high
    codes[3, ::3] = 0
    scales = np.full((4, 1024 // fmt.spec.group), 0x3C00, dtype=np.uint16)
    data = codec.assemble(geometry(fmt, shape), codec.pack_grouped(codes, scales, fmt))
    product = Product((WeightView(fmt, shape, 0, 4, torch.from_numpy(data)),))
    x = torch.ones(20, 1024)
    x[1] = -1
    x[2, ::2], x[3, 1::2] = -1, -1
    for tokens in (1, 4, 8, 20):
        compare(f"{tokens} tokens", launch(body, x[:tokens], product)[0], oracle(x[:tokens], product), MATMUL)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.value)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.value)
def test_a_token_has_its_own_bits(fmt: Format, body: Route) -> None:
    _assert_tokens_independent(body, fmt, (35, 1000), TOKENS)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.value)
def test_a_token_has_its_own_bits_with_two_threads(fmt: Format) -> None:
    for body in BODIES[:1]:
        _assert_tokens_independent(body, fmt, (350, 1100), (1, 2, 8, 9, 33, 130))


def _assert_tokens_independent(body: Route, fmt: Format, shape: tuple[int, int], counts: Sequence[int]) -> None:
    weights = view(fmt, shape, seed=1)
    assert_rows_independent(lambda x: launch(body, x, Product((weights,))), activations(9, shape[1]), counts=counts)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.value)
def test_bits_do_not_depend_on_threads_or_the_place_of_rows(fmt: Format) -> None:
    weights = view(fmt, (350, 1100), seed=1)
    for body in BODIES[:1]:
        for tokens in (1, 8, 40):
            x = activations(tokens, 1100)
            (whole,) = launch(body, x, Product((weights,)))
            for threads in _thread_counts():
                assert same_bits(launch(body, x, Product((weights,)))[0], whole), threads
            rows = [Product((view(fmt, (350, 1100), begin, begin + 7, seed=1),)) for begin in (3, 100, 343)]
            for product, out in zip(rows, launch(body, x, *rows), strict=True):
                begin = product.parts[0].row_begin
                assert same_bits(out, whole[:, begin : begin + 7].contiguous())


def _thread_counts() -> Iterator[int]:
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            yield threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.value)
@pytest.mark.parametrize("tokens", [1, 8, 33])
def test_several_outputs_of_several_formats_and_every_epilogue(tokens: int, body: Route) -> None:
    mixed = (
        view(Format.Q4, (40, 330), 8, 31),
        view(Format.T2, (3, 330), 1, 2),
        view(Format.Q8, (17, 330)),
        view(Format.Q6, (9, 330), 1, 6),
        view(Format.Q5, (20, 330)),
    )
    x = activations(tokens, 330) * 0.02
    products = (
        Product(mixed),
        Product(mixed[:3], RESIDUAL, normal(tokens, 41, seed=9)),
        Product(mixed, SWIGLU),
        Product((view(Format.Q8, (2, 330)),), SWIGLU),
    )
    for index, (product, out) in enumerate(zip(products, launch(body, x, *products), strict=True)):
        tolerance = MATMUL_CHAIN if product.epilogue == SWIGLU else MATMUL
        compare(f"output {index}", out, oracle(x, product), tolerance)
        assert same_bits(out, launch(body, x, product)[0])


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.value)
def test_the_residual_may_be_the_output(body: Route) -> None:
    x, added = activations(3, 130), normal(3, 13)
    weights = (view(Format.Q4, (13, 130)),)
    (apart,) = launch(body, x, Product(weights, RESIDUAL, added))
    matrix, out = prepare(weights, a8=True), added.clone()
    output = Output(matrix.address, matrix.count, 13, out.data_ptr(), out.data_ptr(), RESIDUAL)
    matrix.kernel.launch(body, LinearArgs(x.data_ptr(), ctypes.addressof(output), 1, 3, 130), x, output, matrix, out)
    assert same_bits(out, apart)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.value)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.value)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_non_finite_token_affects_only_itself(value: float, fmt: Format, body: Route) -> None:
    product = Product((view(fmt, (35, 1000), seed=1),))
    for tokens in (1, 5, 12):
        x = activations(tokens, 1000)
        (before,) = launch(body, x, product)
        x[tokens // 2, 777] = value
        (after,) = launch(body, x, product)
        assert not after[tokens // 2].isfinite().any()
        others = torch.arange(tokens) != tokens // 2
        assert same_bits(after[others], before[others])


@pytest.mark.parametrize("body", BODIES[:1], ids=lambda body: body.value)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.value)
def test_quantised_activations_cost_less_than_one_per_cent(fmt: Format, body: Route) -> None:
    weights = view(fmt, (64, 2048), seed=1)
    x = normal(16, 2048)
    exact = x.double().numpy() @ represented(weights).T
    (out,) = launch(body, x, Product((weights,)))
    error = np.sqrt(np.mean((out.double().numpy() - exact) ** 2) / np.mean(exact**2))
    assert error < 0.01
