"""Shapes at which gdn_gates is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Case:
    """T tokens, Nv value heads, inputs drawn with this standard deviation."""

    name: str
    tokens: int
    heads: int
    spread: float = 2.0


CASES: Mapping[str, tuple[Case, ...]] = MappingProxyType(
    {
        "gdn_gates": (
            Case("dense_27b", 5, 48),
            Case("moe_35b", 8, 32),
            Case("one", 1, 1),
            Case("ragged", 7, 3),
            Case("extreme", 9, 5, spread=25.0),
        )
    }
)
