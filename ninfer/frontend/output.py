"""OutputSession: what a request's tokens mean, previewed without effect and committed token for token.

Engine previews a span, lets Program commit the accepted tokens, and only then commits the preview here. The whole
session is one immutable state, so a preview is a pure function of it and a fork is a reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ninfer.frontend import utf8
from ninfer.frontend.channels import ChannelRules, ChannelState, Piece, Step
from ninfer.frontend.tokenizer import Tokenizer
from ninfer.types import Channel, Delta, Event, FinishReason, TokenLogprob


@dataclass(frozen=True, slots=True)
class Preview:
    """The effect a span would have: the fields of the control plane's OutputPreview.

    `accepted` counts the tokens kept, up to and including the one that ends the answer (`finish`). `control` and
    `boundaries` are empty until forced control exists. `events` is what the commit publishes, `next_state` is opaque.
    """

    accepted: int
    finish: FinishReason | None
    control: tuple[int, ...]
    boundaries: tuple[int, ...]
    events: tuple[Event, ...]
    next_state: object


@dataclass(frozen=True, slots=True)
class OutputRules:
    """The fixed part of a session. `stop_ids` end the answer; `hidden_ids` show no text (end-of-sequence tokens)."""

    tokenizer: Tokenizer
    channels: ChannelRules
    open_id: int | None
    close_id: int | None
    stop_ids: frozenset[int]
    hidden_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class OutputState:
    """Everything that changes. `tokens` and `logprobs` are committed but not yet carried by an event."""

    channels: ChannelState
    undecoded: bytes = b""
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finished: bool = False
    revision: int = 0


@dataclass(frozen=True, slots=True)
class _Effect:
    """What one token does to the decoder and the channels."""

    channels: ChannelState
    undecoded: bytes
    pieces: tuple[Piece, ...]
    finished: bool = False


class OutputSession:
    """Output semantics of one request; implements the control plane's OutputSession protocol."""

    def __init__(self, rules: OutputRules, state: OutputState) -> None:
        self._rules = rules
        self._state = state

    def preview(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob], forced: bool) -> Preview:
        """What these tokens would do. `logprobs` is empty or one per token. Forced tokens never end the answer."""
        assert len(tokens) > 0
        assert not self._state.finished
        assert len(logprobs) in (0, len(tokens))
        state, out = self._state, _Publication.resume(self._state)
        accepted = 0
        for accepted, token in enumerate(tokens, start=1):
            effect = _effect(self._rules, state, token, forced)
            state = replace(state, channels=effect.channels, undecoded=effect.undecoded, finished=effect.finished)
            out.add(token, logprobs[accepted - 1 : accepted], effect.pieces)
            if effect.finished:
                out.settle(state.channels.channel)
                break
        events = out.events()
        state = replace(state, tokens=tuple(out.tokens), logprobs=tuple(out.logprobs), revision=state.revision + 1)
        return Preview(accepted, FinishReason.STOP if state.finished else None, (), (), events, state)

    def commit(self, preview: Preview) -> None:
        """Adopt a preview made from the current state."""
        state = preview.next_state
        assert isinstance(state, OutputState)
        assert state.revision == self._state.revision + 1
        self._state = state

    def flush(self) -> tuple[Event, ...]:
        """End of the answer for a reason outside the session: publish what is held back. Later calls give nothing."""
        if self._state.finished:
            return ()
        state, out = self._state, _Publication.resume(self._state)
        step = _drain(self._rules, state)
        out.show(step.pieces)
        out.settle(step.state.channel)
        done = replace(state, channels=step.state, undecoded=b"", tokens=(), logprobs=(), finished=True)
        self._state = replace(done, revision=state.revision + 1)
        return out.events()

    def fork(self) -> OutputSession:
        """An independent session at the same state; costs one reference."""
        return OutputSession(self._rules, self._state)


def _effect(rules: OutputRules, state: OutputState, token: int, forced: bool) -> _Effect:
    if token in rules.stop_ids and not forced:
        step = _drain(rules, state)
        return _Effect(step.state, b"", step.pieces, finished=True)
    if token in (rules.open_id, rules.close_id):
        step = _tag(rules, state, token, stopping=not forced)
        return _Effect(step.state, b"", step.pieces, step.stopped)
    data = b"" if token in rules.hidden_ids else rules.tokenizer.visible_bytes(token)
    text, undecoded = utf8.decode_step(state.undecoded, data)
    step = rules.channels.feed(state.channels, text, stopping=not forced)
    return _Effect(step.state, b"" if step.stopped else undecoded, step.pieces, step.stopped)


def _tag(rules: OutputRules, state: OutputState, token: int, stopping: bool) -> Step:
    """A think tag switches the channel where it may, and is text elsewhere."""
    # An incomplete character before a tag can never be completed: it is text of the old channel.
    before = rules.channels.feed(state.channels, utf8.finish(state.undecoded), stopping)
    if before.stopped:
        return before
    if token == rules.open_id and rules.channels.can_open(before.state):
        after = rules.channels.open(before.state)
    elif token == rules.close_id and rules.channels.can_close(before.state):
        after = rules.channels.close(before.state)
    else:
        after = rules.channels.feed(before.state, rules.tokenizer.visible_bytes(token).decode(), stopping)
    return replace(after, pieces=(*before.pieces, *after.pieces))


def _drain(rules: OutputRules, state: OutputState) -> Step:
    step = rules.channels.feed(state.channels, utf8.finish(state.undecoded))
    if step.stopped:
        return step
    rest = rules.channels.drain(step.state)
    return replace(rest, pieces=(*step.pieces, *rest.pieces))


@dataclass(slots=True)
class _Draft:
    """One event being put together."""

    channel: Channel
    text: str
    tokens: list[int]
    logprobs: list[TokenLogprob]


@dataclass(slots=True)
class _Publication:
    """The events of one span: neighbouring pieces of a channel join; every token rides on exactly one event.

    Tokens whose text is still held back wait in `tokens` for the next piece, so the token order over all events is
    the order of generation.
    """

    tokens: list[int]
    logprobs: list[TokenLogprob]
    drafts: list[_Draft] = field(default_factory=list)

    @staticmethod
    def resume(state: OutputState) -> _Publication:
        return _Publication(list(state.tokens), list(state.logprobs))

    def add(self, token: int, logprobs: Sequence[TokenLogprob], pieces: Sequence[Piece]) -> None:
        self.tokens.append(token)
        self.logprobs.extend(logprobs)
        self.show(pieces)

    def show(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            self._append(piece.channel, piece.text)

    def settle(self, channel: Channel) -> None:
        """The answer ended: tokens without text of their own ride on the last event."""
        if self.tokens:
            self._append(self.drafts[-1].channel if self.drafts else channel, "")

    def _append(self, channel: Channel, text: str) -> None:
        if not self.drafts or self.drafts[-1].channel is not channel:
            self.drafts.append(_Draft(channel, "", [], []))
        draft = self.drafts[-1]
        draft.text += text
        draft.tokens.extend(self.tokens)
        draft.logprobs.extend(self.logprobs)
        self.tokens.clear()
        self.logprobs.clear()

    def events(self) -> tuple[Event, ...]:
        return tuple(Delta(d.channel, d.text, tuple(d.tokens), tuple(d.logprobs)) for d in self.drafts)
