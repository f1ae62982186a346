"""Which stable prefixes of a prompt are worth a checkpoint for everyone.

Candidates are up to four explicit markers and three structural places: after the tools, after the leading system block,
and the whole prompt (all but the token that must be recomputed). Since anybody may fork a private checkpoint, a shared
one gains only what it saves beyond the private checkpoints below it, less its own copy; only a strictly positive gain
counts. A structural candidate may use spare slots only, unless two independent reuse domains asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ninfer.runtime.core.cache.cost import CostModel
from ninfer.runtime.core.request import CapturePoint
from ninfer.types import BoundaryKind, CheckpointKind, PreparedPrompt

MAX_MARKERS = 4
NEEDED_DOMAINS = 2


@dataclass(frozen=True, slots=True)
class SharedCandidate:
    """A prefix that others may have too. `explicit`: the caller marked it."""

    frontier: int
    explicit: bool


def shared_candidates(prompt: PreparedPrompt) -> list[SharedCandidate]:
    """By ascending frontier, each frontier once; 0 < frontier < prompt length."""
    length = len(prompt.token_ids)
    places: dict[int, bool] = {length - 1: False}
    for kind in (BoundaryKind.TOOLS, BoundaryKind.SYSTEM):
        places.update({boundary.frontier: False for boundary in prompt.boundaries if boundary.kind is kind})
    markers = [boundary.frontier for boundary in prompt.boundaries if boundary.kind is BoundaryKind.MARKER]
    places.update(dict.fromkeys(markers[-MAX_MARKERS:], True))
    return [SharedCandidate(frontier, places[frontier]) for frontier in sorted(places) if 0 < frontier < length]


def shared_points(
    candidates: Sequence[SharedCandidate],
    reused: int,
    private: Sequence[int],
    domains: Callable[[int], int],
    cost: CostModel,
    copy_ns: int,
) -> list[CapturePoint]:
    """The candidates beyond `reused` with a positive net gain over the private frontiers (and each other).

    `domains(frontier)` counts the independent reuse domains that had this prefix, the present one included; `copy_ns`
    is what making one more checkpoint takes.
    """
    points = []
    baseline = sorted({0, reused, *private})
    for candidate in candidates:
        if candidate.frontier <= reused:
            continue
        below = max(frontier for frontier in baseline if frontier <= candidate.frontier)
        known = domains(candidate.frontier)
        if net_gain(cost, candidate.frontier, below, max(known, 1), copy_ns) > 0:
            spare_only = not candidate.explicit and known < NEEDED_DOMAINS
            points.append(CapturePoint(candidate.frontier, CheckpointKind.SHARED_PREFIX, spare_only))
            baseline = sorted({*baseline, candidate.frontier})
    return points


def net_gain(cost: CostModel, frontier: int, below: int, users: int, copy_ns: int) -> int:
    """What `users` requests save by a checkpoint at `frontier` over the private one at `below`, less its making."""
    return users * (cost.saved(frontier) - cost.saved(below)) - copy_ns
