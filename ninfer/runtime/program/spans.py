"""Spans: what sequences consume in one unit, and the model's view of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ninfer.kernels.placement import HOST, Placement
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import StateSlots
from ninfer.models.qwen3_5.batch import Batch
from ninfer.runtime.program.pages import AddressSpace


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens that one sequence consumes in a unit, from its frontier on, and the image slots read and written."""

    space: AddressSpace
    tokens: tuple[int, ...]
    source: int
    target: int

    @property
    def end(self) -> int:
        """The sequence's frontier after the unit."""
        return self.space.frontier + len(self.tokens)


def build_batch(spans: Sequence[Span], placement: Placement = HOST) -> Batch:
    """The model's view of some spans. Their address spaces have grown to each span's end."""
    upload = placement.upload
    places = [(span.space, p) for span in spans for p in range(span.space.frontier, span.end)]
    positions = torch.tensor([position for _, position in places], dtype=torch.int32)
    segments = Segments(tuple(len(span.tokens) for span in spans), tuple(span.space.frontier for span in spans))
    states = StateSlots(tuple(span.source for span in spans), tuple(span.target for span in spans))
    return Batch(
        token_ids=upload(torch.tensor([token for span in spans for token in span.tokens])),
        positions=upload(positions.expand(3, -1).contiguous()),
        segments=segments.reading(upload(segments.data)),
        tables=upload(_tables(spans)),
        slots=upload(torch.tensor([space.slot(position) for space, position in places])),
        states=states.reading(upload(states.data)),
    )


def _tables(spans: Sequence[Span]) -> torch.Tensor:
    rows = [span.space.table() for span in spans]
    width = max(len(row) for row in rows)
    return torch.tensor([row + [0] * (width - len(row)) for row in rows], dtype=torch.int32)
