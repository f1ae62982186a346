"""A scripted Engine and Scorer with the public shape, so that commands are tested without a model."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from ninfer.errors import RequestError, RequestErrorKind
from ninfer.runtime.core.program import AxisOccupancy, Occupancy
from ninfer.runtime.scoring import ScoreReport, StreamScore, TokenScore
from ninfer.types import (
    Channel,
    ChatPrompt,
    Delta,
    EngineOptions,
    Event,
    Finish,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    GenerationStart,
    Prompt,
    TextPrompt,
    Timings,
    TokenPrompt,
    ToolCall,
    ToolCallDelta,
    Usage,
)

TIMINGS = Timings(queue=0.01, prefill=0.2, decode=0.5, total=0.71)


@dataclass
class Answer:
    """What the engine says next. `interrupt_after` raises KeyboardInterrupt after so many deltas."""

    content: tuple[str, ...] = ("An ", "answer.")
    reasoning: tuple[str, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    reason: FinishReason = FinishReason.STOP
    error: str | None = None
    interrupt_after: int | None = None
    usage: Usage | None = None


@dataclass
class Info:
    """The fields of EngineInfo."""

    name: str = "fake"
    path: str = "fake.ninfer"
    architecture: str = "dense"
    parameters: int = 1000
    weight_bytes: int = 2000
    vocab_size: int = 256
    max_context: int = 512
    device: str = "cpu"
    threads: int = 1
    kv_dtype: str = "bf16"
    load_seconds: float = 0.1


@dataclass
class Rendered:
    text: str | None
    token_ids: tuple[int, ...]


@dataclass
class Stats:
    occupancy: Occupancy = field(
        default_factory=lambda: Occupancy((AxisOccupancy("kv_pages", 8, 2, 0, 6),)),
    )


class FakeHandle:
    """One answer, event by event; a cancelled one ends at once."""

    def __init__(self, answer: Answer, usage: Usage) -> None:
        self._answer = answer
        self._usage = usage
        self._events = self._make()
        self.cancelled = False
        self.left = False

    def _make(self) -> Iterator[Event]:
        yield GenerationStart(self._usage.prompt_tokens, self._usage.reused_tokens)
        for count, event in enumerate(self._deltas()):
            if count == self._answer.interrupt_after:
                # Only a terminal's Ctrl-C can do this in the middle of an iteration.
                raise KeyboardInterrupt
            yield event
        yield self._finish(self._answer.reason)

    def _deltas(self) -> Iterator[Event]:
        for text in self._answer.reasoning:
            yield Delta(Channel.REASONING, text, (1,))
        for text in self._answer.content:
            yield Delta(Channel.CONTENT, text, (2,))
        for index, call in enumerate(self._answer.tool_calls):
            yield ToolCallDelta(index, call.name, "")
            yield ToolCallDelta(index, None, "{}")

    def _finish(self, reason: FinishReason) -> Finish:
        return Finish(reason, self._usage, TIMINGS, self._answer.error)

    def __iter__(self) -> Iterator[Event]:
        if self.cancelled:
            yield self._finish(FinishReason.CANCELLED)
            return
        yield from self._events

    async def __aiter__(self) -> AsyncIterator[Event]:
        for event in self._events:
            yield event

    def cancel(self) -> None:
        self.cancelled = True

    def result(self) -> GenerationResult:
        if self._answer.error is not None:
            raise RequestError(RequestErrorKind.FAILED, self._answer.error)
        return GenerationResult(
            text="".join(self._answer.content),
            reasoning="".join(self._answer.reasoning),
            tool_calls=self._answer.tool_calls,
            token_ids=(2,) * len(self._answer.content),
            logprobs=(),
            finish_reason=self._answer.reason,
            usage=self._usage,
            timings=TIMINGS,
        )

    def __enter__(self) -> FakeHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.left = True

    async def __aenter__(self) -> FakeHandle:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.left = True


@dataclass
class FakeEngine:
    """Gives `script` in order (then plain answers), and keeps every request."""

    script: list[Answer | Exception] = field(default_factory=list)
    info: Info = field(default_factory=Info)
    requests: list[GenerationRequest] = field(default_factory=list)
    handles: list[FakeHandle] = field(default_factory=list)
    prompts: list[Prompt] = field(default_factory=list)
    opened: tuple[Path, EngineOptions] | None = None
    closed: bool = False

    def generate(self, request: GenerationRequest) -> FakeHandle:
        self.requests.append(request)
        answer = self.script.pop(0) if self.script else Answer()
        if isinstance(answer, Exception):
            raise answer
        completion = len(answer.content) + len(answer.reasoning)
        usage = answer.usage or Usage(len(self.render(request.prompt).token_ids), 0, completion)
        self.handles.append(FakeHandle(answer, usage))
        return self.handles[-1]

    def render(self, prompt: Prompt) -> Rendered:
        match prompt:
            case TokenPrompt(token_ids=ids):
                return Rendered(None, ids)
            case TextPrompt(text=text):
                return Rendered(text, tuple(text.encode()))
            case ChatPrompt(messages=messages):
                text = "".join(f"<{message.role}>{message.content}" for message in messages)
                return Rendered(text, tuple(text.encode()))

    def stats(self) -> Stats:
        return Stats()

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed = True


class FakeScorer:
    """Scores each character −1 nat."""

    def __init__(self, context: int, stride: int) -> None:
        self._settings = context, stride

    def __enter__(self) -> FakeScorer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def score(
        self,
        streams: Iterable[tuple[str, str]],
        on_token: Callable[[TokenScore], None] | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> ScoreReport:
        scores = []
        for name, text in streams:
            for index in range(1, len(text)):
                if on_token is not None:
                    on_token(TokenScore(name, index, ord(text[index]), -1.0))
            scored = len(text) - 1
            mean, perplexity = (1.0, math.e) if scored else (math.nan, math.nan)
            scores.append(StreamScore(name, len(text), scored, mean, perplexity))
        total = sum(score.scored_tokens for score in scores)
        overall = StreamScore("overall", sum(score.tokens for score in scores), total, 1.0, math.e)
        return ScoreReport(tuple(scores), overall, *self._settings)
