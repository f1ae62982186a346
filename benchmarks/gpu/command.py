"""The command behind run.py: its options, its parts one after the other, its tables and figures."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ops import GEOMETRIES, Experts, Geometry

from gpu import checks, facts, kernels, model
from gpu.budget import Budget
from gpu.checks import Outcome, Sizes
from gpu.kernels import Timed
from gpu.model import Run
from ninfer.errors import CudaError
from ninfer.kernels import jit
from ninfer.kernels.placement import Cuda, choose

_PARTS = ("facts", "checks", "kernels", "models")
_TINY = Geometry(256, 384, 700, 4, 2, 64, 32, 1, 2, 32, Experts(8, 2, 64))


@contextmanager
def device(emulate: bool) -> Iterator[Cuda]:
    """The GPU, or an emulation of one.

    Raises:
        CudaError: there is no usable GPU; saying what to install.
    """
    if not emulate:
        yield _chosen()
        return
    from tests.kernels.emulator import Emulator

    with jit.using(Emulator(mode="fast")):
        yield _chosen()


def _chosen() -> Cuda:
    placement = choose("cuda")
    assert isinstance(placement, Cuda)
    return placement


def sizes(placement: Cuda, emulate: bool) -> Sequence[Sizes]:
    """What is checked: both official models, the smaller one's experts included."""
    if emulate:
        return (Sizes(_TINY, placement, 32, (1, 3, 17), 65, 130),)
    dense, moe = GEOMETRIES["27b"], GEOMETRIES["35b-a3b"]
    few = replace(moe, experts=Experts(32, 8, 512))  # of the official size, as many as a host's oracle can decode
    return (
        Sizes(dense, placement, 512, (1, 4, 8, 64, 130, 512), 130, 4096),
        Sizes(few, placement, 256, (1, 8, 130), 130, 1000),
    )


def run(options: argparse.Namespace) -> int:
    """All parts that were asked for; 1 if a kernel is wrong."""
    budget, tables = Budget(options.seconds), Tables([], [], [])
    with device(options.emulate) as placement:
        found = facts.measure(placement, options.emulate)
        print(f"{found.name}, sm_{found.arch}, {found.multiprocessors} multiprocessors, torch {found.torch}")
        copied, peak = found.bandwidth / 1e12, found.peak / 1e12
        print(f"copies {copied:.3f} TB/s, multiplies bf16 at {peak:.0f} TFLOP/s\n", flush=True)
        try:
            _fill(tables, options, placement, found, budget)
        finally:  # what was found before a failure is worth keeping
            if options.json:
                _write(options.json, {"facts": asdict(found), "emulated": options.emulate}, tables, budget)
    if budget.left_out:
        print(f"\nleft out for want of time: {'; '.join(budget.left_out)}")
    print(f"\n{budget.used:.0f} s in all")
    return int(not all(outcome.passed for outcome in tables.checks))


@dataclass(frozen=True, slots=True)
class Tables:
    """What is found, row by row."""

    checks: list[Outcome]
    kernels: list[Timed]
    models: list[Run]


def _fill(tables: Tables, options: argparse.Namespace, placement: Cuda, found: facts.Facts, budget: Budget) -> None:
    parts = options.parts.split(",")
    if "checks" in parts:
        tables.checks.extend(_checked(placement, options.emulate, budget))
    if "kernels" in parts:
        tables.kernels.extend(_timed(placement, found, budget, options.emulate))
    if "models" in parts:
        tables.models.extend(_ran(placement, found, budget, options.emulate))


def _checked(placement: Cuda, emulate: bool, budget: Budget) -> Iterator[Outcome]:
    passed = 0
    for each in sizes(placement, emulate):
        if not budget.allows(f"checks at {each.geometry.hidden}", 0.4):
            continue
        for outcome in checks.run_checks(each):
            passed += outcome.passed
            if not outcome.passed:
                print(f"WRONG: {outcome.op} {outcome.shape}: {outcome.worst:.2f} times what is allowed", flush=True)
            yield outcome
    print(f"{passed} results are within their tolerance\n", flush=True)


def _timed(placement: Cuda, found: facts.Facts, budget: Budget, emulate: bool) -> Iterator[Timed]:
    print("| geometry | op | shape | µs | of floor | GB/s | TFLOP/s |\n|---|---|---|---:|---:|---:|---:|")
    for it in kernels.time_kernels(placement, found, budget, emulate):
        rates = f"{it.nbytes / it.seconds / 1e9:.0f} | {it.flops / it.seconds / 1e12:.1f}"
        share = f"{it.seconds * 1e6:.1f} | {it.floor / it.seconds:.0%}"
        print(f"| {it.geometry} | {it.op} | {it.shape} | {share} | {rates} |", flush=True)
        yield it
    print()


def _ran(placement: Cuda, found: facts.Facts, budget: Budget, emulate: bool) -> Iterator[Run]:
    print("| model | work | graph | tokens/s | ms | of floor |\n|---|---|---|---:|---:|---:|")
    for it in model.time_models(placement, found, budget, emulate):
        graph = "yes" if it.graph else "no"
        took = f"{it.seconds * 1e3:.2f} | {it.floor / it.seconds:.0%}"
        print(f"| {it.model} | {it.work} | {graph} | {it.tokens_per_second:.1f} | {took} |", flush=True)
        yield it


def _write(path: Path, head: dict[str, Any], tables: Tables, budget: Budget) -> None:
    whole = head | asdict(tables) | {"left_out": budget.left_out, "seconds": round(budget.used)}
    path.write_text(json.dumps(whole, indent=1) + "\n")


def main(about: str) -> int:
    """Runs with the process's arguments; the exit status. `about` is said by --help."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seconds", type=float, default=420, help="no part is begun after so many; %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all figures")
    parser.add_argument("--parts", default=",".join(_PARTS), help="of %(default)s")
    parser.add_argument("--emulate", action="store_true", help="tiny shapes on the tests' emulator")
    options = parser.parse_args()
    if unknown := set(options.parts.split(",")) - set(_PARTS):
        parser.error(f"--parts: unknown: {', '.join(sorted(unknown))}; known: {', '.join(_PARTS)}")
    try:
        return run(options)
    except CudaError as error:
        print(error, file=sys.stderr)
        return 2
