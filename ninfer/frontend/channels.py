"""The reasoning and content channels of an answer: a pure state machine over decoded text.

Stages, in this order: find where thinking opens and closes (by token id where the tags are tokens, else by spelling),
drop the framing newlines the templates write around the tags (`<think>\\n…\\n</think>\\n\\n`), match stop strings on
what is left, and hold back the newlines at the end of reasoning until it is known whether `</think>` follows. Every
result depends on the text alone, never on how tokens cut it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from ninfer.frontend.stops import StopStrings
from ninfer.types import Channel

OPEN_TEXT = "<think>"
CLOSE_TEXT = "</think>"


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """The ids of `<think>` and `</think>`; None where the vocabulary has no such token and the spelling counts."""

    open_id: int | None
    close_id: int | None

    @property
    def spelled(self) -> bool:
        """Whether the tags are found in the text instead of by id."""
        return self.open_id is None or self.close_id is None


class Phase(enum.Enum):
    """Where an answer is. Thinking can open only in START, when nothing but white space has been said."""

    START = "start"
    REASONING = "reasoning"
    CONTENT = "content"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is settled and may be shown. An empty piece only marks that a channel ended."""

    channel: Channel
    text: str


@dataclass(frozen=True, slots=True)
class ChannelState:
    """What has been fed but not shown: `newlines`, then `held` (could begin a stop), then `tag` (could begin a tag)."""

    phase: Phase
    at_head: bool
    matched: tuple[int, ...]
    newlines: str = ""
    held: str = ""
    tag: str = ""

    @property
    def channel(self) -> Channel:
        """The channel that text fed now belongs to."""
        return Channel.REASONING if self.phase is Phase.REASONING else Channel.CONTENT


@dataclass(frozen=True, slots=True)
class Step:
    """The state after some input, the pieces it settled in order, and whether a stop string was completed."""

    state: ChannelState
    pieces: tuple[Piece, ...] = ()
    stopped: bool = False


class ChannelRules:
    """The fixed part of one request's state machine; all state is passed in and out."""

    def __init__(self, tags: ThinkTags, stops: StopStrings, stops_in_thinking: bool) -> None:
        self._tags = tags
        self._stops = stops
        self._stops_in_thinking = stops_in_thinking

    def start(self, opens_thinking: bool) -> ChannelState:
        """The state at the end of the prompt; `opens_thinking` says that the prompt already holds `<think>`."""
        phase = Phase.REASONING if opens_thinking else Phase.START
        return ChannelState(phase, at_head=opens_thinking, matched=self._stops.start)

    def can_open(self, state: ChannelState) -> bool:
        """Whether a `<think>` here opens reasoning; elsewhere it is text."""
        return state.phase is Phase.START

    def can_close(self, state: ChannelState) -> bool:
        """Whether a `</think>` here ends reasoning; elsewhere it is text."""
        return state.phase is Phase.REASONING

    def open(self, state: ChannelState) -> Step:
        """`<think>`: white space held back is content, what follows is reasoning."""
        pieces = (Piece(Channel.CONTENT, state.held),) if state.held else ()
        return Step(ChannelState(Phase.REASONING, at_head=True, matched=self._stops.start), pieces)

    def close(self, state: ChannelState) -> Step:
        """`</think>`: the newlines before it are framing, what follows is content."""
        rest = (state.newlines + state.held).rstrip("\n")
        opened = ChannelState(Phase.CONTENT, at_head=True, matched=self._stops.start)
        return Step(opened, (Piece(Channel.REASONING, rest),))

    def feed(self, state: ChannelState, text: str, stopping: bool = True) -> Step:
        """Decoded text from ordinary tokens. With `stopping` false (forced tokens) stop strings are not matched."""
        if not self._tags.spelled:
            return self._show(state, text, stopping)
        return self._scan(replace(state, tag=""), state.tag + text, stopping)

    def drain(self, state: ChannelState) -> Step:
        """The answer ends here: everything held back is text after all."""
        step = self._show(replace(state, tag=""), state.tag, stopping=True)
        if step.stopped:
            return step
        rest = step.state.newlines + step.state.held
        pieces = (*step.pieces, Piece(state.channel, rest)) if rest else step.pieces
        return Step(replace(step.state, newlines="", held="", matched=self._stops.start), pieces)

    # --- Spelled tags ---

    def _scan(self, state: ChannelState, text: str, stopping: bool) -> Step:
        if state.phase is Phase.REASONING:
            return self._scan_reasoning(state, text, stopping)
        if state.phase is Phase.START:
            return self._scan_start(state, text, stopping)
        return self._show(state, text, stopping)

    def _scan_reasoning(self, state: ChannelState, text: str, stopping: bool) -> Step:
        before, tag, after = text.partition(CLOSE_TEXT)
        if not tag:
            kept = _prefix_at_end(text, CLOSE_TEXT)
            shown = self._show(state, text[: len(text) - kept], stopping)
            return shown if shown.stopped else replace(shown, state=replace(shown.state, tag=text[len(text) - kept :]))
        shown = self._show(state, before, stopping)
        return shown if shown.stopped else self._then(shown, self.close(shown.state), after, stopping)

    def _scan_start(self, state: ChannelState, text: str, stopping: bool) -> Step:
        body = text.lstrip()
        lead = text[: len(text) - len(body)]
        if not body.startswith(OPEN_TEXT) and not OPEN_TEXT.startswith(body):
            return self._show(state, text, stopping)
        shown = self._show(state, lead, stopping)
        if shown.stopped:
            return shown
        if not body.startswith(OPEN_TEXT):
            return replace(shown, state=replace(shown.state, tag=body))
        return self._then(shown, self.open(shown.state), body[len(OPEN_TEXT) :], stopping)

    def _then(self, shown: Step, switched: Step, text: str, stopping: bool) -> Step:
        """Both steps' pieces, followed by what the rest of the text gives in the new phase."""
        rest = self._scan(switched.state, text, stopping)
        return replace(rest, pieces=(*shown.pieces, *switched.pieces, *rest.pieces))

    # --- Text within one channel ---

    def _show(self, state: ChannelState, text: str, stopping: bool) -> Step:
        if state.at_head:
            text = text.lstrip("\n")
        if not text:
            return Step(state)
        opens_content = state.phase is Phase.START and not text.isspace()
        state = replace(state, at_head=False, phase=Phase.CONTENT if opens_content else state.phase)
        step = self._match(state, text, stopping)
        return step if step.stopped else _hold_newlines(step)

    def _match(self, state: ChannelState, text: str, stopping: bool) -> Step:
        """Show what cannot be part of a stop string any more; at a hit, only what lies before it."""
        whole = state.held + text
        if not stopping or not (self._stops_in_thinking or state.channel is Channel.CONTENT):
            return Step(replace(state, held="", matched=self._stops.start), _pieces(state.channel, whole))
        matched, hit = self._stops.feed(state.matched, text)
        if hit is not None:
            before = state.newlines + whole[: len(state.held) + hit.end - hit.length]
            ended = replace(state, held="", newlines="", matched=self._stops.start)
            return Step(ended, _pieces(state.channel, before), stopped=True)
        settled = len(whole) - max(matched, default=0)
        held = replace(state, held=whole[settled:], matched=matched)
        return Step(held, _pieces(state.channel, whole[:settled]))


def _pieces(channel: Channel, text: str) -> tuple[Piece, ...]:
    return (Piece(channel, text),) if text else ()


def _hold_newlines(step: Step) -> Step:
    """Keep back the newlines at the end of reasoning: before `</think>` they are framing."""
    state = step.state
    if state.phase is not Phase.REASONING:
        return step
    text = state.newlines + "".join(piece.text for piece in step.pieces)
    shown = text.rstrip("\n")
    return Step(replace(state, newlines=text[len(shown) :]), _pieces(Channel.REASONING, shown))


def _prefix_at_end(text: str, tag: str) -> int:
    """The length of the longest end of `text` that begins `tag` without completing it."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)
