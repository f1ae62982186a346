"""Shapes at which rmsnorm is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Case:
    """T rows of H columns of magnitude `spread`."""

    name: str
    rows: int
    columns: int
    offset: bool = True
    spread: float = 1.0


CASES: Mapping[str, tuple[Case, ...]] = MappingProxyType(
    {
        "rmsnorm": (
            Case("dense_27b", 3, 5120),
            Case("moe_35b", 9, 2048),
            Case("small_0_8b", 1, 1024, offset=False),
            Case("one", 1, 1),
            Case("ragged", 7, 259, offset=False),
            Case("wider_than_one_sum", 2, 9001),
            Case("tiny_values", 4, 64, spread=1e-5),
            Case("large_values", 4, 64, spread=1e6),
        )
    }
)
