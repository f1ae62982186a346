"""OpenAI-style JSON into owning values, and errors that name the path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ninfer.errors import RequestError, RequestErrorKind
from ninfer.prompt_input.messages import parse_messages, parse_tools
from ninfer.types import ContentKind, ContentPart, Message, Tool, ToolCall


def test_every_field_of_a_message() -> None:
    value: Any = [
        {"role": "system", "content": "S", "name": "boss"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "why",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": [1]}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "assistant", "content": "ok", "reasoning": "other spelling"},
    ]
    assert parse_messages(value) == (
        Message("system", "S", name="boss"),
        Message("user", (ContentPart(ContentKind.TEXT, "a"), ContentPart(ContentKind.TEXT, "b"))),
        Message("assistant", None, "why", (ToolCall("f", {"x": [1]}, "c1"),)),
        Message("tool", "42", tool_call_id="c1"),
        Message("assistant", "ok", "other spelling"),
    )


def test_what_clients_send_back_empty_is_ignored() -> None:
    value: Any = [{"role": "assistant", "content": "a", "refusal": None, "annotations": [], "tool_calls": None}]
    assert parse_messages(value) == (Message("assistant", "a"),)


def test_bare_and_wrapped_tools_and_calls_mean_the_same() -> None:
    bare: Any = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert parse_tools([bare, {"type": "function", "function": bare}]) == (Tool("f", "d", {"type": "object"}),) * 2
    call: Any = {"name": "f", "arguments": {"x": 1}}
    wrapped: Any = {"function": call}
    [message] = parse_messages([{"role": "assistant", "tool_calls": [call, wrapped]}])
    assert message.tool_calls == (ToolCall("f", {"x": 1}),) * 2


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({}, "messages must be a non-empty list"),
        ([], "messages must be a non-empty list"),
        (["x"], "messages[0] must be an object"),
        ([{"content": "x"}], "messages[0].role must be a string"),
        ([{"role": ""}], "messages[0].role must not be empty"),
        ([{"role": "user", "content": 1}], "messages[0].content must be"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type is 'image_url'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text must be a string"),
        ([{"role": "user", "contents": "x"}], "messages[0].contents is not a field"),
        ([{"role": "user"}, {"role": "assistant", "tool_calls": {}}], "messages[1].tool_calls must be a list"),
        ([{"role": "assistant", "tool_calls": [{"function": {}}]}], "messages[0].tool_calls[0].function.name"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            "messages[0].tool_calls[0].function.arguments is not valid JSON",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}],
            "messages[0].tool_calls[0].function.arguments must be an object",
        ),
    ],
)
def test_errors_name_the_path(value: Any, path: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_messages(value)
    assert path in str(caught.value)
    assert caught.value.kind is RequestErrorKind.INVALID


def test_tool_errors_name_the_path() -> None:
    cases: list[tuple[Any, str]] = [
        ({}, "tools must be a list"),
        ([{"function": {"name": 3}}], "tools[0].function.name"),
        ([{"name": "f", "parameters": [1]}], "tools[0].parameters must be an object"),
    ]
    for value, path in cases:
        with pytest.raises(RequestError, match=path.replace("[", r"\[")):
            parse_tools(value)


@pytest.mark.shared
def test_recorded_agent_sessions_are_read() -> None:
    path = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces" / "agent_sessions.jsonl"
    sessions = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    parsed = [parse_messages(session["messages"]) for session in sessions]
    assert [len(messages) for messages in parsed] == [len(session["messages"]) for session in sessions]
    assert any(message.tool_calls for messages in parsed for message in messages)
