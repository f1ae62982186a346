"""Where a request's prefill is to leave private checkpoints behind."""

from __future__ import annotations

from collections.abc import Iterator

from ninfer.runtime.core.request import CapturePoint
from ninfer.types import BoundaryKind, CheckpointKind, PreparedPrompt

ANCHOR_STEP = 128
"""Distance of LongAnchors near the end, in tokens. All anchors are multiples of it, so that a growing history reuses
the anchors of its earlier requests instead of leaving new ones beside them."""
ANCHOR_NEAR = 1024
"""How far from the end of the prompt the dense anchors reach."""

_PRIVATE_BOUNDARIES = {
    BoundaryKind.RESPONSE_REPLAY: CheckpointKind.RESPONSE_REPLAY,
    BoundaryKind.TURN_CLOSURE: CheckpointKind.TURN_CLOSURE,
}
_RANK = {kind: rank for rank, kind in enumerate(CheckpointKind)}


def capture_points(prompt: PreparedPrompt, reused: int, max_points: int, max_anchors: int) -> list[CapturePoint]:
    """The private checkpoints of one prefill, by ascending frontier, reused < frontier < prompt length.

    The typed ones come first, then the anchors from the end backwards, as far as `max_points` and `max_anchors` go.
    """
    length = len(prompt.token_ids)
    chosen: dict[int, CapturePoint] = {}
    for point in _typed(prompt):
        if reused < point.frontier < length and len(chosen) < max_points:
            chosen.setdefault(point.frontier, point)
    anchors = 0
    for frontier in anchor_frontiers(length):
        if frontier <= reused or anchors >= max_anchors or len(chosen) >= max_points:
            break
        if frontier not in chosen:
            chosen[frontier] = CapturePoint(frontier, CheckpointKind.LONG_ANCHOR)
            anchors += 1
    return sorted(chosen.values(), key=lambda point: point.frontier)


def _typed(prompt: PreparedPrompt) -> list[CapturePoint]:
    """TurnClosures and ResponseReplays, the more valuable kind first.

    A prompt without a generation opener still gets a replay point: all but its last token, which must be recomputed.
    """
    points = [
        CapturePoint(boundary.frontier, _PRIVATE_BOUNDARIES[boundary.kind])
        for boundary in prompt.boundaries
        if boundary.kind in _PRIVATE_BOUNDARIES
    ]
    if all(point.kind is not CheckpointKind.RESPONSE_REPLAY for point in points):
        points.append(CapturePoint(len(prompt.token_ids) - 1, CheckpointKind.RESPONSE_REPLAY))
    return sorted(points, key=lambda point: (_RANK[point.kind], -point.frontier))


def anchor_frontiers(length: int) -> Iterator[int]:
    """Multiples of 128 below `length`, descending: all within the last 1024 tokens, then at doubling distances."""
    frontier = (length - 1) // ANCHOR_STEP * ANCHOR_STEP
    while frontier > 0 and frontier > length - 1 - ANCHOR_NEAR:
        yield frontier
        frontier -= ANCHOR_STEP
    distance = 2 * ANCHOR_NEAR
    while (frontier := (length - distance) // ANCHOR_STEP * ANCHOR_STEP) > 0:
        yield frontier
        distance *= 2
