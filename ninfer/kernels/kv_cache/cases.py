"""Shapes at which kv_append is checked; every case is run with every codec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Case:
    """T tokens at the given slots of a pool of P pages."""

    name: str
    pages: int
    kv_heads: int
    head_dim: int
    slots: tuple[int, ...]


CASES: Mapping[str, tuple[Case, ...]] = MappingProxyType(
    {
        "kv_append": (
            Case("dense_27b", 3, 4, 256, (63, 64, 191)),
            Case("moe_35b", 2, 2, 256, (5, 6, 7)),
            Case("one_token", 1, 1, 64, (0,)),
            Case("scattered", 5, 2, 128, (300, 1, 64, 127, 319)),
            Case("across_pages", 2, 1, 64, tuple(range(60, 70))),
        )
    }
)
