"""Reading traces: both forms, order, limits, and errors that name the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ninfer.bench.synthesis import synthesise
from ninfer.bench.trace import Conversation, TokenCount, TraceForm, load_trace
from ninfer.bench.workload import build_workload
from ninfer.errors import ConfigError
from ninfer.types import ChatPrompt, Message, Prompt, Sampling, TokenPrompt, Tool

USER = {"role": "user", "content": "Hi"}


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_our_own_form(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    path = write(
        tmp_path / "t.jsonl",
        {"timestamp": 500, "messages": [USER], "tools": [tool], "output_length": 7, "session": "s"},
        {"timestamp": 1500, "input_length": 20, "output_length": 3},
    )
    trace = load_trace(path)
    assert trace.form is TraceForm.NINFER
    first, second = trace.requests
    assert (first.arrival, second.arrival) == (0.0, 1.0)
    assert first.prompt == Conversation((Message("user", "Hi"),), (Tool("f"),))
    assert (first.output_tokens, first.session) == (7, "s")
    assert second.prompt == TokenCount(20)


def test_mooncake_form_is_recognised(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", {"timestamp": 27, "input_length": 700, "output_length": 5, "hash_ids": [0, 9]})
    trace = load_trace(path)
    assert trace.form is TraceForm.MOONCAKE
    assert trace.requests[0].prompt == TokenCount(700, (0, 9))


def test_requests_are_ordered_by_arrival_and_limited_by_file_order(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        *({"timestamp": time, "input_length": 1, "output_length": 1} for time in (3000, 1000, 2000, 0)),
    )
    assert [request.index for request in load_trace(path).requests] == [3, 1, 2, 0]
    limited = load_trace(path, limit=2).requests
    assert [(request.index, request.arrival) for request in limited] == [(1, 0.0), (0, 2.0)]


def test_a_limit_stops_reading(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", {"input_length": 1, "output_length": 1})
    path.write_text(path.read_text() + "\nnot json\n")
    assert len(load_trace(path, limit=1).requests) == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: not a JSON object"),
        ("[]", "line 2: not a JSON object"),
        ('{"output_length": 1}', "neither messages nor input_length"),
        ('{"input_length": 1}', "output_length must be an integer"),
        ('{"input_length": 0, "output_length": 1}', "input_length must be at least 1"),
        ('{"input_length": true, "output_length": 1}', "input_length must be an integer"),
        ('{"input_length": 1, "output_length": 1, "timestamp": -1}', "timestamp"),
        ('{"input_length": 1, "output_length": 1, "timestamp": "0"}', "timestamp"),
        ('{"input_length": 1, "output_length": 1, "color": 1}', "'color'"),
        ('{"input_length": 513, "output_length": 1, "hash_ids": [1, 2, 3]}', "hash_ids"),
        ('{"input_length": 5, "output_length": 1, "hash_ids": 3}', "hash_ids must be a list"),
        ('{"messages": [], "output_length": 1}', "messages must be a non-empty list"),
        ('{"messages": [{"role": "user", "content": 1}], "output_length": 1}', "messages[0].content"),
        ('{"messages": [{"role": "user"}], "input_length": 5, "output_length": 1}', "'input_length'"),
        ('{"input_length": 1, "output_length": 1, "session": 3}', "session"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"input_length": 1, "output_length": 1}\n' + line + "\n")
    with pytest.raises(ConfigError) as caught:
        load_trace(path)
    assert said in str(caught.value)
    assert f"{path}: line 2" in str(caught.value)


def test_empty_files_and_folders_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n")
    with pytest.raises(ConfigError, match="no request"):
        load_trace(empty)
    with pytest.raises(ConfigError, match="directory"):
        load_trace(tmp_path)


def test_equal_hashes_make_equal_blocks_and_nothing_else_does() -> None:
    pool = tuple(range(100, 164))
    one = synthesise(TokenCount(1300, (4, 5, 6)), "1", pool)
    two = synthesise(TokenCount(1100, (4, 5, 7)), "2", pool)
    assert len(one) == 1300
    assert len(two) == 1100
    assert one[:1024] == two[:1024]
    assert one[1024:1100] != two[1024:1100]
    assert one == synthesise(TokenCount(1300, (4, 5, 6)), "other name", pool)
    assert set(one) <= set(pool)


def test_tokens_beyond_the_hashes_are_the_requests_own() -> None:
    pool = tuple(range(64))
    one, two = (synthesise(TokenCount(600, (1,)), name, pool) for name in ("1", "2"))
    assert one[:512] == two[:512]
    assert one[512:] != two[512:]
    assert synthesise(TokenCount(40), "1", pool) == synthesise(TokenCount(40), "1", pool)


def test_synthesis_does_not_change_between_versions() -> None:
    assert synthesise(TokenCount(6, (7,)), "x", range(1000)) == (827, 485, 463, 79, 793, 931)


def test_requests_beyond_the_context_are_skipped_and_counted(tmp_path: Path) -> None:
    trace = load_trace(
        write(
            tmp_path / "t.jsonl",
            {"input_length": 90, "output_length": 10},
            {"input_length": 91, "output_length": 10},
            {"messages": [USER], "output_length": 60},
            {"messages": [USER], "output_length": 61},
        )
    )
    counted: list[Prompt] = []

    def count(prompt: Prompt) -> int:
        counted.append(prompt)
        return 40

    work = build_workload(trace, 100, range(50), count)
    assert work.skipped == 2
    assert [item.index for item in work.items] == [0, 2]
    by_count, by_text = (item.request for item in work.items)
    assert isinstance(by_count.prompt, TokenPrompt)
    assert len(by_count.prompt.token_ids) == 90
    assert by_count.stops.ignore_eos
    assert by_text.prompt == ChatPrompt((Message("user", "Hi"),))
    assert not by_text.stops.ignore_eos
    assert by_text.max_new_tokens == 60
    assert by_text.sampling == Sampling.greedy()
    assert counted == [by_text.prompt] * 2


def test_the_example_trace_is_valid() -> None:
    path = Path(__file__).parents[2] / "examples" / "traces" / "demo.jsonl"
    trace = load_trace(path)
    assert trace.form is TraceForm.NINFER
    assert len(trace.requests) >= 8
    assert any(request.session for request in trace.requests)


@pytest.mark.shared
def test_the_public_mooncake_trace_is_read_whole(shared_dir: Path) -> None:
    trace = load_trace(shared_dir / "data" / "traces" / "mooncake_conversation_2000.jsonl")
    assert trace.form is TraceForm.MOONCAKE
    assert len(trace.requests) == 2000
    first = trace.requests[0].prompt
    assert isinstance(first, TokenCount)
    assert first.tokens == 6758
