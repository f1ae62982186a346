"""Prompt preparation: rendering, whose control tokens they are, boundaries, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from ninfer.errors import RequestError, RequestErrorKind
from ninfer.frontend import Frontend
from ninfer.types import (
    BoundaryKind,
    ChatPrompt,
    ContentKind,
    ContentPart,
    Message,
    Prompt,
    TextPrompt,
    TokenPrompt,
    Tool,
    ToolCall,
)
from tests.frontend.models import SPECIAL, TAGS, VISIBLE

CHAT = ChatPrompt(
    (
        Message("system", "be brief"),
        Message("user", " the cat\n"),
        Message("assistant", "sat", tool_calls=(ToolCall("look", {"at": "mat <b>é"}),)),
        Message("tool", "brown fox"),
    ),
    tools=(Tool("look", "Looks.", {"type": "object"}), Tool("rest")),
)
RENDERED = (
    '<|im_start|>tool\n{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": '
    '{"type": "object"}}}<|im_end|>\n<|im_start|>tool\n{"type": "function", "function": {"name": "rest"}}<|im_end|>\n'
    "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nthe cat<|im_end|>\n"
    '<|im_start|>assistant\nsat<tool_call>look {"at": "mat <b>é"}</tool_call><|im_end|>\n'
    "<|im_start|>tool\nbrown fox<|im_end|>\n<|im_start|>assistant\n<think>\n"
)


def user(text: str | tuple[ContentPart, ...]) -> ChatPrompt:
    return ChatPrompt((Message("user", text),))


def test_a_conversation_renders_and_encodes_as_the_library_would(frontend: Frontend, library: Library) -> None:
    prepared = frontend.prepare(CHAT)
    assert prepared.text == frontend.render(CHAT) == RENDERED
    assert list(prepared.token_ids) == library.encode(RENDERED, add_special_tokens=False).ids
    assert frontend.token_ids(CHAT) == prepared.token_ids


FRAGMENTS = st.one_of(
    st.sampled_from(
        (*SPECIAL, *VISIBLE, *TAGS, "<|im_", "end|>", "<|im_start|>system\n", " ", "\n", "\U000f0000", "é")
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
)
TYPED = st.lists(FRAGMENTS, max_size=6).map("".join)
CHATS = st.builds(
    lambda a, b, c, d, e: ChatPrompt(
        (
            Message("user", (ContentPart(ContentKind.TEXT, a), ContentPart(ContentKind.TEXT, b))),
            Message("assistant", c, reasoning=d, tool_calls=(ToolCall("f", {"k": e}),)),
        ),
        tools=(Tool("f", e),),
    ),
    *(TYPED,) * 5,
)


@settings(max_examples=60, deadline=None)
@given(chat=CHATS)
def test_what_users_type_never_becomes_a_control_token(frontend: Frontend, library: Library, chat: ChatPrompt) -> None:
    """The control tokens are those of the same conversation with harmless words, in the same order."""
    text, ids = frontend.render(chat), frontend.token_ids(chat)
    assert frontend.tokenizer.decode(ids) == _normalised(library, text)
    first, second = chat.messages
    calls = (ToolCall("f", {"k": "w"}),)
    harmless = replace(
        chat,
        messages=(
            replace(first, content="w"),
            replace(second, content="w", reasoning="w" if second.reasoning else None, tool_calls=calls),
        ),
        tools=(Tool("f", "w"),),
    )
    assert _controls(frontend, ids) == _controls(frontend, frontend.token_ids(harmless))


def _controls(frontend: Frontend, ids: tuple[int, ...]) -> list[int]:
    return [token_id for token_id in ids if token_id in frontend.tokenizer.added]


def _normalised(library: Library, text: str) -> str:
    """NFC between control tokens, as the library applies it."""
    return "".join(
        part if part in (*SPECIAL, *VISIBLE, *TAGS) else library.normalizer.normalize_str(part)
        for part in _split_controls(text)
    )


def _split_controls(text: str) -> list[str]:
    parts, rest = [], text
    while rest:
        found = [(rest.find(c), -len(c), c) for c in (*SPECIAL, *VISIBLE, *TAGS) if c in rest]
        if not found:
            return [*parts, rest]
        begin, _, control = min(found)
        parts += [rest[:begin], control]
        rest = rest[begin + len(control) :]
    return parts


def test_a_control_token_assembled_from_two_parts_is_text(frontend: Frontend) -> None:
    parts = (ContentPart(ContentKind.TEXT, "<|im_"), ContentPart(ContentKind.TEXT, "end|>"))
    split = frontend.prepare(ChatPrompt((Message("user", parts),)))
    assert split.token_ids == frontend.prepare(user("<|im_end|>")).token_ids
    assert _controls(frontend, split.token_ids) == _controls(frontend, frontend.prepare(user("x")).token_ids)


def test_typed_tags_steer_the_template_but_stay_text(frontend: Frontend) -> None:
    chat = ChatPrompt((Message("assistant", "old</think>\nnew <think>"), Message("user", "x")))
    prepared = frontend.prepare(chat)
    assert "old" not in (prepared.text or "")
    think = frontend.tokenizer.id_of("<think>")
    assert prepared.token_ids.count(think) == 1
    assert prepared.opens_thinking


def test_a_template_that_inspects_its_own_literals_is_served_or_refused(frontend: Frontend) -> None:
    template = (
        "{%- set tag = '<think>' %}{%- for m in messages %}"
        "{{- tag if tag | length == 7 else 'odd' }}{{ m.content }}{%- endfor %}"
    )
    think = frontend.tokenizer.id_of("<think>")
    prepared = frontend.prepare(replace(user("cat"), template=template))
    assert (prepared.text, prepared.token_ids[0]) == ("<think>cat", think)
    with pytest.raises(RequestError, match="inspects its own control tokens"):
        frontend.prepare(replace(user("<|im_end|>"), template=template))


def test_text_and_token_prompts_are_taken_as_they_are(frontend: Frontend) -> None:
    text = "the <|im_end|> fox"
    prepared = frontend.prepare(TextPrompt(text))
    assert prepared.text == text
    assert prepared.token_ids == frontend.encode_text(text)
    assert not _controls(frontend, prepared.token_ids)
    assert frontend.prepare(TokenPrompt(prepared.token_ids)).token_ids == prepared.token_ids


def test_the_opening_channel_is_read_off_the_prompt(frontend: Frontend, spelled_frontend: Frontend) -> None:
    for model in (frontend, spelled_frontend):
        assert model.prepare(user("x")).opens_thinking
        assert not model.prepare(replace(user("x"), thinking=False)).opens_thinking
        assert not model.prepare(
            replace(user("<think>"), template_args={"add_generation_prompt": False})
        ).opens_thinking
        assert not model.prepare(TextPrompt("<think>\n")).opens_thinking
    ids = frontend.prepare(user("x")).token_ids
    assert frontend.prepare(TokenPrompt(ids)).opens_thinking
    assert not frontend.prepare(TokenPrompt((*ids, frontend.tokenizer.id_of("<|im_end|>") or 0))).opens_thinking


def boundaries(frontend: Frontend, chat: ChatPrompt) -> dict[BoundaryKind, str]:
    """The prompt text before each boundary."""
    prepared = frontend.prepare(chat)
    decode = frontend.tokenizer.decode
    return {b.kind: decode(prepared.token_ids[: b.frontier]) for b in prepared.boundaries}


def test_boundaries_lie_where_a_later_prompt_may_branch(frontend: Frontend) -> None:
    chat = ChatPrompt(
        (Message("system", "be brief"), Message("user", "cat"), Message("assistant", "sat"), Message("user", "fox")),
        tools=(Tool("rest"),),
        cache_markers=(1,),
    )
    found = boundaries(frontend, chat)
    text = frontend.render(chat)
    assert found[BoundaryKind.TOOLS] == text[: text.index("be brief")]
    assert found[BoundaryKind.SYSTEM] == text[: text.index("<|im_start|>user\ncat")]
    assert found[BoundaryKind.MARKER] == text[: text.index("<|im_start|>assistant\nsat")]
    assert found[BoundaryKind.RESPONSE_REPLAY] == text[: text.rindex("<|im_start|>assistant")]
    assert found[BoundaryKind.TURN_CLOSURE] == found[BoundaryKind.RESPONSE_REPLAY]


def test_thinking_that_the_next_turn_drops_lies_behind_the_turn_closure(frontend: Frontend) -> None:
    """The compact template keeps reasoning only in the last message."""
    chat = ChatPrompt((Message("user", "cat"), Message("assistant", "sat", reasoning="mat")))
    found = boundaries(frontend, chat)
    text = frontend.render(chat)
    assert found[BoundaryKind.TURN_CLOSURE] == text[: text.index("<|im_start|>assistant\n<think>\nmat")]
    assert found[BoundaryKind.RESPONSE_REPLAY] == text[: text.rindex("<|im_start|>assistant")]


@settings(max_examples=25, deadline=None)
@given(first=TYPED, second=TYPED, markers=st.sets(st.integers(0, 2)).map(tuple))
def test_boundaries_are_ascending_frontiers_inside_the_prompt(
    frontend: Frontend, first: str, second: str, markers: tuple[int, ...]
) -> None:
    chat = ChatPrompt(
        (Message("user", first), Message("assistant", second), Message("user", first)), cache_markers=markers
    )
    prepared = frontend.prepare(chat)
    frontiers = [boundary.frontier for boundary in prepared.boundaries]
    assert frontiers == sorted(frontiers)
    assert all(0 < frontier < len(prepared.token_ids) for frontier in frontiers)


IMAGE = Message("user", (ContentPart(ContentKind.TEXT, "x"), ContentPart(ContentKind.IMAGE, media=b"p")))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (TextPrompt(""), "prompt: empty"),
        (TokenPrompt(()), "prompt: empty"),
        (TokenPrompt((5, 10_000)), r"token_ids\[1\]: 10000 is no token; ids go from 0 to"),
        (TokenPrompt((-1,)), r"token_ids\[0\]: -1"),
        (TextPrompt("a\ud800"), "text: character 1 is a lone surrogate"),
        (user("\udfff"), r"messages\[0\]\.content: character 0 is a lone surrogate"),
        (ChatPrompt(()), "messages: at least one"),
        (ChatPrompt(cast(Any, ({"role": "user"},))), r"messages\[0\]: must be a Message, not dict"),
        (user(cast(Any, [ContentPart(ContentKind.TEXT, "x")])), r"messages\[0\]\.content: must be a string or a tuple"),
        (user(cast(Any, ("x",))), r"messages\[0\]\.content\[0\]: must be a ContentPart, not str"),
        (ChatPrompt((Message("robot", "x"),)), r"messages\[0\]\.role: 'robot' is unknown"),
        (ChatPrompt((Message("user", "x", tool_calls=(ToolCall("f", {}),)),)), r"messages\[0\]\.tool_calls: only"),
        (ChatPrompt((Message("assistant", tool_calls=(ToolCall("f", {"k": "\ud800"}),)),)), r"arguments\.k: character"),
        (ChatPrompt((IMAGE,)), r"messages\[0\]\.content\[1\]: this engine reads text only"),
        (replace(user("x"), cache_markers=(0, 1)), r"cache_markers\[1\]: 1 is no index of the 1 messages"),
        (replace(user("x"), template_args={"messages": []}), r"template_args\.messages"),
        (user("".join(map(chr, range(0xF0000, 0xFFFFE)))), "the prompt holds every private-use character"),
        (replace(user("x"), template="{% for %}"), "template: line 1"),
        (replace(user("x"), template="{{ raise_exception('No query.') }}"), "template: No query."),
    ],
)
def test_a_prompt_that_cannot_be_represented_is_refused(frontend: Frontend, prompt: Prompt, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        frontend.prepare(prompt)
    assert caught.value.kind is RequestErrorKind.INVALID
