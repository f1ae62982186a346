"""Shapes at which paged_attention is checked; every case is run with every codec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Case:
    """Rows of `counts` query tokens that start at `starts`."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    starts: tuple[int, ...]
    counts: tuple[int, ...]


CASES: Mapping[str, tuple[Case, ...]] = MappingProxyType(
    {
        "paged_attention": (
            Case("dense_27b", 24, 4, 256, (0, 62), (3, 4)),
            Case("moe_35b", 16, 2, 256, (100,), (2,)),
            Case("first_token", 2, 1, 64, (0,), (1,)),
            Case("prefill", 4, 2, 64, (0,), (150,)),
            Case("resumed", 6, 2, 128, (63,), (70,)),
            Case("decode_batch", 4, 1, 64, (0, 63, 64, 127, 128, 300, 5, 191), (1,) * 8),
            Case("mixed", 2, 2, 64, (10, 0, 250, 64), (1, 40, 3, 64)),
            Case("wide_group", 20, 1, 64, (31,), (5,)),
            Case("no_group", 3, 3, 128, (70,), (60,)),
            Case("long", 8, 2, 256, (505, 1023, 1300), (20, 1, 3)),
        )
    }
)
