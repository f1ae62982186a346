"""Every op at official shapes against its floor: bytes over the copy bandwidth, or operations over the bf16 peak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from ops import FAMILIES, GEOMETRIES, Geometry, Setting

from gpu.budget import Budget
from gpu.facts import Facts
from gpu.timing import seconds_per_call
from ninfer.kernels.placement import Cuda

_COLD_BYTES = 320 << 20  # more than any second-level cache has
_DECODE = (1, 2, 4, 8)
_PROMPTS = (512, 2048, 8192)
_TINY = Geometry(256, 256, 2048, 4, 2, 64, 64, 1, 2, 64)


@dataclass(frozen=True, slots=True)
class Timed:
    """One op at one shape: seconds of a call, and the least that it could take."""

    geometry: str
    op: str
    shape: str
    seconds: float
    nbytes: int
    flops: int
    floor: float


def time_kernels(placement: Cuda, facts: Facts, budget: Budget, tiny: bool) -> Iterator[Timed]:
    """Both official models' ops, decoding and reading prompts; what the budget does not allow is left out."""
    for name, geometry in {"tiny": _TINY}.items() if tiny else _official():
        for family, formats in _families(geometry, tiny):
            for tokens in ((1, 16),) if tiny else (_DECODE, _PROMPTS):
                setting = Setting(geometry, tokens, formats, placement, 0 if tiny else _COLD_BYTES)
                if budget.allows(f"{name} {family} x {tokens}", 0.7):
                    yield from _time(name, family, setting, facts)


def _official() -> Sequence[tuple[str, Geometry]]:
    return tuple((name, GEOMETRIES[name]) for name in ("27b", "35b-a3b"))


def _families(geometry: Geometry, tiny: bool) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Families and the weight formats that they are timed in."""
    formats = ("q4",) if tiny or geometry.experts else ("q4", "q8", "bf16", "q6", "nvfp4", "fp8_row")
    for family in FAMILIES:
        yield family, formats if family in ("linear", "experts") else ()


def _time(name: str, family: str, setting: Setting, facts: Facts) -> Iterator[Timed]:
    with torch.device(setting.placement.place):
        for work in FAMILIES[family](setting):
            seconds = seconds_per_call(work.calls, work.launches_only)
            floor = facts.floor(work.nbytes, work.flops)
            yield Timed(name, work.op, work.shape, seconds, work.nbytes, work.flops, floor)
