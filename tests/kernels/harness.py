"""Conformance harness: every route of every case of an op against the op's fp64 oracle.

A test file turns a case of `ninfer.kernels.<op>.cases` into a `Trial`; `conform` then runs each route with
poisoned outputs and compares. `assert_rows_independent` checks the promise that bits of a row do not depend
on the other rows of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ninfer.kernels.native import bodies
from ninfer.kernels.routes import Route
from ninfer.kernels.tolerances import EXACT, Tolerance

COMPILED = (Route.CPU_AVX512, Route.CPU_AVX2, Route.CPU_PORTABLE, Route.CPU_AVX512_PLAIN)
POISON_FLOAT = float("nan")
POISON_INTEGER = -0x5A5A5A5B
ROW_COUNTS = (1, 2, 3, 7, 8, 9, 31, 33, 64, 129, 300)


@dataclass(frozen=True, slots=True)
class Trial:
    """One op at one case.

    Attributes:
        inputs: tensors that must come out of the call unchanged, by name.
        outputs: tensors the call must write completely; poisoned before each route runs.
        run: calls one route; reads `inputs`, writes `outputs`.
        expected: the oracle's arrays, one per output, fp64 (or integers for exact outputs).
        tolerances: one per output.
    """

    inputs: Mapping[str, torch.Tensor]
    outputs: Mapping[str, torch.Tensor]
    run: Callable[[Route], None]
    expected: Mapping[str, np.ndarray]
    tolerances: Mapping[str, Tolerance]


def routes_here(implementations: Mapping[Route, Callable[..., None]], source: Path) -> tuple[Route, ...]:
    """The CPU routes of an op that this machine can run, the plain AVX-512 body included; `source` is its C++ file."""
    able = {*bodies(source), Route.CPU_AVX512_PLAIN} if bodies(source) else set()
    on_cpu = (route for route in implementations if route is not Route.CUDA)
    return tuple(route for route in on_cpu if route not in COMPILED or route in able)


def conform(trial: Trial, routes: Sequence[Route]) -> None:
    """Run every route and compare; fails on the first difference, unwritten output or touched input."""
    assert routes, "a case must have at least one route"
    before = {name: tensor.clone() for name, tensor in trial.inputs.items()}
    for route in routes:
        for tensor in trial.outputs.values():
            poison(tensor)
        trial.run(route)
        for name, tensor in trial.inputs.items():
            assert same_bits(tensor, before[name]), f"{route.value} modified its input {name}"
        for name, tensor in trial.outputs.items():
            compare(f"{route.value} {name}", tensor, trial.expected[name], trial.tolerances[name])


def compare(what: str, actual: torch.Tensor, expected: np.ndarray, tolerance: Tolerance) -> None:
    """Assert that `actual` meets the tolerance element by element; NaN is fatal on either side."""
    assert tuple(actual.shape) == expected.shape, f"{what}: shape {tuple(actual.shape)} != {expected.shape}"
    got = actual.detach().cpu()
    if not got.is_floating_point():
        assert np.array_equal(got.numpy(), expected), f"{what}: integers differ"
        return
    values, wanted = got.double().numpy(), np.asarray(expected, dtype=np.float64)
    assert not np.isnan(wanted).any(), f"{what}: the oracle itself gives NaN"
    assert not np.isnan(values).any(), f"{what}: {int(np.isnan(values).sum())} elements are NaN or unwritten"
    if tolerance == EXACT:
        assert np.array_equal(values, wanted), f"{what}: must be exact"
        return
    finite = np.isfinite(wanted)
    assert np.array_equal(values[~finite], wanted[~finite]), f"{what}: infinities differ"
    magnitude = np.abs(wanted[finite])
    bound = tolerance.absolute + tolerance.relative * magnitude
    bound = bound + tolerance.of_peak * magnitude.max(initial=0.0)
    excess = np.abs(values[finite] - wanted[finite]) - bound
    worst = float(excess.max(initial=0.0))
    assert worst <= 0, f"{what}: {int((excess > 0).sum())} elements miss the tolerance, worst by {worst:.3e}"


def poison(tensor: torch.Tensor) -> None:
    """Fill an output with values that no op may leave behind."""
    tensor.fill_(POISON_FLOAT if tensor.is_floating_point() else POISON_INTEGER)


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A fresh poisoned tensor."""
    tensor = torch.empty(shape, dtype=dtype)
    poison(tensor)
    return tensor


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equality of every bit: NaN equals the same NaN, +0 differs from -0."""
    if left.dtype is not right.dtype or left.shape != right.shape:
        return False
    return torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8))


def assert_rows_independent(
    op: Callable[..., Sequence[torch.Tensor]], *rows: torch.Tensor, counts: Sequence[int] = ROW_COUNTS
) -> None:
    """Assert that each output row of `op` has the same bits alone, among any number of rows, and anywhere.

    Args:
        op: takes the per-row inputs and returns freshly allocated per-row outputs.
        rows: inputs whose dimension 0 is the row; at least max(counts) rows are taken by repetition.
        counts: numbers of rows to try. Each is run in order, reversed, and as a shuffle with repeats.
    """
    population = rows[0].shape[0]
    singles = [op(*(x[i : i + 1].clone() for x in rows)) for i in range(population)]
    alone = [torch.cat(outputs) for outputs in zip(*singles, strict=True)]
    generator = torch.Generator().manual_seed(population)
    for count in counts:
        ordered = torch.arange(count) % population
        shuffled = torch.randint(population, (count,), generator=generator)
        for picks in (ordered, ordered.flip(0), shuffled):
            together = op(*(x[picks].contiguous() for x in rows))
            for got, wanted in zip(together, alone, strict=True):
                if not same_bits(got, wanted[picks]):
                    raise AssertionError(_first_difference(got, wanted, picks))


def _first_difference(got: torch.Tensor, alone: torch.Tensor, picks: torch.Tensor) -> str:
    for position, pick in enumerate(picks.tolist()):
        if not same_bits(got[position : position + 1], alone[pick : pick + 1]):
            return f"row {pick} at position {position} of {len(picks)} differs from the row alone"
    raise AssertionError("no row differs")
