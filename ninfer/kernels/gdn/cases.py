"""Shapes at which gdn is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Case:
    """Rows of `counts` tokens, Nk key and Nv value heads of dk and dv, on a store of S slots."""

    name: str
    key_heads: int
    value_heads: int
    dk: int
    dv: int
    slots: int
    counts: tuple[int, ...]
    sources: tuple[int, ...]
    targets: tuple[int, ...]


_CASES = (
    Case("dense_27b", 16, 48, 128, 128, 1, (3,), (-1,), (0,)),
    Case("moe_35b", 16, 32, 128, 128, 3, (1, 2), (0, 2), (0, 1)),
    Case("long", 2, 2, 32, 32, 1, (300,), (0,), (0,)),
    Case("fork", 1, 2, 16, 24, 4, (2, 5, 1), (0, 0, 0), (1, 2, 3)),
    Case("in_place", 2, 4, 16, 16, 3, (1, 4), (2, 0), (2, 0)),
    Case("one_head", 1, 1, 8, 8, 1, (6,), (-1,), (0,)),
    Case("ragged", 1, 3, 12, 20, 4, (1, 7, 3), (3, -1, 1), (0, 2, 1)),
)

CASES: Mapping[str, tuple[Case, ...]] = MappingProxyType({"gdn": _CASES, "gdn_fold": _CASES})
