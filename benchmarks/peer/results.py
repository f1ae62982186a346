"""Pairs of figures as they come in, their medians, and the reports made of them."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .works import StateBytes, Work, bytes_per_second


@dataclass(frozen=True, slots=True)
class Pair:
    """Tokens per second of both programs, one after the other, and bytes per second that memory could be read at."""

    bits: str
    work: str
    ours: float
    peer: float
    read: float

    @property
    def ratio(self) -> float:
        return self.ours / self.peer


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of each program's file, which are those of its weights but for a few names."""

    ours: int
    peer: int


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the pairs of one work. Bytes/s and their shares of the read bandwidth are None for prefill."""

    bits: str
    work: str
    pairs: int
    ours: float
    peer: float
    ratio: float
    lowest_ratio: float
    highest_ratio: float
    ours_bytes_per_s: float | None
    peer_bytes_per_s: float | None
    ours_share: float | None
    peer_share: float | None


def summarise(work: Work, pairs: Sequence[Pair], weights: Weights, state: StateBytes) -> Row:
    """One row of at least one pair. The ratio is the median of the pairs' ratios, not the ratio of the medians."""
    ours, peer = (statistics.median(values) for values in zip(*((p.ours, p.peer) for p in pairs), strict=True))
    ratios = [pair.ratio for pair in pairs]
    read = statistics.median(pair.read for pair in pairs)
    ours_bytes = bytes_per_second(work, ours, weights.ours, state)
    peer_bytes = bytes_per_second(work, peer, weights.peer, state)
    return Row(
        bits=pairs[0].bits,
        work=work.name,
        pairs=len(pairs),
        ours=ours,
        peer=peer,
        ratio=statistics.median(ratios),
        lowest_ratio=min(ratios),
        highest_ratio=max(ratios),
        ours_bytes_per_s=ours_bytes,
        peer_bytes_per_s=peer_bytes,
        ours_share=None if ours_bytes is None else ours_bytes / read,
        peer_share=None if peer_bytes is None else peer_bytes / read,
    )


def table(rows: Sequence[Row], ours: str, peer: str) -> str:
    """A Markdown table of tokens/s, ratios, and bytes/s as a share of the read bandwidth."""
    head = ("bits", "work", "pairs", ours, peer, "ratio", "lowest–highest", f"{ours} GB/s", f"{peer} GB/s")
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.bits,
        row.work,
        f"{row.pairs}",
        f"{row.ours:.1f}",
        f"{row.peer:.1f}",
        f"{row.ratio:.2f}",
        f"{row.lowest_ratio:.2f}–{row.highest_ratio:.2f}",
        _bandwidth(row.ours_bytes_per_s, row.ours_share),
        _bandwidth(row.peer_bytes_per_s, row.peer_share),
    )


def _bandwidth(value: float | None, share: float | None) -> str:
    return "–" if value is None or share is None else f"{value / 1e9:.1f} ({share:.0%})"


def write_json(path: Path, header: Mapping[str, Any], pairs: Sequence[Pair], rows: Sequence[Row]) -> None:
    """Replace the file by everything known so far, whole or not at all."""
    result = {**header, "summary": [asdict(row) for row in rows], "pairs": [asdict(pair) for pair in pairs]}
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(result, indent=2) + "\n")
    os.replace(temporary, path)
