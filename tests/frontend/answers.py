"""Driving an OutputSession, and a plain reference for what an answer's tokens should show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ninfer.frontend import Frontend, OutputSession
from ninfer.frontend.tokenizer import Tokenizer
from ninfer.types import (
    Channel,
    Delta,
    Event,
    GenerationRequest,
    PreparedPrompt,
    StopConditions,
    TextPrompt,
    TokenLogprob,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What an answer showed: text per channel, how many tokens it kept, and whether it ended by itself."""

    reasoning: str
    content: str
    accepted: int
    finished: bool


def session(frontend: Frontend, stops: StopConditions, thinking: bool = False) -> OutputSession:
    """A session right after a prompt that opens the given channel."""
    return frontend.output_session(
        PreparedPrompt((0,), None, thinking), GenerationRequest(TextPrompt("x"), stops=stops)
    )


def logprob(token_id: int) -> TokenLogprob:
    return TokenLogprob(token_id, -float(token_id))


def run(output: OutputSession, spans: Sequence[Sequence[int]]) -> tuple[list[Event], bool]:
    """Preview and commit span after span until the answer ends, then flush."""
    events: list[Event] = []
    for span in spans:
        preview = output.preview(span, [logprob(token_id) for token_id in span], False)
        output.commit(preview)
        events.extend(preview.events)
        if preview.finish is not None:
            return events, True
    events.extend(output.flush())
    return events, False


def shown(events: Sequence[Event], channel: Channel) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta) and event.channel is channel)


def carried(events: Sequence[Event]) -> list[int]:
    """The tokens that the events carry; each must bring its own log-probability."""
    deltas = [event for event in events if isinstance(event, Delta)]
    ids = [token_id for delta in deltas for token_id in delta.token_ids]
    assert [entry for delta in deltas for entry in delta.logprobs] == [logprob(token_id) for token_id in ids]
    return ids


def answer(output: OutputSession, spans: Sequence[Sequence[int]]) -> Answer:
    events, finished = run(output, spans)
    return Answer(shown(events, Channel.REASONING), shown(events, Channel.CONTENT), len(carried(events)), finished)


@dataclass(slots=True)
class Segment:
    """A stretch of one channel: its bytes so far, whether `</think>` or the answer's end has closed it."""

    channel: Channel
    framed: bool
    data: bytes = b""
    closed: bool = False
    by_tag: bool = False

    def text(self) -> str:
        """Its settled characters without leading framing."""
        data = self.data
        if not self.closed:
            data = data[: _settled(data)]
        text = data.decode("utf-8", "replace")
        return text.lstrip("\n") if self.framed else text


def _settled(data: bytes) -> int:
    """How many bytes lie before an incomplete character at the end."""
    for length in range(max(0, len(data) - 3), len(data)):
        try:
            data[length:].decode("utf-8")
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data" and error.start == 0:
                return length
    return len(data)


class Reference:
    """Splits whole token sequences into segments and searches whole texts; slow and plain."""

    def __init__(self, tokenizer: Tokenizer, stops: StopConditions, thinking: bool) -> None:
        self.tokenizer = tokenizer
        self.stops = stops
        self.thinking = thinking
        self.ends = set(stops.token_ids) | (set() if stops.ignore_eos else set(tokenizer.eos_ids))

    def segments(self, ids: Sequence[int]) -> list[Segment]:
        opening, closing = self.tokenizer.id_of("<think>"), self.tokenizer.id_of("</think>")
        segments = [Segment(Channel.REASONING if self.thinking else Channel.CONTENT, framed=self.thinking)]
        for token_id in ids:
            last = segments[-1]
            untouched = len(segments) == 1 and not self.thinking and not last.data.decode("utf-8", "replace").strip()
            if token_id == opening and untouched:
                last.closed = True
                segments.append(Segment(Channel.REASONING, framed=True))
            elif token_id == closing and last.channel is Channel.REASONING:
                last.closed = last.by_tag = True
                segments.append(Segment(Channel.CONTENT, framed=True))
            elif token_id not in self.tokenizer.eos_ids:
                last.data += self.tokenizer.visible_bytes(token_id)
        return segments

    def cut(self, segments: Sequence[Segment]) -> list[Segment] | None:
        """The segments up to the first stop string, the last one's data cut before it; None without a stop."""
        for i, segment in enumerate(segments):
            text = segment.text()
            watched = segment.channel is Channel.CONTENT or self.stops.in_thinking
            found = [(text.find(s) + len(s), -len(s)) for s in self.stops.strings if watched and s in text]
            if found:
                end, length = min(found)
                before = Segment(segment.channel, framed=False, data=text[: end + length].encode(), closed=True)
                return [*segments[:i], before]
        return None

    def answer(self, ids: Sequence[int]) -> Answer:
        for n in range(1, len(ids) + 1):
            if (cut := self.cut(self.segments(ids[:n]))) is not None:
                return self._answer(cut, n, finished=True)
            if ids[n - 1] in self.ends:
                return self._ended(self.segments(ids[: n - 1]), n, finished=True)
        return self._ended(self.segments(ids), len(ids), finished=False)

    def _ended(self, segments: list[Segment], accepted: int, finished: bool) -> Answer:
        segments[-1].closed = True
        return self._answer(self.cut(segments) or segments, accepted, finished)

    def _answer(self, segments: Sequence[Segment], accepted: int, finished: bool) -> Answer:
        texts = {Channel.REASONING: "", Channel.CONTENT: ""}
        for segment in segments:
            text = segment.text()
            texts[segment.channel] += text.rstrip("\n") if segment.by_tag else text
        return Answer(texts[Channel.REASONING], texts[Channel.CONTENT], accepted, finished)

    def visible_now(self, ids: Sequence[int], channel: Channel) -> str:
        """What must already be shown of a channel: everything but what could still turn out to be something else."""
        text = ""
        segments = self.segments(ids)
        for segment in segments:
            if segment.channel is not channel:
                continue
            part = segment.text()
            if segment is segments[-1]:
                watched = channel is Channel.CONTENT or self.stops.in_thinking
                part = part[: len(part) - self._could_stop(part)] if watched else part
            text += part.rstrip("\n") if channel is Channel.REASONING else part
        return text

    def _could_stop(self, text: str) -> int:
        lengths = [n for s in self.stops.strings for n in range(1, len(s)) if text.endswith(s[:n])]
        return max(lengths, default=0)
