"""Shapes at which conv_silu is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Case:
    """Rows of `counts` tokens over C channels, on a store of S slots."""

    name: str
    channels: int
    taps: int
    slots: int
    counts: tuple[int, ...]
    sources: tuple[int, ...]
    targets: tuple[int, ...]


CASES: Mapping[str, tuple[Case, ...]] = MappingProxyType(
    {
        "conv_silu": (
            Case("dense_27b", 10240, 4, 2, (5,), (-1,), (0,)),
            Case("moe_35b", 8192, 4, 4, (1, 1, 3), (0, 1, 2), (0, 1, 3)),
            Case("fork", 24, 4, 4, (2, 4, 1), (0, 0, 0), (1, 2, 3)),
            Case("in_place", 7, 4, 3, (1, 2), (2, 0), (2, 0)),
            Case("shorter_than_taps", 5, 4, 1, (2,), (0,), (0,)),
            Case("two_taps", 33, 2, 2, (6, 1), (-1, 1), (0, 1)),
            Case("one_tap", 3, 1, 1, (4,), (0,), (0,)),
        )
    }
)
