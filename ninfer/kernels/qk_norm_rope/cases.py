"""Shapes at which qk_norm_rope is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Case:
    """T tokens whose positions lie within [first, first + span); `sections` sum to rotary_dim / 2."""

    name: str
    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    sections: tuple[int, int, int]
    first: int = 0
    span: int = 1
    theta: float = 1e7


CASES: Mapping[str, tuple[Case, ...]] = MappingProxyType(
    {
        "qk_norm_rope": (
            Case("dense_27b", 5, 24, 4, 256, 64, (11, 11, 10), 100, 50),
            Case("moe_35b", 3, 16, 2, 256, 64, (11, 11, 10), 262100, 44),
            Case("demo", 4, 2, 1, 64, 16, (3, 3, 2), 0, 9),
            Case("whole_head", 3, 2, 2, 64, 64, (12, 10, 10), 5000, 20, 1e4),
            Case("one_axis", 2, 1, 1, 128, 32, (16, 0, 0), 77, 3),
            Case("one", 1, 1, 1, 64, 2, (1, 0, 0)),
        )
    }
)
