"""What a command is asked about: text, files, messages and tools, with `-` for standard input."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ninfer.cli.failures import CommandError, UsageMistake
from ninfer.cli.flags import TemplateFlags
from ninfer.prompt_input.messages import parse_messages, parse_tools
from ninfer.types import ChatPrompt, JsonValue, Message, Tool

STDIN = "-"


def require_one(**values: object) -> str:
    """The name of the only value given. Raises UsageMistake naming the flags otherwise."""
    given = [name for name, value in values.items() if value is not None]
    if len(given) == 1:
        return given[0]
    flags = [f"--{name.replace('_', '-')}" for name in values]
    choice = f"{', '.join(flags[:-1])} or {flags[-1]}"
    raise UsageMistake(f"give {'only ' if given else ''}one of {choice}")


def text_argument(value: str, flag: str) -> str:
    """The text of an argument, or all of standard input for `-`. It must not be empty."""
    text = read_stdin() if value == STDIN else value
    if not text:
        raise CommandError(f"{flag}: the text is empty: give at least one character")
    return _encodable(text, flag)


def text_file(name: str, flag: str) -> str:
    """The text of a UTF-8 file (`-`: standard input). It must not be empty."""
    text = read_stdin() if name == STDIN else read_utf8(Path(name))
    if not text:
        raise CommandError(f"{flag}: {name} is empty: give at least one character")
    return text


def read_stdin() -> str:
    """All of standard input, as UTF-8."""
    return decode_utf8(sys.stdin.buffer.read(), "standard input")


def read_utf8(path: Path) -> str:
    """A whole UTF-8 file. Raises CommandError naming the file, and the offset of a byte that is not UTF-8."""
    if path.is_dir():
        raise CommandError(f"{path} is a directory: name a file")
    if not path.exists():
        raise CommandError(f"{path}: no such file")
    return decode_utf8(path.read_bytes(), str(path))


def decode_utf8(data: bytes, name: str) -> str:
    """Decode, or say at which byte offset `name` stops being UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise CommandError(
            f"{name}: byte 0x{byte:02x} at offset {error.start} is not UTF-8: convert the file to UTF-8"
        ) from None


def read_conversation(name: str, tools_name: str | None) -> tuple[tuple[Message, ...], tuple[Tool, ...]]:
    """Messages from a JSON file: a list, or an object with `messages` and perhaps `tools`."""
    value = _json(name)
    content = value if isinstance(value, dict) else {"messages": value}
    unknown = sorted(content.keys() - {"messages", "tools"})
    if unknown:
        raise CommandError(f"{name}: {unknown[0]!r} is not a member: give messages and, if any, tools")
    tools = content.get("tools") or [] if tools_name is None else _json(tools_name)
    return (
        parse_messages(content.get("messages"), f"{name}: messages"),
        parse_tools(tools, f"{tools_name or name}: tools"),
    )


def chat_prompt(messages: Sequence[Message], tools: Sequence[Tool], flags: TemplateFlags) -> ChatPrompt:
    """A conversation with the template options of the command line."""
    return ChatPrompt(
        messages=tuple(messages),
        tools=tuple(tools),
        thinking=flags.thinking,
        reasoning_effort=flags.reasoning_effort,
        template=None if flags.chat_template is None else read_utf8(flags.chat_template),
    )


def _json(name: str) -> JsonValue:
    text = text_file(name, name)
    try:
        value: JsonValue = json.loads(text)
    except ValueError as error:
        raise CommandError(f"{name}: not valid JSON: {error}") from None
    return value


def _encodable(text: str, flag: str) -> str:
    """Arguments that were not UTF-8 arrive as lone surrogates, which no tokenizer accepts."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CommandError(f"{flag}: character {error.start} is not UTF-8: check the terminal's encoding") from None
    return text
