"""Shapes at which gated_sigmoid is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Case:
    """T rows of N columns; gates of magnitude `spread`."""

    name: str
    rows: int
    columns: int
    spread: float = 2.0


CASES: Mapping[str, tuple[Case, ...]] = MappingProxyType(
    {
        "gated_sigmoid": (
            Case("dense_27b", 3, 6144),
            Case("moe_35b", 9, 4096),
            Case("one", 1, 1),
            Case("ragged", 7, 259),
            Case("saturated", 4, 67, spread=60.0),
        )
    }
)
