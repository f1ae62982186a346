"""Shapes at which the mixture-of-experts ops are checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Case:
    """T rows over E experts, top k; H columns and I products per expert. Router logits from `levels` values if > 0."""

    name: str
    rows: int
    experts: int
    top_k: int
    hidden: int = 0
    products: int = 0
    levels: int = 0


CASES: Mapping[str, tuple[Case, ...]] = MappingProxyType(
    {
        "moe_route": (
            Case("official_35b", 9, 256, 8),
            Case("all_experts", 3, 5, 5),
            Case("one_expert", 2, 1, 1),
            Case("ties", 7, 64, 6, levels=3),
            Case("all_equal", 2, 33, 4, levels=1),
        ),
        "moe_experts": (
            Case("official_widths", 2, 4, 2, 2048, 512),
            Case("demo", 19, 8, 2, 256, 96),
            Case("all_experts", 5, 3, 3, 130, 7),
            Case("one", 1, 1, 1, 1, 1),
        ),
        "moe_shared_add": (
            Case("official_35b", 9, 1, 1, hidden=2048),
            Case("one", 1, 1, 1, hidden=1),
            Case("ragged", 7, 1, 1, hidden=259),
        ),
    }
)
