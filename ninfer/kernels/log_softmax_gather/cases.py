"""Shapes at which log_softmax_gather and top_logprobs are checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Case:
    """T rows of V logits of magnitude `spread`, drawn from `levels` distinct values where ties are wanted."""

    name: str
    rows: int
    vocab: int
    top: int = 1
    spread: float = 4.0
    levels: int = 0


CASES: Mapping[str, tuple[Case, ...]] = MappingProxyType(
    {
        "log_softmax_gather": (
            Case("official", 2, 248320),
            Case("flat", 1, 248320, spread=1e-3),
            Case("demo", 9, 4096),
            Case("one", 1, 1),
            Case("ragged", 7, 5003, spread=30.0),
        ),
        "top_logprobs": (
            Case("official", 2, 248320, top=20),
            Case("all", 3, 17, top=17),
            Case("none", 3, 17, top=0),
            Case("ties", 5, 1000, top=11, levels=4),
            Case("all_equal", 2, 259, top=5, levels=1),
        ),
    }
)
