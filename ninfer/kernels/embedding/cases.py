"""Tables and row counts at which embedding is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ninfer.artifact.formats import Format


@dataclass(frozen=True, slots=True)
class Case:
    """T lookups in rows [begin, end) of a parent of `parent_rows` rows of `columns`."""

    name: str
    tokens: int
    format: Format
    columns: int
    parent_rows: int
    begin: int
    end: int


_FORMATS = tuple(fmt for fmt in Format if fmt is not Format.INT32)

CASES: Mapping[str, tuple[Case, ...]] = MappingProxyType(
    {
        "embedding": (
            *(Case(f"{fmt.value}_whole", 40, fmt, 256, 256, 0, 256) for fmt in _FORMATS),
            *(Case(f"{fmt.value}_range_ragged", 7, fmt, 130, 37, 5, 31) for fmt in _FORMATS if fmt is not Format.NVFP4),
            Case("hidden_27b", 3, Format.Q6, 5120, 300, 0, 300),
            Case("hidden_35b", 1, Format.Q8, 2048, 300, 0, 300),
            Case("one_element", 1, Format.FP32, 1, 1, 0, 1),
        )
    }
)
