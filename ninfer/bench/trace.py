"""Request traces: JSON lines in our own form (messages, or token counts) or in Mooncake's (hashed prefix blocks).

Both forms share `timestamp` (milliseconds) and `output_length`; a record says by its other members which it is.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ninfer.errors import ConfigError, NinferError
from ninfer.prompt_input.messages import parse_messages, parse_tools
from ninfer.types import JsonValue, Message, Tool

MOONCAKE_BLOCK_TOKENS = 512


class TraceForm(enum.Enum):
    """How a trace file describes its requests."""

    NINFER = "ninfer"
    MOONCAKE = "mooncake"


@dataclass(frozen=True, slots=True)
class Conversation:
    """A prompt given as messages."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenCount:
    """A prompt of `tokens` tokens. Equal `blocks` (512 tokens each, in order) stand for equal text; may be empty."""

    tokens: int
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: its position in the file, arrival in seconds, prompt, answer budget in tokens, session."""

    index: int
    arrival: float
    prompt: Conversation | TokenCount
    output_tokens: int
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests by arrival time, which starts at 0."""

    form: TraceForm
    requests: tuple[TraceRequest, ...]


def load_trace(path: Path, limit: int | None = None) -> Trace:
    """Read the first `limit` requests of a trace. Raises ConfigError naming file, line and member."""
    requests = tuple(_requests(path, limit))
    if not requests:
        raise ConfigError(f"{path}: the trace holds no request")
    hashed = any(isinstance(request.prompt, TokenCount) and request.prompt.blocks for request in requests)
    begin = min(request.arrival for request in requests)
    return Trace(
        form=TraceForm.MOONCAKE if hashed else TraceForm.NINFER,
        requests=tuple(sorted((_shift(request, begin) for request in requests), key=lambda item: item.arrival)),
    )


def _shift(request: TraceRequest, begin: float) -> TraceRequest:
    return TraceRequest(request.index, request.arrival - begin, request.prompt, request.output_tokens, request.session)


def _requests(path: Path, limit: int | None) -> Iterator[TraceRequest]:
    if path.is_dir():
        raise ConfigError(f"{path} is a directory: name a JSON-lines trace file")
    with path.open("rb") as stream:
        count = 0
        for number, line in enumerate(stream, start=1):
            if limit is not None and count == limit:
                return
            if line.strip():
                yield _parse(line, count, f"{path}: line {number}")
                count += 1


def _parse(line: bytes, index: int, where: str) -> TraceRequest:
    try:
        record: JsonValue = json.loads(line.decode("utf-8"))
    except ValueError as error:
        raise ConfigError(f"{where}: not a JSON object in UTF-8: {error}") from None
    if not isinstance(record, dict):
        raise ConfigError(f"{where}: not a JSON object: a trace has one object per line")
    try:
        return _request(record, index, where)
    except NinferError as error:
        raise ConfigError(str(error)) from None


def _request(record: dict[str, JsonValue], index: int, where: str) -> TraceRequest:
    conversation = "messages" in record
    known = {"timestamp", "output_length", "session"} | (
        {"messages", "tools"} if conversation else {"input_length", "hash_ids"}
    )
    unknown = sorted(record.keys() - known)
    if unknown:
        raise ConfigError(
            f"{where}: {unknown[0]!r} is not a member of a trace record (known: {', '.join(sorted(known))})"
        )
    return TraceRequest(
        index=index,
        arrival=_milliseconds(record.get("timestamp", 0), where) / 1000,
        prompt=_conversation(record, where) if conversation else _token_count(record, where),
        output_tokens=_positive(record.get("output_length"), f"{where}: output_length"),
        session=_session(record.get("session"), where),
    )


def _conversation(record: dict[str, JsonValue], where: str) -> Conversation:
    return Conversation(
        messages=parse_messages(record["messages"], f"{where}: messages"),
        tools=parse_tools(record.get("tools") or [], f"{where}: tools"),
    )


def _token_count(record: dict[str, JsonValue], where: str) -> TokenCount:
    if "input_length" not in record:
        raise ConfigError(f"{where}: neither messages nor input_length: a request needs one of them")
    hashes = record.get("hash_ids") or []
    if not isinstance(hashes, list):
        raise ConfigError(f"{where}: hash_ids must be a list of integers")
    tokens = _positive(record["input_length"], f"{where}: input_length")
    blocks = tuple(_integer(item, f"{where}: hash_ids") for item in hashes)
    if len(blocks) > math.ceil(tokens / MOONCAKE_BLOCK_TOKENS):
        raise ConfigError(f"{where}: {len(blocks)} hash_ids are more than {tokens} tokens have blocks of 512")
    return TokenCount(tokens, blocks)


def _milliseconds(value: JsonValue, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ConfigError(f"{where}: timestamp must be a number of milliseconds, 0 or more")
    return float(value)


def _positive(value: JsonValue, where: str) -> int:
    number = _integer(value, where)
    if number < 1:
        raise ConfigError(f"{where} must be at least 1, not {number}")
    return number


def _integer(value: JsonValue, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{where} must be an integer")
    return value


def _session(value: JsonValue, where: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{where}: session must be a string")
    return value
