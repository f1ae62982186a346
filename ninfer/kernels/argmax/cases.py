"""Shapes at which argmax is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Case:
    """B rows over V ids. `mask_rows` is 0 (no mask), 1 (shared) or B; `levels` > 0 makes ties by quantising."""

    name: str
    batch: int
    vocab: int
    mask_rows: int = 0
    levels: int = 0


CASES: Mapping[str, tuple[Case, ...]] = MappingProxyType(
    {
        "argmax": (
            Case("official", 1, 248320),
            Case("official_masked", 2, 248320, mask_rows=2),
            Case("addressable", 1, 248077, mask_rows=1),
            Case("batch", 8, 1000),
            Case("ties", 8, 999, levels=3),
            Case("ties_masked", 5, 777, mask_rows=5, levels=2),
            Case("shared_mask", 3, 65, mask_rows=1),
            Case("one_word", 2, 32, mask_rows=2),
            Case("one_id", 1, 1),
        )
    }
)
