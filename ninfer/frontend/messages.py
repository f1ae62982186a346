"""Owning messages and tools in the form that chat templates read, checked with the JSON path in every error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ninfer.errors import RequestError, RequestErrorKind
from ninfer.types import ContentKind, ContentPart, Message, Tool, ToolCall

ROLES = ("system", "developer", "user", "assistant", "tool")


def invalid(message: str) -> RequestError:
    """A request that cannot be represented."""
    return RequestError(RequestErrorKind.INVALID, message)


def check_text(text: object, where: str) -> None:
    """Raise RequestError unless `text` is a string of Unicode scalar values."""
    if not isinstance(text, str):
        raise invalid(f"{where}: must be a string, not {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise invalid(
            f"{where}: character {error.start} is a lone surrogate, which is no Unicode text; remove it"
        ) from error


def message_dicts(messages: Sequence[Message]) -> list[dict[str, object]]:
    """Messages as templates see them; absent fields are absent keys. Raises RequestError naming the message."""
    check_messages(messages)
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def check_messages(messages: Sequence[object]) -> None:
    """Raise RequestError unless there are messages and nothing but messages (OpenAI-style dicts, for example)."""
    if not messages:
        raise invalid("messages: at least one message is needed")
    for i, message in enumerate(messages):
        if not isinstance(message, Message):
            raise invalid(f"messages[{i}]: must be a Message, not {type(message).__name__}")


def tool_dicts(tools: Sequence[Tool]) -> list[dict[str, object]] | None:
    """Tools in the OpenAI form (empty description and parameters are left out), or None when there are none."""
    return [_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools)] or None


def plain_json(value: object, where: str) -> object:
    """A JSON value rebuilt from exact built-in types, with every string and key checked."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        check_text(value, where)
        return value
    if isinstance(value, Mapping):
        for key in value:
            check_text(key, f"{where}: key")
        return {key: plain_json(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise invalid(f"{where}: {type(value).__name__} is not a JSON value")


def media_location(messages: Sequence[Message]) -> str | None:
    """The path of the first image or video, if the conversation holds one."""
    for i, message in enumerate(messages):
        for j, part in enumerate(message.content if isinstance(message.content, tuple) else ()):
            if isinstance(part, ContentPart) and part.kind is not ContentKind.TEXT:
                return f"messages[{i}].content[{j}]"
    return None


def _message(message: Message, where: str) -> dict[str, object]:
    if message.role not in ROLES:
        raise invalid(f"{where}.role: {message.role!r} is unknown; use one of {', '.join(ROLES)}")
    if message.tool_calls and message.role != "assistant":
        raise invalid(f"{where}.tool_calls: only an assistant message can call tools, not {message.role!r}")
    result: dict[str, object] = {"role": message.role}
    if message.content is not None:
        result["content"] = _content(message.content, f"{where}.content")
    optional = {
        "reasoning_content": message.reasoning,
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }
    for key, value in optional.items():
        if value is not None:
            check_text(value, f"{where}.{key}")
            result[key] = value
    if message.tool_calls:
        result["tool_calls"] = [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls)]
    return result


def _content(content: str | tuple[ContentPart, ...], where: str) -> object:
    if isinstance(content, str):
        check_text(content, where)
        return content
    if not isinstance(content, tuple):
        raise invalid(f"{where}: must be a string or a tuple of parts, not {type(content).__name__}")
    return [_part(part, f"{where}[{i}]") for i, part in enumerate(content)]


def _part(part: ContentPart, where: str) -> dict[str, object]:
    if not isinstance(part, ContentPart):
        raise invalid(f"{where}: must be a ContentPart, not {type(part).__name__}")
    if part.kind is not ContentKind.TEXT:
        return {"type": part.kind.value}
    check_text(part.text, f"{where}.text")
    return {"type": "text", "text": part.text}


def _call(call: ToolCall, where: str) -> dict[str, object]:
    check_text(call.name, f"{where}.function.name")
    check_text(call.id, f"{where}.id")
    function = {"name": call.name, "arguments": plain_json(call.arguments, f"{where}.function.arguments")}
    identity = {"id": call.id} if call.id else {}
    return {**identity, "type": "function", "function": function}


def _tool(tool: Tool, where: str) -> dict[str, object]:
    check_text(tool.name, f"{where}.function.name")
    check_text(tool.description, f"{where}.function.description")
    function: dict[str, object] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.parameters:
        function["parameters"] = plain_json(tool.parameters, f"{where}.function.parameters")
    return {"type": "function", "function": function}
