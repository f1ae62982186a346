"""Shapes at which swiglu and gate_up_swiglu are checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Case:
    """T rows of I products; K columns of input for gate_up_swiglu."""

    name: str
    rows: int
    products: int
    columns: int = 0


CASES: Mapping[str, tuple[Case, ...]] = MappingProxyType(
    {
        "swiglu": (
            Case("dense_27b", 2, 17408),
            Case("expert_35b", 9, 512),
            Case("one", 1, 1),
            Case("ragged", 7, 259),
        ),
        "gate_up_swiglu": (
            Case("expert_35b", 3, 512, 2048),
            Case("demo", 9, 768, 256),
            Case("one", 1, 1, 1),
            Case("ragged", 17, 259, 130),
        ),
    }
)
