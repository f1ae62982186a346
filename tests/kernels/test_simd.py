"""The vectors of compiled kernels, in every body that runs here, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ninfer.kernels.native import bodies
from ninfer.kernels.routes import Route
from tests.kernels.native_probe import SOURCE, lanes, vectors

BODIES = (*bodies(SOURCE), Route.CPU_AVX512_PLAIN) if bodies(SOURCE) else ()
F32 = NDArray[np.float32]
pytestmark = pytest.mark.skipif(not BODIES, reason="no C++ compiler here")
every_body = pytest.mark.parametrize("body", BODIES, ids=lambda body: body.value)
SPECIAL = np.array(
    (
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-45,
        1.1754942e-38,
        3.4e38,
        -3.4e38,
        1.0,
        -1.0,
        0.5,
        88,
        88.7,
        -87.3,
    ),
    np.float32,
)


def ulps(actual: F32, exact: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distance in units in the last place of fp32 at the exact value; subnormals count in the smallest unit."""
    unit = np.spacing(np.maximum(np.abs(exact), np.finfo(np.float32).tiny).astype(np.float32)).astype(np.float64)
    distance: NDArray[np.float64] = np.abs(actual.astype(np.float64) - exact) / unit
    return distance


def same(left: NDArray[np.generic], right: NDArray[np.generic]) -> bool:
    """Bits, but any NaN equals any other."""
    number = ~(np.isnan(left) & np.isnan(right))
    return bool((left.view(np.uint32)[number] == right.view(np.uint32)[number]).all())


def normal(count: int, seed: int = 0, spread: float = 1.0) -> F32:
    return (np.random.default_rng(seed).standard_normal(count) * spread).astype(np.float32)


@every_body
def test_exp_over_its_whole_range(body: Route) -> None:
    x = np.concatenate([np.linspace(-110, 95, 1 << 20), normal(1 << 14, spread=1e-3)]).astype(np.float32)
    got = vectors(body, "vexp", x)
    with np.errstate(over="ignore"):
        wanted = np.exp(x.astype(np.float64))
    finite = wanted < 3.4028235e38
    assert ulps(got[finite], wanted[finite]).max() <= 2
    assert (got[wanted > 3.4028236e38] == np.inf).all()
    assert (got[x < -104] == 0).all()


@every_body
def test_exp_of_special_values(body: Route) -> None:
    got = vectors(body, "vexp", SPECIAL)
    with np.errstate(all="ignore"):
        wanted = np.exp(SPECIAL.astype(np.float64))
    assert (got[:4] == [1, 1, np.inf, 0]).all()
    assert np.isnan(got[4])
    assert (got[5:8] == 1).all()
    assert ulps(got[10:], wanted[10:]).max() <= 2


@every_body
@pytest.mark.parametrize("name", ["vsilu", "vsigmoid"])
def test_gates(body: Route, name: str) -> None:
    x = np.concatenate([np.linspace(-87, 87, 1 << 16), normal(1 << 12)]).astype(np.float32)
    wide = x.astype(np.float64)
    wanted = (wide if name == "vsilu" else 1.0) / (1 + np.exp(-wide))
    got = vectors(body, name, x)
    assert (np.abs(got - wanted) <= 4e-7 * np.abs(wanted) + 1e-37).all()
    edges = vectors(body, name, np.resize(np.float32([-1e4, 1e4, np.nan, 0]), 16))[:4]
    assert np.isfinite(edges[:2]).all()
    assert np.isnan(edges[2])
    assert edges[3] == (0 if name == "vsilu" else 0.5)


@every_body
@pytest.mark.parametrize("name", ["from_half", "from_half_word"])
def test_every_half(body: Route, name: str) -> None:
    words = np.arange(65536, dtype=np.uint16)
    assert same(vectors(body, name, words), words.view(np.float16).astype(np.float32))


@every_body
@pytest.mark.parametrize("name", ["from_bf16", "from_bf16_word"])
def test_every_bf16(body: Route, name: str) -> None:
    words = np.arange(65536, dtype=np.uint16)
    wanted = (words.astype(np.uint32) << 16).view(np.float32)
    assert same(vectors(body, name, words), wanted)


@every_body
def test_every_byte(body: Route) -> None:
    signed = np.arange(-128, 128).astype(np.int8)
    assert np.array_equal(vectors(body, "from_int8", signed), signed.astype(np.float32))


@every_body
def test_ties_go_to_the_even_integer(body: Route) -> None:
    halves = np.arange(-4096, 4096, dtype=np.float32) / 2
    values = np.concatenate([halves, normal(4096, spread=1e3), np.float32([4194303, -4194303, 0.49999997, -0.0] * 4)])
    got = vectors(body, "round_even", values, dtype=np.int32)
    assert np.array_equal(got, np.rint(values).astype(np.int32))


@every_body
def test_truncation_and_back(body: Route) -> None:
    values = np.concatenate([normal(1024, spread=1e4), np.float32([0.99, -0.99, 8388607, -8388608] * 4)])
    whole = vectors(body, "truncate", values, dtype=np.int32)
    assert np.array_equal(whole, np.trunc(values).astype(np.int32))
    assert np.array_equal(vectors(body, "to_f32", whole), np.trunc(values))


def halved(values: F32, pick: np.ufunc) -> F32:
    """The tree of `sum` and `greatest`: of values [count, lanes], the upper half onto the lower, until one is left."""
    while values.shape[1] > 1:
        width = values.shape[1] // 2
        values = pick(values[:, :width], values[:, width:])
    return values[:, 0]


@every_body
def test_sums_are_added_in_one_tree(body: Route) -> None:
    values = normal(16 * 500, spread=10.0)
    rows = values.reshape(-1, lanes(body))
    assert same(vectors(body, "sum", values, per_vector=True), halved(rows, np.add))
    assert np.array_equal(vectors(body, "greatest", values, per_vector=True), rows.max(1))
    whole = np.random.default_rng(1).integers(-(2**26), 2**26, 16 * 500, dtype=np.int32)
    got = vectors(body, "sum_integers", whole, dtype=np.int32, per_vector=True)
    assert np.array_equal(got, whole.reshape(-1, lanes(body)).sum(1))


@every_body
def test_fused_products(body: Route) -> None:
    a, b, c = (normal(4096, seed=seed) for seed in range(3))
    got = vectors(body, "fma", a, b, c)
    apart = a * b + c
    once = (a.astype(np.longdouble) * b + c).astype(np.float32)
    assert same(got, once) or same(got, apart)


@every_body
def test_order_and_size(body: Route) -> None:
    a, b = normal(1024), normal(1024, seed=1)
    assert np.array_equal(vectors(body, "vmax", a, b), np.maximum(a, b))
    assert np.array_equal(vectors(body, "vmin", a, b), np.minimum(a, b))
    assert same(vectors(body, "vabs", SPECIAL), np.abs(SPECIAL))


@every_body
def test_heads_are_filled_with_zeros(body: Route) -> None:
    width = lanes(body)
    rows = normal(width * (width + 1)).reshape(width + 1, width)
    wanted = np.where(np.arange(width) < np.arange(width + 1)[:, None], rows, 0)
    assert np.array_equal(vectors(body, "load_head", rows).reshape(rows.shape), wanted)
    assert np.array_equal(vectors(body, "store_head", rows).reshape(rows.shape), wanted)


@every_body
def test_one_value_in_every_lane(body: Route) -> None:
    width = lanes(body)
    first = np.resize(np.float32([1.5, -0.0, np.inf, np.nan, 1e-45]), 5 * width).reshape(5, width).copy()
    first[:, 0] = [1.5, -0.0, np.inf, np.nan, 1e-45]
    assert same(vectors(body, "splat", first), np.repeat(first[:, 0], width))
    whole = np.arange(-20, -20 + 3 * width, dtype=np.int32)
    assert np.array_equal(vectors(body, "splati", whole, dtype=np.int32), np.repeat(whole[::width], width))
