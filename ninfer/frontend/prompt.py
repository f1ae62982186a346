"""Prompt preparation: every kind of public prompt to token ids, with what the control plane wants to know of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from ninfer.errors import ConfigError
from ninfer.frontend.boundaries import BoundaryFinder, ChatLayout
from ninfer.frontend.channels import CLOSE_TEXT, OPEN_TEXT, ThinkTags
from ninfer.frontend.messages import (
    check_messages,
    check_text,
    invalid,
    media_location,
    message_dicts,
    plain_json,
    tool_dicts,
)
from ninfer.frontend.template import ChatTemplate
from ninfer.frontend.tokenizer import ControlSpan, Tokenizer
from ninfer.types import ChatPrompt, PreparedPrompt, Prompt, TextPrompt, TokenPrompt

# What a template argument may not replace: these come from the prompt itself.
_RESERVED_ARGUMENTS = ("messages", "tools", "documents", "strftime_now")


class PromptBuilder:
    """Renders and encodes prompts. `template` is the artifact's chat template, if it has one.

    Every method raises RequestError (INVALID) naming the part of the prompt that cannot be represented.
    """

    def __init__(
        self, tokenizer: Tokenizer, tags: ThinkTags, template: str | None, clock: Callable[[], datetime]
    ) -> None:
        self._tokenizer = tokenizer
        self._tags = tags
        self._clock = clock
        self._own = None if template is None else self._compile(template, "chat_template.jinja")
        self._given: tuple[str, ChatTemplate] | None = None

    def prepare(self, prompt: Prompt) -> PreparedPrompt:
        """Token ids, rendered text, opening channel and boundaries of a prompt."""
        match prompt:
            case TokenPrompt():
                return self._from_tokens(prompt)
            case TextPrompt():
                return self._from_text(prompt)
            case ChatPrompt():
                return self._from_chat(prompt)

    def render(self, prompt: ChatPrompt | TextPrompt) -> str:
        """The text that the model will read; images and videos render as their placeholders."""
        if isinstance(prompt, TextPrompt):
            return prompt.text
        return self._template(prompt).text(self._variables(prompt, opener=True), self._clock())

    def encode(self, prompt: ChatPrompt) -> ChatLayout:
        """A conversation's text, template-owned control tokens, and token ids."""
        return self._layout(prompt, self._clock())

    def _from_tokens(self, prompt: TokenPrompt) -> PreparedPrompt:
        limit = self._tokenizer.addressable
        for index, token_id in enumerate(prompt.token_ids):
            if isinstance(token_id, bool) or not isinstance(token_id, int) or not self._tokenizer.has_text(token_id):
                raise invalid(f"token_ids[{index}]: {token_id!r} is no token; ids go from 0 to {limit - 1}")
        return self._prepared(prompt.token_ids, None, self._ids_open_thinking(prompt.token_ids))

    def _from_text(self, prompt: TextPrompt) -> PreparedPrompt:
        check_text(prompt.text, "text")
        return self._prepared(self._tokenizer.encode_plain(prompt.text), prompt.text, opens_thinking=False)

    def _from_chat(self, prompt: ChatPrompt) -> PreparedPrompt:
        check_messages(prompt.messages)
        if (media := media_location(prompt.messages)) is not None:
            raise invalid(f"{media}: this engine reads text only; remove the image or video")
        for i, marker in enumerate(prompt.cache_markers):
            if not 0 <= marker < len(prompt.messages):
                raise invalid(f"cache_markers[{i}]: {marker} is no index of the {len(prompt.messages)} messages")
        now = self._clock()
        layout = self._layout(prompt, now)
        template = self._template(prompt)

        def probe(chat: ChatPrompt, opener: bool) -> str:
            return template.text(self._variables(chat, opener), now)

        prepared = self._prepared(layout.encoded.token_ids, layout.text, self._opens_thinking(layout))
        return replace(prepared, boundaries=BoundaryFinder(self._tokenizer, prompt, layout, probe).find())

    def _prepared(self, ids: tuple[int, ...], text: str | None, opens_thinking: bool) -> PreparedPrompt:
        # Token ids alone fix the state of a text prompt, so its identity is empty.
        if not ids:
            raise invalid("prompt: empty; at least one token is needed")
        return PreparedPrompt(tuple(ids), text, opens_thinking)

    # --- Conversations ---

    def _layout(self, prompt: ChatPrompt, now: datetime) -> ChatLayout:
        template, variables = self._template(prompt), self._variables(prompt, opener=True)
        rendering = template.render(variables, now)
        controls = self._owned_controls(rendering.text, rendering.owned, variables)
        return ChatLayout(rendering.text, controls, self._tokenizer.encode(rendering.text, controls))

    def _owned_controls(
        self, text: str, owned: tuple[int, ...] | None, variables: dict[str, object]
    ) -> tuple[ControlSpan, ...]:
        if owned is not None:
            spans = (self._tokenizer.control_at(text, begin) for begin in owned)
            return tuple(span for span in spans if span is not None)
        # The template inspects its own literals; without control tokens in the caller's strings all are the template's.
        typed = self._tokenizer.find_controls(json.dumps(variables, ensure_ascii=False))
        if typed:
            raise invalid(
                "chat template: it inspects its own control tokens, so those in the messages cannot be told apart; "
                "remove them from the messages"
            )
        return self._tokenizer.find_controls(text)

    def _variables(self, prompt: ChatPrompt, opener: bool) -> dict[str, object]:
        arguments = plain_json(prompt.template_args, "template_args")
        assert isinstance(arguments, dict)
        for name in _RESERVED_ARGUMENTS:
            if name in arguments:
                raise invalid(f"template_args.{name}: is set by the prompt itself; remove it")
        derived: dict[str, object] = {"add_generation_prompt": True}
        if prompt.thinking is not None:
            derived["enable_thinking"] = prompt.thinking
        if prompt.reasoning_effort is not None:
            check_text(prompt.reasoning_effort, "reasoning_effort")
            derived["reasoning_effort"] = prompt.reasoning_effort
        given = {"messages": message_dicts(prompt.messages), "tools": tool_dicts(prompt.tools), "documents": None}
        return {**derived, **arguments, **({} if opener else {"add_generation_prompt": False}), **given}

    def _template(self, prompt: ChatPrompt) -> ChatTemplate:
        if prompt.template is None:
            if self._own is None:
                raise invalid("messages: this model has no chat template; give one, or prompt with text or token ids")
            return self._own
        given = self._given
        if given is None or given[0] != prompt.template:
            check_text(prompt.template, "template")
            try:
                given = self._given = (prompt.template, self._compile(prompt.template, "template"))
            except ConfigError as error:
                raise invalid(str(error)) from error
        return given[1]

    def _compile(self, source: str, where: str) -> ChatTemplate:
        return ChatTemplate(source, where, self._tokenizer.mark_controls, self._tokenizer.special_texts)

    # --- The opening channel ---

    def _opens_thinking(self, layout: ChatLayout) -> bool:
        if not self._tags.spelled:
            return self._ids_open_thinking(layout.encoded.token_ids)
        ends = [span.end for span in layout.controls if span.token_id in self._tokenizer.eos_ids]
        opener = layout.text[ends[-1] if ends else 0 :]
        return opener.rfind(OPEN_TEXT) > opener.rfind(CLOSE_TEXT)

    def _ids_open_thinking(self, ids: tuple[int, ...]) -> bool:
        """Whether the last turn holds a `<think>` that nothing after it closes."""
        ends = {self._tags.close_id, *self._tokenizer.eos_ids}
        last = next(
            (token_id for token_id in reversed(ids) if token_id == self._tags.open_id or token_id in ends), None
        )
        return last is not None and last == self._tags.open_id
