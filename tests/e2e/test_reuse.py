"""Prefix reuse on the real CPU model: a warm answer has the bits of a cold one, and starts as far on as it may."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ninfer.runtime.instance import ModelInstance
from ninfer.types import (
    BoundaryKind,
    ChatPrompt,
    CheckpointKind,
    EngineOptions,
    Message,
    Prompt,
    Reuse,
    ReuseReason,
    TokenPrompt,
)
from tests.e2e.conftest import Models
from tests.e2e.stepped import Cold, Stepped, greedy, open_instance

OPTIONS = EngineOptions(
    threads=1, max_context=1024, kv_capacity=32, prefill_chunk=128, max_concurrency=2, host_kv_mib=1
)
STRIPPING_TEMPLATE = """\
{%- set ns = namespace(last=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' -}}
{%- if m.role == 'assistant' and m.reasoning_content and loop.index0 > ns.last -%}
{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' -}}
{%- endif -%}
{{- m.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n<think>\\n' -}}{%- endif -%}
"""


@pytest.fixture(scope="module")
def instance(models: Models) -> ModelInstance:
    return open_instance(models("tied", "q8")[1])


@pytest.fixture(scope="module")
def cold(instance: ModelInstance) -> Cold:
    return Cold(instance, OPTIONS)


def ids(seed: int, count: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(256) for _ in range(count))


def check(warm: Stepped, cold: Cold, prompt: Prompt, new: int = 3, session: str | None = None) -> Reuse:
    """Answered as without a cache, from the longest history there was; at least one token is computed."""
    request = greedy(prompt, new, session)
    longest = warm.usable(prompt)
    got, reuse = warm.ask(request)
    assert got == cold(request)
    assert reuse.frontier == longest
    assert (reuse.reason is ReuseReason.HIT) == (longest > 0)
    return reuse


@pytest.mark.parametrize("chunk", [128, 256, 384])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_warm_equals_cold_around_page_borders(instance: ModelInstance, cold: Cold, chunk: int, extra: int) -> None:
    warm = Stepped(instance, replace(OPTIONS, prefill_chunk=chunk))
    first = ids(1, 5 * 64 + extra)
    other = (*first[:165], *ids(2, 70))
    assert check(warm, cold, TokenPrompt(first)) == Reuse(ReuseReason.NO_CHECKPOINT)
    assert check(warm, cold, TokenPrompt(other)) == Reuse(ReuseReason.HIT, 128, 165, CheckpointKind.LONG_ANCHOR)
    assert check(warm, cold, TokenPrompt(first)).frontier == len(first) - 1
    assert check(warm, cold, TokenPrompt(other)).frontier == len(other) - 1
    assert check(warm, cold, TokenPrompt((*first, *ids(3, 1)))).frontier == len(first) - 1
    assert check(warm, cold, TokenPrompt((*first[:-1], 300))).frontier == len(first) - 1
    assert check(warm, cold, TokenPrompt(first[: 4 * 64 + extra])).frontier == 128 + 128 * (extra == 1)


def test_turns_start_from_their_sessions_endpoint(instance: ModelInstance, cold: Cold) -> None:
    warm = Stepped(instance, OPTIONS)
    history = ids(4, 130)
    for turn in range(4):
        reuse = check(warm, cold, TokenPrompt(history), new=5, session="s")
        if turn:
            assert reuse.kind is CheckpointKind.SESSION_ENDPOINT
            assert reuse.frontier == len(history) - 41
        answered = cold(greedy(TokenPrompt(history), 5))[0]
        history = (*history, *answered, *ids(turn, 40))


def test_a_reused_prefix_of_another_session_keeps_its_owner_right(instance: ModelInstance, cold: Cold) -> None:
    """Two sessions extend the same partial page, one after the other and interleaved."""
    warm = Stepped(instance, OPTIONS)
    base = ids(6, 150)
    check(warm, cold, TokenPrompt(base))
    requests = [greedy(TokenPrompt((*base, *ids(seed, 9))), 12, f"s{seed}") for seed in (7, 8)]
    handles = [warm.submit(request) for request in requests]
    warm.settle()
    for request, handle in zip(requests, handles, strict=True):
        assert handle.result(0).token_ids == cold(request)[0]
        assert handle.result(0).usage.reused_tokens == 149
    check(warm, cold, TokenPrompt(base))


# --- conversations ----------------------------------------------------------------------------------------


def talk(*turns: str, system: str = "Be brief.") -> ChatPrompt:
    """A conversation that ends with a question."""
    roles = ("user", "assistant")
    spoken = [Message(roles[i % 2], turn * 4) for i, turn in enumerate(turns)]
    return ChatPrompt((Message("system", system), *spoken))


def test_edits_of_a_conversation(instance: ModelInstance, cold: Cold) -> None:
    warm = Stepped(instance, OPTIONS)
    long = ("What is the weather? ", "It is raining. ", "And in Paris? ", "Sunny. ", "Where should I go? ")
    frontiers = [
        check(warm, cold, prompt, session="s").frontier
        for prompt in (
            talk(*long),
            talk(*long),  # regenerate
            talk(*long[:2], "And in Berlin? ", *long[3:]),  # edit in the middle
            talk(*long[:3]),  # drop the last answer and resend
            talk(*long[:4], "Why? "),
            talk(*long[:2], "And in Berlin? ", *long[3:]),  # the other branch again
        )
    ]
    length = [len(instance.frontend.prepare(prompt).token_ids) for prompt in (talk(*long), talk(*long[:2]))]
    assert frontiers[0] == 0
    assert frontiers[1] > length[0] - 20
    assert frontiers[5] > length[1]


def test_two_branches_alternate_without_growing(instance: ModelInstance, cold: Cold) -> None:
    warm = Stepped(instance, OPTIONS)
    left, right = talk("Tell me a tale. "), talk("Sing me a song. ")
    counts = []
    for _ in range(3):
        assert all(check(warm, cold, prompt, session="s") for prompt in (left, right))
        counts.append(warm.core.stats().checkpoints)
    assert counts[1] == counts[2]


def test_a_first_line_that_always_changes_costs_no_answer(instance: ModelInstance, cold: Cold) -> None:
    warm = Stepped(instance, replace(OPTIONS, device_state_slots=4, host_state_slots=0))
    for minute in range(4):
        prompt = talk("What is the time? ", system=f"{minute} o'clock. " + "Be brief. " * 20)
        assert check(warm, cold, prompt, session="s").frontier < 8
        assert warm.core.stats().checkpoints <= 4


def test_history_without_its_thinking_starts_from_the_turn_closure(instance: ModelInstance, cold: Cold) -> None:
    warm = Stepped(instance, OPTIONS)
    question = talk("Which way is it to the station? ")
    first = replace(question, template=STRIPPING_TEMPLATE)
    thought = Message("assistant", "Straight on.", reasoning="They ask for the way. I know it.")
    tool = replace(first, messages=(*question.messages, thought, Message("tool", "ok")))
    second = replace(first, messages=(*question.messages, thought, Message("user", "Thank you.")))
    check(warm, cold, first, session="s")
    assert check(warm, cold, tool, session="s").frontier > 0
    reuse = check(warm, cold, second, session="s")
    closures = [b.frontier for b in instance.frontend.prepare(first).boundaries if b.kind is BoundaryKind.TURN_CLOSURE]
    assert [reuse.frontier] == closures
    assert "I know it" in (instance.frontend.prepare(tool).text or "")
    assert "I know it" not in (instance.frontend.prepare(second).text or "")
