"""Mixes the skills into dialogues of one to four turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import smalltalk
from data import Dialogue, Message, Turn, arithmetic, copy, is_held_out, json_extract, tool_call

SKILLS: dict[str, Callable[[Random], Turn]] = {
    "arithmetic": arithmetic,
    "copy": copy,
    "json": json_extract,
    "tools": tool_call,
    "capitals": smalltalk.capital,
    "identity": smalltalk.identity,
    "small_talk": smalltalk.small_talk,
    "decline": smalltalk.decline,
}
WEIGHTS = {
    "arithmetic": 45,
    "copy": 35,
    "json": 10,
    "tools": 10,
    "capitals": 6,
    "identity": 6,
    "small_talk": 5,
    "decline": 3,
}
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "Answer briefly.",
    "Be polite and short.",
    "You are a small demo model.",
    "You help the user.",
)


def draw(rng: Random, skill: str, held_out: bool) -> Turn:
    """Draw turns of `skill` until one lies on the wanted side of the split."""
    while True:
        turn = SKILLS[skill](rng)
        if is_held_out(turn.key) == held_out:
            return turn


def draw_remember(rng: Random) -> tuple[Turn, Turn]:
    while True:
        pair = smalltalk.remember(rng)
        if not any(is_held_out(turn.key) for turn in pair):
            return pair


def turn_messages(turn: Turn, thinking: bool, with_tool_reply: bool) -> list[Message]:
    """Return the user's message and the assistant's (and the tool's) that answer it."""
    answer = turn.answer if thinking or turn.plain_answer is None else turn.plain_answer
    reply: Message = {"role": "assistant", "content": answer}
    if thinking:
        reply["reasoning_content"] = turn.think
    if turn.tool_calls:
        calls = [{"function": {"name": n, "arguments": dict(args)}} for n, args in turn.tool_calls]
        reply["tool_calls"] = [{"type": "function", **call} for call in calls]
    messages: list[Message] = [{"role": "user", "content": turn.user}, reply]
    if turn.tool_calls and with_tool_reply:
        final: Message = {"role": "assistant", "content": turn.after_tool}
        if thinking:
            final["reasoning_content"] = "The tool has answered."
        messages += [{"role": "tool", "content": turn.tool_result}, final]
    return messages


def dialogue_of(rng: Random, turns: list[Turn], thinking: bool, with_tool_reply: bool) -> Dialogue:
    """Chain turns; tools declared by any of them are declared for the whole dialogue."""
    tools: list[dict[str, object]] = []
    for turn in turns:
        tools += [t for t in turn.tools if t not in tools]
    messages: list[Message] = []
    if rng.random() < 0.15:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
    for turn in turns[:-1]:
        messages += turn_messages(turn, thinking, True)
    return Dialogue(messages + turn_messages(turns[-1], thinking, with_tool_reply), thinking, tools)


def training_dialogue(rng: Random, turns_limit: int = 3) -> Dialogue:
    """Draw one training dialogue: 75 % single-turn, the rest with up to `turns_limit` turns."""
    names, weights = zip(*WEIGHTS.items(), strict=True)
    count = 1 if rng.random() < 0.75 else rng.randint(2, turns_limit)
    turns = [draw(rng, skill, False) for skill in rng.choices(names, weights, k=count)]
    if count > 1 and rng.random() < 0.3:
        told, asked = draw_remember(rng)
        turns = [told, *turns[1:-1], asked] if rng.random() < 0.8 else [*turns[:-1], told]
    if not any(t.tools for t in turns) and rng.random() < 0.04:
        turns[-1] = with_idle_tools(rng, turns[-1])
    return dialogue_of(rng, turns, rng.random() < 0.5, rng.random() < 0.6)


def with_idle_tools(rng: Random, turn: Turn) -> Turn:
    """Declare tools that the turn does not need, so that the model learns to leave them alone."""
    return replace(turn, tools=tool_call(rng).tools)
