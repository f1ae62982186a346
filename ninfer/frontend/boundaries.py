"""Prompt frontiers at which a checkpoint is likely to serve a later request.

No knowledge of any template is built in: a boundary is where this conversation's rendering stops agreeing with the
rendering of a *probe*, a conversation that differs in one respect (another first question, one more turn, …). The
cut is moved back to the start of a control token, where tokenisation cannot depend on what follows. A wrong guess
costs a cache miss, never a wrong answer: reuse requires equal token ids.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ninfer.errors import RequestError
from ninfer.frontend.tokenizer import ControlSpan, Encoded, Tokenizer
from ninfer.types import Boundary, BoundaryKind, ChatPrompt, Message


@dataclass(frozen=True, slots=True)
class ChatLayout:
    """A rendered conversation: its text, the template's control tokens in it, and its encoding."""

    text: str
    controls: tuple[ControlSpan, ...]
    encoded: Encoded

    def frontier(self, position: int) -> int:
        """Tokens before the last control token that starts at or before a character position; 0 if none does."""
        last = bisect_right(self.controls, position, key=lambda span: span.begin) - 1
        return self.encoded.frontiers[last] if last >= 0 else 0

    def segment(self, position: int) -> tuple[int, int, int]:
        """The stretch of plain text around a position: tokens before it, its begin and its end."""
        after = bisect_right(self.controls, position, key=lambda span: span.end)
        tokens, begin = (self.encoded.frontiers[after - 1] + 1, self.controls[after - 1].end) if after else (0, 0)
        return tokens, begin, self.controls[after].begin if after < len(self.controls) else len(self.text)


class BoundaryFinder:
    """Finds the boundaries of one conversation. `render(chat, opener)` renders a probe, with or without the opener."""

    def __init__(
        self, tokenizer: Tokenizer, chat: ChatPrompt, layout: ChatLayout, render: Callable[[ChatPrompt, bool], str]
    ) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._layout = layout
        self._render = render
        self._history = self._try(chat.messages, opener=False)

    def find(self) -> tuple[Boundary, ...]:
        """All boundaries that exist, by ascending frontier."""
        found = [
            (BoundaryKind.TOOLS, self._after_tools()),
            (BoundaryKind.SYSTEM, self._after_system()),
            *((BoundaryKind.MARKER, self._after_message(index)) for index in self._chat.cache_markers),
            (BoundaryKind.TURN_CLOSURE, self._before_replaceable_suffix()),
            (BoundaryKind.RESPONSE_REPLAY, self._before_opener()),
        ]
        kept = dict.fromkeys(Boundary(kind, frontier) for kind, frontier in found if frontier > 0)
        return tuple(sorted(kept, key=lambda boundary: boundary.frontier))

    def _after_tools(self) -> int:
        """Where the tool declarations end: a conversation with another system message agrees up to there."""
        leading = self._leading()
        system = Message("system", _other(leading[0])) if leading else Message("system", "a")
        probe = self._try([system, Message("user", "a")]) if self._chat.tools else ""
        tokens, begin, end = self._layout.segment(_common_length(self._layout.text, probe))
        theirs = probe[begin : _first_control(self._tokenizer, probe, begin)]
        ours = self._layout.text[begin:end]
        shared = _common_length(self._tokenizer.encode_plain(ours), self._tokenizer.encode_plain(theirs))
        return tokens + shared if probe else 0

    def _after_system(self) -> int:
        """Where the leading system block ends: a conversation with another first question agrees up to there."""
        leading = self._leading()
        rest = self._chat.messages[len(leading) :]
        return self._agreement(self._try([*leading, Message("user", _other(rest[0]) if rest else "a")]))

    def _after_message(self, index: int) -> int:
        """The end of message `index`: a conversation with another next message agrees up to there."""
        messages = self._chat.messages
        if index == len(messages) - 1:
            return self._agreement(self._try(messages, opener=False))
        following = messages[index + 1]
        other = _other(following)
        changed = replace(following, content=other, reasoning=other if following.reasoning else None, tool_calls=())
        return self._agreement(self._try([*messages[: index + 1], changed, *messages[index + 2 :]]))

    def _before_replaceable_suffix(self) -> int:
        """Where the turns begin that the next question may rewrite (by dropping their thinking)."""
        answer = Message("assistant", "a", reasoning="a")
        probe = self._try([*self._chat.messages, answer, Message("user", "a")])
        agreed = _common_length(self._layout.text, probe)
        # Back to the start of a turn, which the opener's first token marks: one place less to keep a checkpoint at.
        turn = self._opener()
        starts = [s.begin for s in self._layout.controls if s.begin <= agreed and turn in (None, s.token_id)]
        return self._layout.frontier(starts[-1]) if starts and probe else 0

    def _before_opener(self) -> int:
        """Where the generation opener starts, if it is a suffix that begins with a control token."""
        return self._layout.frontier(len(self._history)) if self._opener() is not None else 0

    def _opener(self) -> int | None:
        """The control token that begins the generation opener."""
        if not self._layout.text.startswith(self._history):
            return None
        return next((s.token_id for s in self._layout.controls if s.begin == len(self._history)), None)

    def _leading(self) -> tuple[Message, ...]:
        first = self._chat.messages[:1]
        return first if first[0].role in ("system", "developer") else ()

    def _agreement(self, probe: str) -> int:
        return self._layout.frontier(_common_length(self._layout.text, probe)) if probe else 0

    def _try(self, messages: Sequence[Message], opener: bool = True) -> str:
        """A probe's rendering; empty if the template refuses the probe, and then there is no such boundary."""
        try:
            return self._render(replace(self._chat, messages=tuple(messages)), opener)
        except RequestError:
            return ""


def _other(message: Message) -> str:
    """A text that differs from the message's own in its first visible character."""
    content = message.content or ""
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    return "b" if text.lstrip().startswith("a") else "a"


def _first_control(tokenizer: Tokenizer, text: str, begin: int) -> int:
    controls = tokenizer.find_controls(text[begin:])
    return begin + controls[0].begin if controls else len(text)


def _common_length(left: Sequence[object], right: Sequence[object]) -> int:
    """The length of the longest common prefix."""
    shortest = min(len(left), len(right))
    return bisect_left(range(1, shortest + 1), True, key=lambda n: left[:n] != right[:n])
