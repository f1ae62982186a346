"""Every CUDA source compiles for every target, and the kernels of a decode round keep to their registers.

All modules of the catalogue are compiled for one target, those with kernels of decode rounds for one older and one
newer, and one module of each source for all. The rest is compiled by `benchmarks/kernels_report.py`, into a table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import pytest

from ninfer.errors import CudaError
from ninfer.kernels.jit import CudaSource, catalogue
from ninfer.kernels.jit.build import TARGETS, Compiled, build, compiler
from tests.kernels.cuda.probing import nvrtc_or_skip

nvrtc_or_skip()

FULL, DECODE = "90a", ("80", "120a")
Module = tuple[CudaSource, Mapping[str, int]]
_KERNEL = re.compile(r"\bNINFER_KERNEL\(\s*(\w+)")


@dataclass(frozen=True)
class Outcome:
    """One module of the catalogue for one target: compiled, or why not."""

    source: CudaSource
    macros: Mapping[str, int]
    compiled: Compiled | None
    error: str = ""

    @property
    def name(self) -> str:
        return f"{self.source.path.name} {dict(self.macros)}"


def modules(target: str) -> list[Module]:
    """What of the catalogue is compiled for this target."""
    everything, decode = catalogue.warm(), catalogue.decode_kernels()
    if target == FULL:
        return list(everything)
    one_each = {source.path: (source, macros) for source, macros in everything}
    rounds = [it for it in everything if decode & set(it[0].kernels)] if target in DECODE else []
    return rounds + [it for it in one_each.values() if it not in rounds]


@cache
def outcomes(target: str) -> tuple[Outcome, ...]:
    """Those modules, compiled in as many threads as there are processors."""

    def outcome(module: Module) -> Outcome:
        source, macros = module
        try:
            return Outcome(source, macros, build(source, macros, target, compiler()))
        except CudaError as error:
            return Outcome(source, macros, None, str(error))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return tuple(pool.map(outcome, modules(target)))


@pytest.mark.parametrize("target", TARGETS)
def test_every_source_compiles(target: str) -> None:
    assert [f"{it.name}: {it.error}" for it in outcomes(target) if it.compiled is None] == []


@pytest.mark.parametrize("target", TARGETS)
def test_decode_kernels_do_not_spill(target: str) -> None:
    decode = catalogue.decode_kernels()
    spilling = [
        f"{it.name}: {kernel} spills {need.spill_bytes} bytes"
        for it in outcomes(target)
        if it.compiled is not None
        for kernel, need in it.compiled.resources.items()
        if kernel in decode and need.spill_bytes
    ]
    assert spilling == []


def test_every_file_and_kernel_is_in_the_catalogue() -> None:
    """A source that no route declares would never be compiled, and a kernel of its file never be seen."""
    declared = {(source.path, kernel) for source, _ in catalogue.warm() for kernel in source.kernels}
    written = {(path, name) for path in catalogue.sources() for name in _KERNEL.findall(path.read_text())}
    assert written == declared


def test_decode_kernels_exist() -> None:
    assert catalogue.decode_kernels() <= {kernel for source, _ in catalogue.warm() for kernel in source.kernels}
    assert catalogue.decode_kernels()


def test_the_report_covers_every_kernel() -> None:
    for it in outcomes(FULL):
        if it.compiled is not None:
            assert set(it.compiled.resources) == set(it.source.kernels), it.name
