"""`ninfer run`: what is asked, what goes where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ninfer.errors import RequestError, RequestErrorKind
from ninfer.types import (
    ChatPrompt,
    EngineOptions,
    FinishReason,
    KvDtype,
    Message,
    Sampling,
    StopConditions,
    Tool,
    ToolCall,
    Usage,
)
from tests.cli.conftest import Invoke
from tests.cli.fakes import Answer, FakeEngine


def test_text_goes_to_stdout_and_statistics_to_stderr(invoke: Invoke, model: Path, engine: FakeEngine) -> None:
    result = invoke("run", model, "--prompt", "Hello")
    assert result.exit_code == 0
    assert result.stdout == "An answer.\n"
    assert "2 generated" in result.stderr
    assert "2.0 tokens/s" in result.stderr
    assert "stop" in result.stderr


def test_an_answer_that_ends_its_line_gets_no_second_line_end(invoke: Invoke, model: Path, engine: FakeEngine) -> None:
    engine.script.append(Answer(content=("line\n",)))
    assert invoke("run", model, "--prompt", "x").stdout == "line\n"


def test_reasoning_and_tool_calls_go_to_stderr(invoke: Invoke, model: Path, engine: FakeEngine) -> None:
    engine.script.append(Answer(content=("42",), reasoning=("Hmm", "…"), tool_calls=(ToolCall("look_up", {}),)))
    result = invoke("run", model, "--prompt", "x")
    assert result.stdout == "42\n"
    assert "Hmm…" in result.stderr
    assert "tool call look_up({})" in result.stderr
    assert "\x1b" not in result.stderr


def test_json_is_one_object_with_the_promised_members(invoke: Invoke, model: Path, engine: FakeEngine) -> None:
    engine.script.append(
        Answer(("Yes",), ("why",), (ToolCall("f", {"a": 1}, "call_1"),), FinishReason.TOOL_CALLS, usage=Usage(7, 3, 5))
    )
    result = invoke("run", model, "--prompt", "x", "--json")
    assert json.loads(result.stdout) == {
        "text": "Yes",
        "reasoning": "why",
        "tool_calls": [{"id": "call_1", "name": "f", "arguments": {"a": 1}}],
        "token_ids": [2],
        "finish_reason": "tool_calls",
        "usage": {"prompt_tokens": 7, "reused_tokens": 3, "completion_tokens": 5},
        "timings": {"queue": 0.01, "prefill": 0.2, "decode": 0.5, "total": 0.71},
    }


def test_every_generation_option_reaches_the_request(
    invoke: Invoke, model: Path, engine: FakeEngine, tmp_path: Path
) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}")
    options = (
        "--max-new 9 --temperature 0.5 --top-p 0.9 --top-k 11 --min-p 0.1 --presence-penalty 0.2"
        " --frequency-penalty 0.3 --repetition-penalty 1.1 --seed 18446744073709551615 --stop A --stop B"
        f" --stop-token-id 5 --stop-token-id 6 --no-thinking --reasoning-effort low --chat-template {template}"
    )
    assert invoke("run", model, "--prompt", "x", *options.split()).exit_code == 0
    [request] = engine.requests
    assert request.max_new_tokens == 9
    assert request.sampling == Sampling(0.5, 0.9, 11, 0.1, 0.2, 0.3, 1.1, 2**64 - 1)
    assert request.stops == StopConditions(("A", "B"), (5, 6))
    assert request.prompt == ChatPrompt(
        (Message("user", "x"),), thinking=False, reasoning_effort="low", template="{{ messages }}"
    )


def test_nothing_given_leaves_everything_to_the_model(invoke: Invoke, model: Path, engine: FakeEngine) -> None:
    invoke("run", model, "--prompt", "x")
    [request] = engine.requests
    assert request.sampling == Sampling()
    assert request.stops == StopConditions()
    assert request.max_new_tokens is None
    assert request.prompt == ChatPrompt((Message("user", "x"),))
    assert engine.opened is not None
    assert engine.opened[1] == EngineOptions()


def test_every_engine_option_reaches_the_engine(invoke: Invoke, model: Path, engine: FakeEngine) -> None:
    options = (
        "--device cpu --threads 3 --max-context 1000 --kv-capacity 20 --kv-dtype int8 --prefill-chunk 256"
        " --max-concurrency 2 --max-pending-requests 5 --concurrent-prefill --no-cuda-graph"
    )
    invoke("run", model, "--prompt", "x", *options.split())
    assert engine.opened is not None
    assert engine.opened[1] == EngineOptions("cpu", 3, 1000, 20, KvDtype.INT8, 256, 2, 5, True, cuda_graph=False)


def test_a_capacity_is_a_number_or_auto(invoke: Invoke, model: Path, engine: FakeEngine) -> None:
    invoke("run", model, "--prompt", "x", "--kv-capacity", "auto")
    assert engine.opened is not None
    assert engine.opened[1] == EngineOptions()
    refused = invoke("run", model, "--prompt", "x", "--kv-capacity", "much")
    assert refused.exit_code == 2
    assert "'much' is no number of pages" in refused.stderr


def test_greedy_keeps_penalties_and_seed(invoke: Invoke, model: Path, engine: FakeEngine) -> None:
    invoke("run", model, "--prompt", "x", "--greedy")
    invoke("run", model, "--prompt", "x", "--greedy", "--repetition-penalty", "1.3", "--seed", "4")
    plain, penalised = (request.sampling for request in engine.requests)
    assert plain == Sampling.greedy()
    assert penalised == Sampling(0.0, 1.0, 0, 0.0, 0.0, 0.0, 1.3, 4)


def test_prompts_come_from_stdin_and_files_exactly(
    invoke: Invoke, model: Path, engine: FakeEngine, tmp_path: Path
) -> None:
    path = tmp_path / "p.txt"
    path.write_text("from a file\n", encoding="utf-8")
    invoke("run", model, "--prompt", "-", stdin="päd\n")
    invoke("run", model, "--prompt-file", path)
    invoke("run", model, "--prompt-file", "-", stdin="piped")
    asked = [
        request.prompt.messages[0].content for request in engine.requests if isinstance(request.prompt, ChatPrompt)
    ]
    assert asked == ["päd\n", "from a file\n", "piped"]


def test_messages_and_tools_from_json(invoke: Invoke, model: Path, engine: FakeEngine, tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    both, bare, tools = tmp_path / "both.json", tmp_path / "bare.json", tmp_path / "tools.json"
    both.write_text(json.dumps({"messages": messages, "tools": [tool]}))
    bare.write_text(json.dumps(messages))
    tools.write_text(json.dumps([tool]))
    invoke("run", model, "--messages", both)
    invoke("run", model, "--messages", bare, "--tools", tools)
    invoke("run", model, "--messages", "-", stdin=json.dumps(messages))
    expected = (Message("system", "S"), Message("user", "U"))
    with_tools = ChatPrompt(expected, (Tool("f", "", {"type": "object"}),))
    assert [request.prompt for request in engine.requests] == [with_tools, with_tools, ChatPrompt(expected)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not valid JSON"),
        (b"[]", "non-empty list"),
        (b'[{"role": "user", "content": 5}]', "messages[0].content"),
        (b'{"messages": [{"role": "user"}], "extra": 1}', "'extra'"),
        (b"\xff", "offset 0"),
        (b"", "empty"),
    ],
)
def test_bad_messages_are_refused_before_any_model_loads(
    invoke: Invoke, model: Path, engine: FakeEngine, tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(content)
    result = invoke("run", model, "--messages", path)
    assert result.exit_code == 1
    assert said in result.stderr
    assert "m.json" in result.stderr
    assert engine.opened is None


def test_missing_and_broken_prompt_files(invoke: Invoke, model: Path, engine: FakeEngine, tmp_path: Path) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes(b"abc\xe4")
    cases = {str(tmp_path / "no.txt"): "no such file", str(tmp_path): "directory", str(latin): "0xe4 at offset 3"}
    for path, said in cases.items():
        result = invoke("run", model, "--prompt-file", path)
        assert result.exit_code == 1
        assert said in result.stderr
        assert path in result.stderr


def test_an_empty_prompt_is_refused(invoke: Invoke, model: Path, engine: FakeEngine) -> None:
    result = invoke("run", model, "--prompt", "")
    assert result.exit_code == 1
    assert "--prompt" in result.stderr


@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_a_failed_generation_exits_1(invoke: Invoke, model: Path, engine: FakeEngine, json_flag: list[str]) -> None:
    engine.script.append(Answer(("par",), reason=FinishReason.ERROR, error="a unit failed"))
    result = invoke("run", model, "--prompt", "x", *json_flag)
    assert result.exit_code == 1
    assert "a unit failed" in result.stderr


def test_a_refused_request_exits_1_with_its_reason(invoke: Invoke, model: Path, engine: FakeEngine) -> None:
    engine.script.append(RequestError(RequestErrorKind.CONTEXT_EXCEEDED, "900 tokens do not fit 512"))
    result = invoke("run", model, "--prompt", "x")
    assert result.exit_code == 1
    assert result.stderr.endswith("error: 900 tokens do not fit 512\n")
    assert engine.closed
