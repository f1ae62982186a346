"""Parameter sets and shapes at which sample is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Case:
    """One row over V ids. `history` makes prompt and output tokens; `masked` allows that many ids (0: all)."""

    name: str
    vocab: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    history: int = 0
    masked: int = 0
    levels: int = 0


_ALL = Case("all_at_once", 500, 0.8, 40, 0.9, 0.05, 0.5, 0.25, 1.2, history=30, masked=300)

CASES: Mapping[str, tuple[Case, ...]] = MappingProxyType(
    {
        "sample": (
            Case("official", 248320, 0.7, 20, 0.8),
            Case("official_plain", 248320),
            Case("official_nucleus", 248320, top_p=0.95),
            Case("official_presence", 248320, 0.7, 20, 0.8, presence_penalty=1.5, history=200),
            Case("official_greedy", 248320, temperature=0.0),
            Case("plain", 300),
            Case("plain_of_ties", 20000, levels=3),
            Case("plain_penalised", 5000, repetition_penalty=1.3, history=2000),
            Case("hot_wide", 20000, temperature=5.0),
            Case("hot", 300, temperature=3.0),
            Case("cold", 300, temperature=1e-4),
            Case("greedy", 300, temperature=0.0, repetition_penalty=1.5, history=50),
            Case("greedy_masked", 300, temperature=0.0, masked=5),
            Case("top_k", 300, top_k=7),
            Case("top_k_of_ties", 300, top_k=7, levels=3),
            Case("top_k_above_vocabulary", 30, top_k=100),
            Case("top_k_above_mask", 300, top_k=50, masked=3),
            Case("top_k_of_most", 5000, top_k=1000, top_p=0.9),
            Case("top_p", 300, top_p=0.5),
            Case("top_p_wide", 20000, top_p=0.9, min_p=1e-3),
            Case("top_p_short_of_min_p", 20000, top_p=0.99, min_p=0.2, masked=9000),
            Case("top_p_tiny", 300, top_p=1e-9),
            Case("top_p_of_ties", 300, top_p=0.5, levels=2),
            Case("min_p", 300, min_p=0.3),
            Case("min_p_wide", 20000, 2.0, min_p=0.01),
            Case("min_p_one", 300, min_p=1.0, levels=4),
            Case("presence", 300, presence_penalty=1.5, history=40),
            Case("frequency", 300, frequency_penalty=-0.7, history=40),
            Case("repetition", 300, repetition_penalty=0.7, history=40),
            _ALL,
            Case("one_allowed", 300, masked=1),
            Case("one_id", 1),
        )
    }
)
