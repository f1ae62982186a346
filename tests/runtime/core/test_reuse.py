"""Prefix reuse over the scripted Program: what is captured, kept, reused and given up, and what is said of it."""

from __future__ import annotations

import logging

import pytest

from ninfer.errors import EngineFailure
from ninfer.runtime.core.cache.options import CacheOptions
from ninfer.runtime.core.engine_core import CoreOptions, EngineCore
from ninfer.runtime.core.program import UnitFault
from ninfer.types import Boundary, BoundaryKind, CheckpointKind, FinishReason, Reuse, ReuseReason
from tests.fakes import FakeClock, ScriptedProgram
from tests.runtime.core.support import Bench, bench, finish_of, reuse_of, rounds


def cached(
    images: int = 16,
    lanes: int = 2,
    pages: int = 200,
    host_images: int = 0,
    stages: int = 1,
    terminal_stages: int = 1,
    commits_at: int | None = None,
    chunk: int = 64,
    cache: CacheOptions | None = None,
    concurrent_prefill: bool = False,
) -> Bench:
    """A bench with room for checkpoints."""
    program = ScriptedProgram(lanes, pages, 4, 2000, chunk, 1, stages, terminal_stages, commits_at, images, host_images)
    clock = FakeClock()
    options = CoreOptions(8, concurrent_prefill, cache)
    return Bench(program, clock, EngineCore(program, options, clock))


PROMPT = tuple(range(1, 301))


def consumed(b: Bench) -> int:
    """Prompt tokens that Program has computed so far."""
    stats = b.core.stats()
    return stats.prompt_tokens - stats.reused_tokens


# --- hits -------------------------------------------------------------------------------------------------


def test_an_exact_repeat_recomputes_one_token() -> None:
    b = cached()
    first = b.ask(PROMPT)
    b.settle()
    second = b.ask(PROMPT)
    b.settle()
    assert reuse_of(first) == Reuse(ReuseReason.NO_CHECKPOINT)
    assert reuse_of(second) == Reuse(ReuseReason.HIT, 299, 300, CheckpointKind.RESPONSE_REPLAY)
    assert first.result().token_ids == second.result().token_ids
    assert second.result().usage.reused_tokens == 299
    assert consumed(b) == 301
    b.check_clean()


def test_the_next_turn_starts_from_the_sessions_endpoint() -> None:
    b = cached()
    history = b.answer(PROMPT, session="s")
    turn = b.ask((*history, *range(900, 964)), session="s")
    b.settle()
    assert reuse_of(turn) == Reuse(ReuseReason.HIT, 303, 303, CheckpointKind.SESSION_ENDPOINT)
    assert b.core.stats().retained == 2


def test_another_user_forks_an_anchor_at_the_divergence() -> None:
    b = cached()
    b.answer(PROMPT, session="a")
    other = b.ask((*PROMPT[:270], *range(500, 550)), session="b")
    b.settle()
    assert reuse_of(other) == Reuse(ReuseReason.HIT, 256, 270, CheckpointKind.LONG_ANCHOR)


def test_a_rewritten_answer_falls_back_to_the_turn_closure() -> None:
    b = cached()
    marks = [Boundary(BoundaryKind.TURN_CLOSURE, 200), Boundary(BoundaryKind.RESPONSE_REPLAY, 290)]
    first = b.ask(PROMPT, boundaries=marks, session="s")
    b.settle()
    assert first.finished
    turn = b.ask((*PROMPT[:210], *range(700, 760)), session="s")
    b.settle()
    assert reuse_of(turn) == Reuse(ReuseReason.HIT, 200, 210, CheckpointKind.TURN_CLOSURE)


def test_a_marked_prefix_serves_everyone() -> None:
    b = cached()
    marks = [Boundary(BoundaryKind.MARKER, 77)]
    first = b.ask(PROMPT, boundaries=marks, session="a")
    b.settle()
    assert first.finished
    other = b.ask((*PROMPT[:77], *range(500, 550)), session="b")
    b.settle()
    assert reuse_of(other) == Reuse(ReuseReason.HIT, 77, 77, CheckpointKind.SHARED_PREFIX)


def test_two_branches_alternating_do_not_grow() -> None:
    b = cached(images=12)
    left, right = (*PROMPT, 7, 7), (*PROMPT, 8, 8, 8)
    sizes, work = [], []
    for _ in range(10):
        before = consumed(b)
        b.answer(left, session="s")
        b.answer(right, session="s")
        sizes.append(len(b.program.checkpoints))
        work.append(consumed(b) - before)
    assert len(set(sizes[1:])) == 1
    assert set(work[1:]) == {2}


def test_a_growing_conversation_computes_only_what_is_new() -> None:
    b = cached(images=8, pages=400)
    history: tuple[int, ...] = PROMPT
    for turn in range(8):
        before = consumed(b)
        history = b.answer(history, session="s")
        assert turn == 0 or consumed(b) - before == 21
        history = (*history, *range(5000 + 20 * turn, 5020 + 20 * turn))
    assert b.core.stats().reuse_hits[CheckpointKind.SESSION_ENDPOINT] == 7
    b.check_clean()


# --- misses -----------------------------------------------------------------------------------------------


def test_disabled_requests_neither_read_nor_feed() -> None:
    b = cached()
    first = b.submit(prompt=300)
    b.settle()
    assert first.finished
    assert b.program.checkpoints == {}
    b.answer(PROMPT)
    before = len(b.program.checkpoints)
    warm_up = b.submit(prompt=300)
    b.settle()
    assert reuse_of(warm_up) == Reuse(ReuseReason.DISABLED)
    assert len(b.program.checkpoints) == before
    assert b.core.stats().reuse_misses[ReuseReason.DISABLED] == 2


def test_another_identity_is_another_history() -> None:
    b = cached()
    b.answer(PROMPT)
    other = b.ask(PROMPT, identity=b"thinking")
    b.settle()
    assert reuse_of(other) == Reuse(ReuseReason.IDENTITY_DIFFERS)


def test_a_divergence_before_every_checkpoint() -> None:
    b = cached()
    b.answer(PROMPT[:100])
    other = b.ask((*PROMPT[:60], *range(500, 550)))
    b.settle()
    assert reuse_of(other) == Reuse(ReuseReason.NO_CHECKPOINT, 0, 60)


def test_evicted_for_room() -> None:
    b = cached(lanes=1, pages=80)
    b.answer(PROMPT, session="a")
    b.answer(tuple(range(1000, 1300)), session="b")
    assert b.core.stats().evictions > 0
    again = b.ask((*PROMPT, 9), session="a")
    b.settle()
    assert reuse_of(again).reason in (ReuseReason.EVICTED, ReuseReason.HIT)
    assert reuse_of(again).frontier < 299
    b.check_clean()


def test_without_slots_nothing_is_kept() -> None:
    b = cached(images=0)
    b.answer(PROMPT)
    again = b.ask(PROMPT)
    b.settle()
    assert reuse_of(again) == Reuse(ReuseReason.NO_CHECKPOINT)
    assert not b.program.calls("assess_capture") + b.program.calls("assess_retain")


# --- retention --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("images", [1, 2, 3, 5])
def test_slots_are_never_exceeded_and_the_endpoint_is_kept(images: int) -> None:
    b = cached(images=images)
    history = b.answer(PROMPT, session="s")
    assert len(b.program.checkpoints) <= images
    turn = b.ask((*history, 1, 2, 3), session="s")
    b.settle()
    assert reuse_of(turn).frontier == 303
    assert len(b.program.checkpoints) <= images


def test_a_live_sessions_endpoint_outlives_passers_by() -> None:
    b = cached(images=4)
    history = b.answer(PROMPT, session="live")
    for number in range(6):
        b.answer(tuple(range(1000 * number + 1000, 1000 * number + 1100)))
    turn = b.ask((*history, 1, 2, 3), session="live")
    b.settle()
    assert reuse_of(turn) == Reuse(ReuseReason.HIT, 303, 303, CheckpointKind.SESSION_ENDPOINT)


def test_only_a_later_result_becomes_the_sessions_endpoint() -> None:
    """The earlier request of a session ends last; the session still continues from the later one."""
    b = cached()
    slow = b.ask(PROMPT, new=40, session="s")
    quick = b.ask((*PROMPT[:200], 5, 6), new=2, session="s")
    b.run_until(lambda: quick.finished)
    assert not slow.finished
    b.settle()
    binding = b.core._loop._cache._sessions.lookup("s")
    assert binding is not None
    assert binding.order == quick.request_id


def test_the_host_tier_takes_what_the_device_gives_up() -> None:
    b = cached(images=2, host_images=6)
    first = b.answer(PROMPT, session="a")
    b.answer(tuple(range(1000, 1300)), session="b")
    assert b.core.stats().offloads > 0
    turn = b.ask((*first, 1, 2, 3), session="a")
    b.settle()
    assert reuse_of(turn).frontier >= 256
    b.check_clean()


def test_catalog_limits() -> None:
    b = cached(cache=CacheOptions(max_private_continuations=1, max_shared_prefixes=1, max_long_anchors=1))
    b.answer(PROMPT, session="a")
    b.answer(tuple(range(1000, 1300)), session="b")
    kinds = [entry.kind for entry in b.core._loop._cache.catalog]
    assert kinds.count(CheckpointKind.LONG_ANCHOR) <= 1
    assert kinds.count(CheckpointKind.SESSION_ENDPOINT) == 1


# --- cancellation and failure -----------------------------------------------------------------------------


def test_what_a_cancelled_prefill_captured_stays() -> None:
    b = cached()
    handle = b.ask(PROMPT)
    b.run_until(lambda: len(b.program.checkpoints) == 2)
    handle.cancel()
    b.settle()
    assert finish_of(handle).reason is FinishReason.CANCELLED
    again = b.ask((*PROMPT, 1, 2))
    b.settle()
    assert reuse_of(again) == Reuse(ReuseReason.HIT, 256, 256, CheckpointKind.LONG_ANCHOR)
    b.check_clean()


@pytest.mark.parametrize(("commits_at", "kept"), [(None, 0), (1, 1)])
def test_cancel_while_a_capture_is_open(commits_at: int | None, kept: int) -> None:
    b = cached(stages=3, commits_at=commits_at)
    handle = b.ask(PROMPT)
    b.run_until(lambda: b.program.transaction is not None and bool(b.program.calls("seal_capture")))
    handle.cancel()
    b.settle()
    assert finish_of(handle).reason is FinishReason.CANCELLED
    assert len(b.program.checkpoints) == kept
    assert len(b.program.calls("abort")) == 1
    b.check_clean()


def test_a_sequence_runs_no_unit_while_its_capture_is_open() -> None:
    b = cached(stages=4, concurrent_prefill=True)
    one, two = b.ask(PROMPT), b.ask(tuple(range(1000, 1300)))
    b.settle()
    assert one.result().finish_reason is two.result().finish_reason is FinishReason.LENGTH
    b.check_clean()


@pytest.mark.parametrize("operation", ["assess_capture", "seal_capture", "assess_retain", "advance", "result"])
def test_a_failure_around_checkpoints_fails_the_engine_cleanly(operation: str) -> None:
    b = cached()
    b.answer(PROMPT)
    b.program.arm(operation, RuntimeError("scripted"))
    handle = b.ask(tuple(range(1000, 1300)))
    b.settle()
    with pytest.raises(EngineFailure):
        handle.result()
    assert b.program.violations == []
    assert b.core.stats().checkpoints == 0
    assert b.program.closed


def test_stale_plans_of_captures_and_ends_are_planned_again() -> None:
    b = cached()
    handle = b.ask(PROMPT)
    b.run_until(lambda: bool(b.program.calls("seal_capture")))
    b.program.stale_plans = 2
    b.run_until(lambda: len(rounds(b.program)) == 3)
    assert b.program.stale_plans == 0
    b.program.stale_plans = 2
    b.settle()
    assert b.program.stale_plans == 0
    assert handle.result().finish_reason is FinishReason.LENGTH
    b.check_clean()


def test_a_faulty_prefill_leaves_its_earlier_checkpoints() -> None:
    b = cached()
    handle = b.ask(PROMPT)
    b.run_until(lambda: len(b.program.checkpoints) == 1)
    b.program.arm("prefill", UnitFault("scripted"))
    b.settle()
    assert finish_of(handle).reason is FinishReason.ERROR
    again = b.ask(PROMPT)
    b.settle()
    assert reuse_of(again).frontier == 128


# --- planning effort and observation ----------------------------------------------------------------------


def test_ordinary_decode_runs_no_planner() -> None:
    b = cached()
    handle = b.ask(PROMPT, new=50)
    b.run_until(lambda: len(rounds(b.program)) == 2)
    planned, assessed = b.core.stats().planner_runs, len(b.program.calls("assess"))
    b.run_until(lambda: len(rounds(b.program)) == 48)
    assert b.core.stats().planner_runs == planned == 1
    assert len(b.program.calls("assess")) == assessed
    b.settle()
    assert handle.finished


def test_a_blocked_head_is_planned_again_only_when_facts_change() -> None:
    b = cached(pages=80)
    running = b.ask(PROMPT, new=20)
    b.run_until(lambda: len(rounds(b.program)) == 1)
    blocked = b.ask(tuple(range(1000, 1200)), new=4)
    b.step(2)
    planned = b.core.stats().planner_runs
    b.step(10)
    assert b.core.stats().planner_runs == planned
    assert not blocked.published
    b.settle()
    assert running.result().finish_reason is blocked.result().finish_reason is FinishReason.LENGTH


def test_the_terminal_line_says_what_was_reused(caplog: pytest.LogCaptureFixture) -> None:
    b = cached()
    with caplog.at_level(logging.INFO, "ninfer.engine"):
        b.answer(PROMPT)
        b.answer(PROMPT)
        handle = b.submit()
        b.settle()
        assert handle.finished
    words = [next(w for w in r.getMessage().split() if w.startswith("reuse=")) for r in caplog.records]
    assert words == ["reuse=no_checkpoint", "reuse=response_replay@299", "reuse=disabled"]


def test_counters() -> None:
    b = cached()
    b.answer(PROMPT, session="s")
    b.answer(PROMPT, session="s")
    stats = b.core.stats()
    assert stats.captures == 3
    assert stats.retained == 1
    assert stats.checkpoints == 4
    assert sum(stats.reuse_hits.values()) == sum(stats.reuse_misses.values()) == 1
    assert sum(stats.planner_stops.values()) == stats.planner_runs == 2


def test_bench_without_checkpoints_is_unchanged() -> None:
    b = bench()
    b.answer((1, 2, 3))
    assert b.core.stats().captures == b.core.stats().retained == 0
