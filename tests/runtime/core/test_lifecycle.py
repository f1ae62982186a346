"""One request from submission to its result: order of effects, endings, numbers, refusals and capacity."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from functools import partial

import pytest

from ninfer.errors import RequestError, RequestErrorKind
from ninfer.runtime.core.capacity import OutstandingCapacity
from ninfer.runtime.core.channel import aggregate
from ninfer.runtime.core.stats import Availability
from ninfer.types import (
    Channel,
    Delta,
    Finish,
    FinishReason,
    GenerationStart,
    Reuse,
    ReuseReason,
    Timings,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from tests.fakes import ScriptedProgram
from tests.runtime.core.outputs import FakeOutput
from tests.runtime.core.support import bench, expected, finish_of, tokens_of


def test_effects_come_in_the_order_preview_commit_resource_output() -> None:
    b = bench()
    handle = b.submit(prompt=5, new=2)
    b.settle()
    names = [entry[0] for entry in b.program.log]
    assert names == [
        *("assess", "seal", "start", "advance", "result", "activated"),
        "prefill",
        *("prefill", "preview", "commit", "output_commit"),
        *("decode", "preview", "commit", "seal_terminal", "start", "advance", "result", "released"),
        *("output_commit", "flush"),
    ]
    assert handle.result().token_ids == expected(5, 2)
    b.check_clean()


def test_last_span_is_published_only_after_its_resources_are_settled() -> None:
    b = bench(program=ScriptedProgram(terminal_stages=3))
    handle = b.submit(new=2)
    b.run_until(lambda: len(b.program.calls("commit")) == 2)
    b.step()
    assert tokens_of(handle.published) == expected(3, 1)
    assert not handle.finished
    b.settle()
    assert tokens_of(handle.published) == expected(3, 2)
    b.check_clean()


def test_start_is_published_at_admission_before_any_prefill() -> None:
    b = bench(program=ScriptedProgram(prefill_chunk=1))
    handle = b.submit(prompt=3)
    b.step()
    assert handle.published == (GenerationStart(3, 0, Reuse(ReuseReason.DISABLED)),)
    b.settle()


def test_nothing_is_visible_before_its_commit() -> None:
    b = bench(program=ScriptedProgram(span=3))
    handle = b.submit(new=9)

    def check() -> None:
        committed = b.program.committed.get((1, 2, 3), [])
        assert len(tokens_of(handle.published)) <= len(committed)

    b.program.observer = check
    b.settle()
    assert handle.result().token_ids == expected(3, 9)


def test_budget_end_is_length_and_flushes_what_was_held_back() -> None:
    b = bench()
    output = FakeOutput(hold=True)
    handle = b.submit(new=3, output=output)
    b.settle()
    result = handle.result()
    assert result.finish_reason is FinishReason.LENGTH
    assert result.text == "".join(f"<{token}>" for token in expected(3, 3))
    assert output.flushes == 1


def test_the_budget_truncates_a_span_that_overshoots_it(monkeypatch: pytest.MonkeyPatch) -> None:
    b = bench()
    row = b.program._row
    monkeypatch.setattr(b.program, "_row", lambda state, count: row(state, count + 3))
    handle = b.submit(new=6)
    b.settle()
    assert handle.result().finish_reason is FinishReason.LENGTH
    assert handle.result().token_ids == expected(3, 6)
    assert b.program.committed[(1, 2, 3)] == list(expected(3, 6))
    b.check_clean()


def test_stop_inside_a_span_keeps_only_the_accepted_prefix() -> None:
    b = bench(program=ScriptedProgram(span=4))
    output = FakeOutput(b.program.log, stop_at=2)
    handle = b.submit(new=9, output=output)
    b.settle()
    result = handle.result()
    assert result.finish_reason is FinishReason.STOP
    assert result.token_ids == expected(3, 3)
    assert result.usage == Usage(3, 0, 3)
    assert output.flushes == 0
    assert b.program.committed[(1, 2, 3)] == list(expected(3, 3))
    b.check_clean()


def test_stop_on_the_very_last_budgeted_token_is_a_stop() -> None:
    b = bench()
    handle = b.submit(new=2, output=FakeOutput(stop_at=1))
    b.settle()
    assert handle.result().finish_reason is FinishReason.STOP


def test_forced_control_runs_between_decodes_and_counts_as_output() -> None:
    b = bench()
    output = FakeOutput(b.program.log, "c", controls={2: (7, 8)})
    handle = b.submit(new=6, output=output)
    b.settle()
    own = expected(3, 6)
    assert handle.result().token_ids == (own[0], own[1], 7, 8, own[4], own[5])
    assert ("preview", "c", (7, 8), True) in b.program.log
    assert b.core.stats().control_units == 1
    b.check_clean()


def test_forced_control_is_cut_by_the_budget() -> None:
    b = bench()
    handle = b.submit(new=3, output=FakeOutput(controls={1: (7, 8, 9)}))
    b.settle()
    result = handle.result()
    assert result.token_ids == (expected(3, 1)[0], 7, 8)
    assert result.finish_reason is FinishReason.LENGTH
    b.check_clean()


def test_a_request_for_nothing_ends_at_once_without_program() -> None:
    b = bench()
    handle = b.submit(new=0)
    assert handle.finished
    result = handle.result()
    assert (result.finish_reason, result.token_ids, result.usage) == (FinishReason.LENGTH, (), Usage(3, 0, 0))
    assert b.program.log == []
    assert b.core.stats().outstanding == 0


def test_no_budget_means_up_to_the_context() -> None:
    b = bench(program=ScriptedProgram(max_context=12))
    handle = b.submit(prompt=5, new=None)
    b.settle()
    assert len(handle.result().token_ids) == 7


def test_logprobs_travel_with_their_tokens() -> None:
    b = bench(program=ScriptedProgram(span=3))
    handle = b.submit(new=5, top_logprobs=0)
    b.settle()
    assert [entry.token_id for entry in handle.result().logprobs] == list(expected(3, 5))


def test_timings_and_usage() -> None:
    b = bench(program=ScriptedProgram(prefill_chunk=2))
    handle = b.submit(prompt=4, new=3)
    b.clock.advance(1.0)
    b.step()  # admitted at 1, first chunk
    b.clock.advance(2.0)
    b.step()  # second chunk and first token at 3
    b.clock.advance(4.0)
    b.step()  # second token at 7
    b.clock.advance(8.0)
    b.settle()  # third token at 15
    result = handle.result()
    assert result.timings == Timings(queue=1.0, prefill=2.0, decode=12.0, total=15.0)
    assert result.usage == Usage(4, 0, 3)


def test_one_log_line_per_request(caplog: pytest.LogCaptureFixture) -> None:
    b = bench()
    with caplog.at_level(logging.INFO, logger="ninfer.engine"):
        handles = [b.submit(new=2), b.submit(new=0)]
        b.settle()
    assert all(handle.finished for handle in handles)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "request=0 reason=length prompt=3 reused=0 completion=2" in lines[1]
    assert "request=1 reason=length prompt=3 reused=0 completion=0" in lines[0]


# --- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "new", "deadline", "kind", "fragments"),
    [
        (0, 1, None, RequestErrorKind.INVALID, ("prompt is empty",)),
        (3, -1, None, RequestErrorKind.INVALID, ("max_new_tokens", "-1")),
        (3, 1, -1.0, RequestErrorKind.INVALID, ("deadline", "-1.0")),
        (3, 1, math.nan, RequestErrorKind.INVALID, ("deadline", "nan")),
        (32, 0, None, RequestErrorKind.CONTEXT_EXCEEDED, ("32 tokens", "max_context is 32")),
        (20, 13, None, RequestErrorKind.CONTEXT_EXCEEDED, ("20 prompt", "max_new_tokens 13", "is 32", "at most 12")),
    ],
)
def test_refusals_before_any_state(
    prompt: int, new: int, deadline: float | None, kind: RequestErrorKind, fragments: tuple[str, ...]
) -> None:
    b = bench()
    with pytest.raises(RequestError) as refusal:
        b.submit(prompt=prompt, new=new, deadline=deadline)
    assert refusal.value.kind is kind
    assert all(fragment in str(refusal.value) for fragment in fragments)
    b.settle()
    assert b.program.log == []
    assert (b.core.stats().refused, b.core.stats().submitted, b.core.stats().outstanding) == (1, 0, 0)


def test_negative_top_logprobs_are_refused() -> None:
    with pytest.raises(RequestError, match="top_logprobs is -1"):
        bench().submit(top_logprobs=-1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("new", 1.5), ("new", "5"), ("new", True), ("top_logprobs", 2.0), ("deadline", "5"), ("session", ["key"])],
)
def test_a_value_of_the_wrong_type_is_refused_and_hurts_nobody_else(field: str, value: object) -> None:
    b = bench()
    ask: Callable[..., object] = b.submit if field != "session" else partial(b.ask, (1, 2, 3))
    with pytest.raises(RequestError, match=re.escape(f"is {value!r}: give")) as refusal:
        ask(**{field: value})
    assert refusal.value.kind is RequestErrorKind.INVALID
    handle = b.submit(new=2)
    b.settle()
    assert handle.result().token_ids == expected(3, 2)
    b.check_clean()


def test_an_infeasible_request_fails_with_the_reason_and_the_next_goes_on() -> None:
    b = bench(program=ScriptedProgram(pages=4))
    large = b.submit(prompt=15, new=2)
    small = b.submit(prompt=3, new=2)
    b.settle()
    assert finish_of(large).reason is FinishReason.ERROR
    with pytest.raises(RequestError, match="needs 5 pages, kv_capacity is 4") as refusal:
        large.result()
    assert refusal.value.kind is RequestErrorKind.INFEASIBLE
    assert small.result().token_ids == expected(3, 2)
    b.check_clean()


# --- outstanding capacity ---------------------------------------------------------------------------------


def test_overload_names_the_numbers_and_the_remedy() -> None:
    b = bench(pending=1)
    handles = [b.submit(first=first) for first in (1, 2, 3)]
    with pytest.raises(RequestError) as refusal:
        b.submit()
    assert refusal.value.kind is RequestErrorKind.OVERLOADED
    for fragment in ("3 requests", "max_pending_requests 1", "max_concurrency 2", "retry"):
        assert fragment in str(refusal.value)
    b.settle()
    assert all(handle.finished for handle in handles)


def test_capacity_needs_both_the_end_and_the_consumer() -> None:
    b = bench(pending=0, program=ScriptedProgram(lanes=1))
    handle = b.submit()
    b.settle()
    assert handle.finished
    assert b.core.stats().outstanding == 1
    with pytest.raises(RequestError, match="outstanding"):
        b.submit()
    handle.result()
    assert b.core.stats().outstanding == 0
    abandoned = b.submit()
    abandoned.abandon()
    assert b.core.stats().outstanding == 1
    b.settle()
    assert b.core.stats().outstanding == 0


def test_reading_the_finish_releases_the_consumer_side() -> None:
    b = bench()
    handle = b.submit(new=1)
    b.settle()
    events = []
    while (event := handle.next_event(timeout=0)) is not None:
        assert b.core.stats().outstanding == 1 or isinstance(event, Finish)
        events.append(event)
    assert b.core.stats().outstanding == 0
    assert isinstance(events[-1], Finish)
    assert handle.next_event() is None
    assert handle.result().token_ids == expected(3, 1)


def test_a_dropped_handle_cancels_and_frees_its_share() -> None:
    b = bench()
    b.submit(new=20)
    b.settle()
    assert b.core.stats().finished[FinishReason.CANCELLED] == 1
    assert b.core.stats().outstanding == 0
    b.check_clean()


def test_leaving_the_context_abandons() -> None:
    b = bench()
    with b.submit(new=20) as handle:
        b.step(3)
    b.settle()
    assert finish_of(handle).reason is FinishReason.CANCELLED
    assert b.core.stats().outstanding == 0


def test_capacity_releases_in_either_order_and_once() -> None:
    capacity = OutstandingCapacity(1)
    lease = capacity.acquire()
    assert lease is not None
    assert capacity.acquire() is None
    lease.consumer_released = True
    assert capacity.outstanding == 1
    lease.response_done = True
    again = capacity.acquire()
    assert again is not None
    lease.response_done = True
    assert capacity.outstanding == 1


def test_waiting_for_an_event_times_out() -> None:
    handle = bench().submit()
    with pytest.raises(TimeoutError):
        handle.next_event(timeout=0)
    with pytest.raises(TimeoutError):
        handle.result(timeout=0)


# --- results and stats ------------------------------------------------------------------------------------


def test_aggregation_joins_channels_and_parses_complete_tool_calls() -> None:
    finish = Finish(FinishReason.TOOL_CALLS, Usage(1, 0, 4), Timings(0, 0, 0, 0))
    result = aggregate(
        [
            GenerationStart(1, 0),
            Delta(Channel.REASONING, "why", (1,)),
            Delta(Channel.CONTENT, "a", (2,)),
            Delta(Channel.CONTENT, "b", (3,)),
            ToolCallDelta(0, "f", '{"x":'),
            ToolCallDelta(1, "g", ""),
            ToolCallDelta(0, None, " [1]}"),
            ToolCallDelta(2, "cut", '{"y'),
            finish,
        ]
    )
    assert (result.text, result.reasoning, result.token_ids) == ("ab", "why", (1, 2, 3))
    assert result.tool_calls == (ToolCall("f", {"x": [1]}), ToolCall("g", {}))


def test_stats_count_what_happened() -> None:
    b = bench()
    handles = [b.submit(new=3, first=first) for first in (1, 10, 20)]
    assert (b.core.stats().waiting, b.core.stats().outstanding) == (3, 3)
    b.settle()
    stats = b.core.stats()
    assert stats.availability is Availability.READY
    assert (stats.submitted, stats.finished[FinishReason.LENGTH], stats.capacity) == (3, 3, 10)
    assert (stats.prompt_tokens, stats.completion_tokens) == (9, 9)
    assert (stats.prefill_units, stats.decode_rows, stats.resource_transitions) == (3, 6, 6)
    assert stats.occupancy is not None
    axis = stats.occupancy.axes[0]
    assert (axis.allocated, axis.reserved, axis.available) == (0, 0, axis.capacity)
    assert all(
        handle.result().token_ids == expected(3, 3, first) for handle, first in zip(handles, (1, 10, 20), strict=True)
    )
