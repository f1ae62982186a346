"""Conversations to replay: a built-in trace of agents at work, or recorded ones from a file."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninfer.prompt_input.messages import parse_messages, parse_tools
from ninfer.types import Message, Tool, ToolCall

WORDS = ("river", "stone", "light", "paper", "garden", "window", "letter", "number", "silver", "morning", "table")


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: `drop` messages are taken back from the end of the history, `add` follow, then the model is asked.

    `recorded` is what the history goes on with; None takes the model's own answer.
    """

    add: tuple[Message, ...]
    drop: int = 0
    recorded: Message | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """The turns of one session."""

    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...] = ()


def agent_trace(conversations: int = 3) -> list[Conversation]:
    """Conversations over one system message and two tools, the same on every run."""
    tools = (
        Tool("search", "Find files that contain a text.", {"type": "object", "properties": {"text": {}}}),
        Tool("read", "Read a file.", {"type": "object", "properties": {"path": {}}}),
    )
    return [Conversation(tuple(_agent_turns(random.Random(number))), tools) for number in range(conversations)]


def _agent_turns(rng: random.Random) -> Iterator[Turn]:
    """A task done with tools, a follow-up, the follow-up edited, its answer regenerated, and another task."""
    system = Message("system", f"You are a careful assistant who works on files. {_words(random.Random(99), 60)}")
    task = Message("user", f"Please look into this: {_words(rng, 30)}")
    yield from _task(rng, (system, task))
    yield Turn((Message("user", f"And this? {_words(rng, 12)}"),))
    yield Turn((Message("user", f"I meant this: {_words(rng, 12)}"),), drop=2)
    yield Turn((), drop=1)
    yield from _task(rng, (Message("user", f"Now something else: {_words(rng, 30)}"),))
    yield Turn((Message("user", "Thank you. In one sentence?"),))


def _task(rng: random.Random, opening: tuple[Message, ...]) -> Iterator[Turn]:
    search, read = ToolCall("search", {"text": _words(rng, 2)}), ToolCall("read", {"path": _words(rng, 1)})
    yield Turn(opening, recorded=Message("assistant", "", tool_calls=(search,)))
    yield Turn((Message("tool", _words(rng, 60)),), recorded=Message("assistant", "", tool_calls=(read,)))
    yield Turn((Message("tool", _words(rng, 90)),))


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


def load_trace(path: Path) -> list[Conversation]:
    """Conversations from a file of JSON lines."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [_conversation(json.loads(line), f"{path}:{number}") for number, line in enumerate(lines, 1)]


def _conversation(value: Any, where: str) -> Conversation:
    fields = value if isinstance(value, dict) else {"messages": value}
    turns: list[Turn] = []
    added: list[Message] = []
    for message in parse_messages(fields.get("messages"), where):
        if message.role == "assistant" and added:
            turns.append(Turn(tuple(added), recorded=message))
            added = []
        else:
            added.append(message)
    if added:
        turns.append(Turn(tuple(added)))
    return Conversation(tuple(turns), parse_tools(fields.get("tools") or [], where))
