"""State slots: each row of a call starts from one slot of a store and leaves its result in another."""

from __future__ import annotations

from collections.abc import Sequence

import torch

ZERO = -1
"""As a source: the row starts from zeros."""


def check_slots(op: str, slots: int, batch: int, sources: Sequence[int], targets: Sequence[int]) -> None:
    """Require one source in [-1, slots) and one target in [0, slots) per row, no target twice.

    Raises:
        ValueError: naming the op and the argument.
    """
    for name, given, lowest in (("sources", sources, ZERO), ("targets", targets, 0)):
        if len(given) != batch:
            raise ValueError(f"{op}: {name} must have one slot per row ({batch}), got {len(given)}")
        if any(not lowest <= slot < slots for slot in given):
            raise ValueError(f"{op}: {name} must lie in [{lowest}, {slots}), got {list(given)}")
    if len(set(targets)) != batch:
        raise ValueError(f"{op}: targets must be distinct, got {list(targets)}")


def take_starts(store: torch.Tensor, sources: Sequence[int], targets: Sequence[int]) -> None:
    """Bring each row's start into its target slot: store[targets[b]] = store[sources[b]], or zeros for ZERO.

    All sources are read before any target is written, so rows may fork from, or swap, each other's slots.
    """
    written = set(targets)
    moves = [(source, target) for source, target in zip(sources, targets, strict=True) if source != target]
    saved = {source: store[source].clone() for source, _ in moves if source in written}
    for source, target in moves:
        if source == ZERO:
            store[target].zero_()
        else:
            store[target].copy_(saved[source] if source in saved else store[source])
