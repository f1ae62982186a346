"""OpenAI-style JSON messages and tools → owning values; every error names the JSON path."""

from __future__ import annotations

import json

from ninfer.errors import RequestError, RequestErrorKind
from ninfer.types import ContentKind, ContentPart, JsonValue, Message, Tool, ToolCall

_MESSAGE_FIELDS = frozenset(
    {"role", "content", "reasoning", "reasoning_content", "tool_calls", "tool_call_id", "name"},
)


def parse_messages(value: JsonValue, where: str = "messages") -> tuple[Message, ...]:
    """Read a non-empty list of messages. Raises RequestError(INVALID) naming the path below `where`."""
    if not isinstance(value, list) or not value:
        raise _invalid(where, "must be a non-empty list of messages")
    return tuple(_message(item, f"{where}[{index}]") for index, item in enumerate(value))


def parse_tools(value: JsonValue, where: str = "tools") -> tuple[Tool, ...]:
    """Read a list of tools, each bare or wrapped as `{"type": "function", "function": {...}}`."""
    if not isinstance(value, list):
        raise _invalid(where, "must be a list of tools")
    return tuple(_tool(item, f"{where}[{index}]") for index, item in enumerate(value))


def _message(value: JsonValue, where: str) -> Message:
    fields = _object(value, where)
    unknown = [key for key in fields if key not in _MESSAGE_FIELDS and fields[key]]
    if unknown:
        raise _invalid(f"{where}.{unknown[0]}", "is not a field of a message")
    role = _text(fields.get("role"), f"{where}.role")
    if not role:
        raise _invalid(f"{where}.role", "must not be empty")
    return Message(
        role=role,
        content=_content(fields.get("content"), f"{where}.content"),
        reasoning=_reasoning(fields, where),
        tool_calls=_tool_calls(fields.get("tool_calls"), f"{where}.tool_calls"),
        tool_call_id=_optional_text(fields.get("tool_call_id"), f"{where}.tool_call_id"),
        name=_optional_text(fields.get("name"), f"{where}.name"),
    )


def _reasoning(fields: dict[str, JsonValue], where: str) -> str | None:
    key = "reasoning_content" if fields.get("reasoning_content") is not None else "reasoning"
    return _optional_text(fields.get(key), f"{where}.{key}")


def _content(value: JsonValue, where: str) -> str | tuple[ContentPart, ...] | None:
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise _invalid(where, "must be a string, a list of parts, or null")
    return tuple(_part(item, f"{where}[{index}]") for index, item in enumerate(value))


def _part(value: JsonValue, where: str) -> ContentPart:
    fields = _object(value, where)
    kind = _text(fields.get("type"), f"{where}.type")
    if kind != "text":
        raise _invalid(f"{where}.type", f"is {kind!r}; only 'text' parts can be read")
    return ContentPart(ContentKind.TEXT, _text(fields.get("text"), f"{where}.text"))


def _tool_calls(value: JsonValue, where: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise _invalid(where, "must be a list")
    return tuple(_tool_call(item, f"{where}[{index}]") for index, item in enumerate(value))


def _tool_call(value: JsonValue, where: str) -> ToolCall:
    outer = _object(value, where)
    inner, path = _unwrap(outer, where)
    return ToolCall(
        name=_text(inner.get("name"), f"{path}.name"),
        arguments=_arguments(inner.get("arguments"), f"{path}.arguments"),
        id=_optional_text(outer.get("id"), f"{where}.id") or "",
    )


def _arguments(value: JsonValue, where: str) -> dict[str, JsonValue]:
    """Arguments come as JSON text (OpenAI's wire form) or as the object itself."""
    if not isinstance(value, str):
        return _object(value, where)
    try:
        parsed: JsonValue = json.loads(value)
    except ValueError as error:
        raise _invalid(where, f"is not valid JSON text: {error}") from None
    return _object(parsed, where)


def _tool(value: JsonValue, where: str) -> Tool:
    inner, path = _unwrap(_object(value, where), where)
    return Tool(
        name=_text(inner.get("name"), f"{path}.name"),
        description=_optional_text(inner.get("description"), f"{path}.description") or "",
        parameters=_object(inner.get("parameters") or {}, f"{path}.parameters"),
    )


def _unwrap(fields: dict[str, JsonValue], where: str) -> tuple[dict[str, JsonValue], str]:
    if "function" not in fields:
        return fields, where
    return _object(fields["function"], f"{where}.function"), f"{where}.function"


def _object(value: JsonValue, where: str) -> dict[str, JsonValue]:
    if not isinstance(value, dict):
        raise _invalid(where, "must be an object")
    return value


def _text(value: JsonValue, where: str) -> str:
    if not isinstance(value, str):
        raise _invalid(where, "must be a string")
    return value


def _optional_text(value: JsonValue, where: str) -> str | None:
    return None if value is None else _text(value, where)


def _invalid(where: str, problem: str) -> RequestError:
    return RequestError(RequestErrorKind.INVALID, f"{where} {problem}")
