"""Fixed points: how fast prompts are read, and how fast answers are written at a given batch size."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ninfer.bench.replay import Outcome, ReplayItem, RequestRecord, Stream, closed_loop
from ninfer.bench.synthesis import synthesise
from ninfer.bench.trace import TokenCount
from ninfer.errors import RequestError, RequestErrorKind
from ninfer.types import CacheUse, GenerationRequest, Sampling, StopConditions, TokenPrompt

DECODE_PROMPT_TOKENS = 16
WARM_UP_PROMPT = 1024
WARM_UP_ANSWER = 8
"""The first run goes no further than these tokens of what it is to measure: what follows is more of the same."""


@dataclass(frozen=True, slots=True)
class MicroPoint:
    """`batch` requests at once, each with `prompt_tokens` to read and `new_tokens` to write.

    A point with one new token measures reading (prefill), any other measures writing (decode), after a prompt whose
    reading does not count.
    """

    prompt_tokens: int
    new_tokens: int
    batch: int

    @property
    def measures_prefill(self) -> bool:
        return self.new_tokens == 1

    @property
    def is_deep(self) -> bool:
        """Whether answers are written at a depth: their prompts are then read once and kept for the repetitions."""
        return not self.measures_prefill and self.prompt_tokens > DECODE_PROMPT_TOKENS

    @property
    def name(self) -> str:
        """pp: prompt processing, tg: text generation, d: depth."""
        if self.measures_prefill:
            return f"pp{self.prompt_tokens}"
        return f"tg{self.new_tokens} B={self.batch}" + (f" @ d{self.prompt_tokens}" if self.is_deep else "")

    @property
    def context(self) -> int:
        """Tokens of context that one request needs."""
        return self.prompt_tokens + self.new_tokens


@dataclass(frozen=True, slots=True)
class MicroResult:
    """Tokens per second of all requests together, one rate per repetition, in order."""

    point: MicroPoint
    rates: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    @property
    def slowest(self) -> float:
        return min(self.rates)

    @property
    def fastest(self) -> float:
        return max(self.rates)


STANDARD_POINTS = (
    MicroPoint(64, 1, 1),
    MicroPoint(256, 1, 1),
    *(MicroPoint(DECODE_PROMPT_TOKENS, 32, batch) for batch in (1, 2, 4, 8)),
)


def chosen_points(prompt: int | None, generate: int | None, batch: int, depth: int = 0) -> tuple[MicroPoint, ...]:
    """The points that `--pp`, `--tg` and `--depth` ask for."""
    prefill = () if prompt is None else (MicroPoint(prompt, 1, 1),)
    decode = () if generate is None else (MicroPoint(max(depth, DECODE_PROMPT_TOKENS), generate, batch),)
    return (*prefill, *decode)


async def measure(
    points: Sequence[MicroPoint],
    stream: Stream,
    pool: Sequence[int],
    repeat: int,
    done: Callable[[RequestRecord], None],
) -> list[MicroResult]:
    """Run the beginning of every point to warm up, then the point `repeat` times. Raises RequestError on failure."""
    results = []
    for point in points:
        await _rate(_warm_up(point), stream, pool, done)
        results.append(MicroResult(point, tuple([await _rate(point, stream, pool, done) for _ in range(repeat)])))
    return results


def _warm_up(point: MicroPoint) -> MicroPoint:
    if point.measures_prefill:
        return replace(point, prompt_tokens=min(point.prompt_tokens, WARM_UP_PROMPT))
    return replace(point, new_tokens=min(point.new_tokens, WARM_UP_ANSWER))


async def _rate(point: MicroPoint, stream: Stream, pool: Sequence[int], done: Callable[[RequestRecord], None]) -> float:
    items = [ReplayItem(lane, 0.0, _request(point, lane, pool)) for lane in range(point.batch)]
    records = await closed_loop(items, stream, point.batch, done)
    failed = next((record for record in records if record.outcome is not Outcome.COMPLETED), None)
    if failed is not None:
        raise RequestError(RequestErrorKind.FAILED, f"{point.name}: {failed.error}")
    return prefill_rate(point, records) if point.measures_prefill else decode_rate(records)


def prefill_rate(point: MicroPoint, records: Sequence[RequestRecord]) -> float:
    """Prompt tokens per second until the first token."""
    [record] = records
    first = record.first_token
    assert first is not None, "completed requests have a first token"
    return point.prompt_tokens / first


def decode_rate(records: Sequence[RequestRecord]) -> float:
    """Tokens per second while answers are written: from the last lane's first token until the first lane's last one.

    Only in that window does every lane run, so that the rate is one of the full batch. Where there is no such window
    (very short answers), the whole span of tokens counts.
    """
    begin = max(record.token_times[0] for record in records)
    end = min(record.token_times[-1] for record in records)
    times = sorted(time for record in records for time in record.token_times)
    if end <= begin:
        begin, end = times[0], times[-1]
    return sum(begin < time <= end for time in times) / max(end - begin, 1e-9)


def _request(point: MicroPoint, lane: int, pool: Sequence[int]) -> GenerationRequest:
    tokens = synthesise(TokenCount(point.prompt_tokens), f"{point.name} lane {lane}", pool)
    return GenerationRequest(
        prompt=TokenPrompt(tokens),
        max_new_tokens=point.new_tokens,
        sampling=Sampling.greedy(),
        stops=StopConditions(ignore_eos=True),
        cache=CacheUse.READ_WRITE if point.is_deep else CacheUse.DISABLED,
    )
