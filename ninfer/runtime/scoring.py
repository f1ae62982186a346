"""Offline text scoring: the log-probability of every token of a text, window by window.

A window starts from empty state. Every token after a stream's first is scored exactly once: the first window scores
tokens [1, min(context, N)), each later one the next `stride` tokens, with up to `context - stride` tokens before them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ninfer.errors import ConfigError, RequestError, RequestErrorKind

DEFAULT_CONTEXT = 4096
DEFAULT_STRIDE = 2048


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens [begin, end) of a stream are consumed; [target, end) are scored."""

    begin: int
    target: int
    end: int


@dataclass(frozen=True, slots=True)
class TokenScore:
    """One scored token: `index` counts from 0 within its stream, `logprob` is a natural logarithm."""

    stream: str
    index: int
    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class StreamScore:
    """A stream's figures. `mean_nll` is nats per scored token; it and `perplexity` are NaN when nothing was scored."""

    stream: str
    tokens: int
    scored_tokens: int
    mean_nll: float
    perplexity: float


@dataclass(frozen=True, slots=True)
class ScoreReport:
    """Figures per stream and over all scored tokens, and the settings that they depend on."""

    streams: tuple[StreamScore, ...]
    overall: StreamScore
    context: int
    stride: int


class ScoringProgram(Protocol):
    """The physical side of scoring: one window at a time, from empty state."""

    def window_logprobs(self, tokens: Sequence[int], first_target: int) -> Sequence[float]:
        """Natural-log probabilities of `tokens[first_target:]`, each given all of `tokens` before it."""
        ...


def windows(tokens: int, context: int, stride: int) -> Iterator[Window]:
    """The windows of a stream of `tokens` tokens; none when there is nothing to score."""
    if tokens < 2:
        return
    end = min(context, tokens)
    yield Window(0, 1, end)
    while end < tokens:
        target, end = end, min(end + stride, tokens)
        yield Window(target - (context - stride), target, end)


@dataclass(frozen=True, slots=True)
class CausalScoreCore:
    """Scores tokenised streams one after another. Creates no requests and keeps nothing between windows."""

    program: ScoringProgram
    context: int
    stride: int

    def __post_init__(self) -> None:
        if self.context < 2:
            raise ConfigError(f"--context must be at least 2 tokens, got {self.context}")
        if not 1 <= self.stride < self.context:
            raise ConfigError(f"--stride must be from 1 to context - 1 = {self.context - 1}, got {self.stride}")

    def score(
        self,
        streams: Iterable[tuple[str, Sequence[int]]],
        on_token: Callable[[TokenScore], None] | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> ScoreReport:
        """Score (name, token ids) streams; streams never share history.

        `progress(stream, scored, total)` is called after each window. Raises RequestError (INVALID) when no stream has
        two tokens, since then there is nothing to score.
        """
        scores, total = [], 0.0
        for name, tokens in streams:
            nll = self._score_stream(name, tokens, on_token, progress)
            total += nll
            scores.append(_stream_score(name, len(tokens), max(len(tokens) - 1, 0), nll))
        scored = sum(score.scored_tokens for score in scores)
        if scored == 0:
            raise RequestError(RequestErrorKind.INVALID, "nothing to score: every text has fewer than two tokens")
        overall = _stream_score("overall", sum(score.tokens for score in scores), scored, total)
        return ScoreReport(tuple(scores), overall, self.context, self.stride)

    def _score_stream(
        self,
        name: str,
        tokens: Sequence[int],
        on_token: Callable[[TokenScore], None] | None,
        progress: Callable[[str, int, int], None] | None,
    ) -> float:
        nll = 0.0
        for window in windows(len(tokens), self.context, self.stride):
            logprobs = self.program.window_logprobs(tokens[window.begin : window.end], window.target - window.begin)
            nll -= math.fsum(logprobs)
            if on_token is not None:
                for index, logprob in enumerate(logprobs, window.target):
                    on_token(TokenScore(name, index, tokens[index], logprob))
            if progress is not None:
                progress(name, window.end - 1, len(tokens) - 1)
        return nll


def _stream_score(name: str, tokens: int, scored: int, nll: float) -> StreamScore:
    mean = nll / scored if scored else math.nan
    return StreamScore(name, tokens, scored, mean, math.exp(mean) if mean < 700 else math.inf)
