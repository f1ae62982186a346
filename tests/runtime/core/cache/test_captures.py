"""Capture schedules and shared prefixes."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from ninfer.runtime.core.cache.captures import anchor_frontiers, capture_points
from ninfer.runtime.core.cache.sharing import net_gain, shared_candidates, shared_points
from ninfer.runtime.core.request import CapturePoint
from ninfer.types import Boundary, BoundaryKind, CheckpointKind, PreparedPrompt
from tests.runtime.core.cache.builders import COST


def prompt(length: int, *boundaries: tuple[BoundaryKind, int]) -> PreparedPrompt:
    marks = tuple(Boundary(kind, frontier) for kind, frontier in boundaries)
    return PreparedPrompt(tuple(range(length)), None, False, boundaries=marks)


lengths = st.integers(1, 6000)
marks = st.lists(st.tuples(st.sampled_from(BoundaryKind), st.integers(1, 6000)), max_size=6)


@given(lengths, marks, st.integers(0, 6000), st.integers(0, 20), st.integers(0, 20))
def test_points_lie_between_reuse_and_the_last_token(
    length: int, boundaries: list[tuple[BoundaryKind, int]], reused: int, points: int, anchors: int
) -> None:
    found = capture_points(prompt(length, *boundaries), reused, points, anchors)
    frontiers = [point.frontier for point in found]
    assert frontiers == sorted(set(frontiers))
    assert all(reused < frontier < length for frontier in frontiers)
    assert len(found) <= points
    assert sum(point.kind is CheckpointKind.LONG_ANCHOR for point in found) <= anchors
    typed = {f for kind, f in boundaries if kind is BoundaryKind.TURN_CLOSURE and reused < f < length}
    assert len(typed) > points or typed <= set(frontiers)


@given(lengths)
def test_anchors_are_dense_near_the_end_and_double_after(length: int) -> None:
    found = list(anchor_frontiers(length))
    assert found == sorted(set(found), reverse=True)
    assert all(frontier % 128 == 0 and 0 < frontier < length for frontier in found)
    near = {f for f in range(128, length, 128) if f > length - 1 - 1024}
    assert near <= set(found)
    for distance in (2048, 4096):
        assert length <= distance + 128 or any(0 <= length - distance - f < 128 for f in found)


def test_a_raw_prompt_can_be_repeated_at_the_cost_of_one_token() -> None:
    found = capture_points(prompt(1024), 0, 20, 20)
    assert found[-1] == CapturePoint(1023, CheckpointKind.RESPONSE_REPLAY)
    assert [point.frontier for point in found[:-1]] == [128, 256, 384, 512, 640, 768, 896]


def test_a_branch_at_960_of_1024_recomputes_128() -> None:
    assert max(p.frontier for p in capture_points(prompt(1024), 0, 20, 20) if p.frontier <= 960) == 896


def test_few_slots_go_to_the_typed_points_and_the_last_anchors() -> None:
    marks = ((BoundaryKind.TURN_CLOSURE, 500), (BoundaryKind.RESPONSE_REPLAY, 990))
    found = capture_points(prompt(1000, *marks), 0, 3, 20)
    assert [(p.frontier, p.kind) for p in found] == [
        (500, CheckpointKind.TURN_CLOSURE),
        (896, CheckpointKind.LONG_ANCHOR),
        (990, CheckpointKind.RESPONSE_REPLAY),
    ]
    assert capture_points(prompt(1000, *marks), 0, 1, 20)[0].kind is CheckpointKind.TURN_CLOSURE


def test_anchors_of_a_growing_history_coincide() -> None:
    first = set(anchor_frontiers(1500))
    assert {f for f in anchor_frontiers(1570) if f < 1500} <= first


# --- shared prefixes ---


def test_candidates_are_four_markers_and_three_structural_places() -> None:
    markers = [(BoundaryKind.MARKER, frontier) for frontier in (10, 20, 30, 40, 50)]
    asked = prompt(100, *markers, (BoundaryKind.TOOLS, 5), (BoundaryKind.SYSTEM, 20), (BoundaryKind.TURN_CLOSURE, 60))
    found = [(candidate.frontier, candidate.explicit) for candidate in shared_candidates(asked)]
    assert found == [(5, False), (20, True), (30, True), (40, True), (50, True), (99, False)]


@given(
    st.lists(st.integers(1, 90)),
    st.integers(0, 90),
    st.lists(st.integers(1, 99)),
    st.integers(0, 3),
    st.integers(0, 10**5),
)
def test_only_positive_gain_beyond_the_private_baseline(
    system: list[int], reused: int, private: list[int], domains: int, copy: int
) -> None:
    candidates = shared_candidates(prompt(100, *((BoundaryKind.SYSTEM, f) for f in system)))
    found = shared_points(candidates, reused, private, lambda _: domains, COST, copy)
    baseline = {0, reused, *private}
    for point in found:
        below = max(f for f in baseline if f <= point.frontier)
        assert reused <= below < point.frontier
        assert net_gain(COST, point.frontier, below, max(domains, 1), copy) > 0
        assert point.spare_only == (domains < 2)
        baseline.add(point.frontier)


def test_explicit_markers_may_displace() -> None:
    candidates = shared_candidates(prompt(100, (BoundaryKind.MARKER, 50)))
    points = shared_points(candidates, 0, [], lambda _: 1, COST, 0)
    assert [(point.frontier, point.spare_only) for point in points] == [(50, False), (99, True)]


def test_a_private_checkpoint_at_the_same_place_leaves_nothing_to_gain() -> None:
    candidates = shared_candidates(prompt(100, (BoundaryKind.MARKER, 50)))
    assert shared_points(candidates, 0, [50, 99], lambda _: 8, COST, 0) == []
