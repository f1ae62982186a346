"""Shapes at which gated_rmsnorm is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Case:
    """T tokens of Nv heads of dv."""

    name: str
    tokens: int
    heads: int
    width: int
    spread: float = 1.0


CASES: Mapping[str, tuple[Case, ...]] = MappingProxyType(
    {
        "gated_rmsnorm": (
            Case("dense_27b", 3, 48, 128),
            Case("moe_35b", 5, 32, 128),
            Case("one", 1, 1, 16),
            Case("ragged", 7, 3, 20),
            Case("tiny_values", 2, 2, 64, spread=1e-4),
        )
    }
)
