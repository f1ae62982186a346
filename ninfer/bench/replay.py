"""Driving requests and timing their events. Pure: any stream of events, and whatever clock the asyncio loop has.

Open loop: requests arrive when the trace says, however busy the engine is. Closed loop: a fixed number of clients,
each sending its next request when its last is answered. Times are seconds of the loop's clock, from the start.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ninfer.errors import RequestError, RequestErrorKind
from ninfer.types import Delta, Event, Finish, FinishReason, GenerationRequest, GenerationStart, Usage

Stream = Callable[[GenerationRequest], AsyncIterator[Event]]
Done = Callable[["RequestRecord"], None]


class Outcome(enum.Enum):
    """How a request ended, as its client saw it."""

    COMPLETED = "completed"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class ReplayItem:
    """A request and when it arrives (seconds from the start; closed loop takes only the order)."""

    index: int
    arrival: float
    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What one client saw. `token_times` has one time per generated token, in order; `usage` is None on failure."""

    index: int
    outcome: Outcome
    arrival: float
    finished: float
    token_times: tuple[float, ...] = ()
    usage: Usage | None = None
    error: str | None = None

    @property
    def first_token(self) -> float | None:
        """Seconds from arrival to the first token; an answer without visible tokens counts its end."""
        if self.outcome is not Outcome.COMPLETED:
            return None
        return (self.token_times[0] if self.token_times else self.finished) - self.arrival

    @property
    def gaps(self) -> tuple[float, ...]:
        """Seconds between consecutive tokens."""
        return tuple(later - earlier for earlier, later in zip(self.token_times, self.token_times[1:], strict=False))


async def open_loop(items: Sequence[ReplayItem], stream: Stream, speed: float, done: Done) -> list[RequestRecord]:
    """Send every request at `arrival / speed`. The arrival that counts is the scheduled one."""
    clock = _Clock()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for item in items:
            arrival = item.arrival / speed
            await clock.sleep_until(arrival)
            tasks.append(group.create_task(_measure(item, stream, clock, arrival, done)))
    return [task.result() for task in tasks]


async def closed_loop(items: Sequence[ReplayItem], stream: Stream, concurrency: int, done: Done) -> list[RequestRecord]:
    """Keep `concurrency` requests in flight until all are answered."""
    clock = _Clock()
    pending = iter(items)
    async with asyncio.TaskGroup() as group:
        clients = [group.create_task(_client(pending, stream, clock, done)) for _ in range(concurrency)]
    records = [record for client in clients for record in client.result()]
    return sorted(records, key=lambda record: record.index)


async def _client(pending: Iterator[ReplayItem], stream: Stream, clock: _Clock, done: Done) -> list[RequestRecord]:
    return [await _measure(item, stream, clock, clock.now(), done) for item in pending]


async def _measure(item: ReplayItem, stream: Stream, clock: _Clock, arrival: float, done: Done) -> RequestRecord:
    timeline = _Timeline()
    try:
        async for event in stream(item.request):
            timeline.note(event, clock.now())
        record = timeline.record(item.index, arrival, clock.now())
    except RequestError as error:
        outcome = Outcome.REFUSED if error.kind in _REFUSALS else Outcome.FAILED
        record = RequestRecord(item.index, outcome, arrival, clock.now(), error=str(error))
    done(record)
    return record


_REFUSALS = frozenset(
    {
        RequestErrorKind.OVERLOADED,
        RequestErrorKind.INFEASIBLE,
        RequestErrorKind.CONTEXT_EXCEEDED,
        RequestErrorKind.INVALID,
    }
)


class _Clock:
    """Seconds since its making, on the running loop's clock."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begin = self._loop.time()

    def now(self) -> float:
        return self._loop.time() - self._begin

    async def sleep_until(self, moment: float) -> None:
        delay = moment - self.now()
        if delay > 0:
            await asyncio.sleep(delay)


@dataclass(slots=True)
class _Timeline:
    """The events of one request, as times."""

    token_times: list[float] = field(default_factory=list)
    finish: Finish | None = None

    def note(self, event: Event, now: float) -> None:
        match event:
            case Delta(token_ids=token_ids):
                self.token_times += _spread(self.token_times[-1:], now, len(token_ids))
            case Finish():
                self.finish = event
            case GenerationStart() | _:
                pass

    def record(self, index: int, arrival: float, now: float) -> RequestRecord:
        finish = self.finish
        assert finish is not None, "every answer ends with one Finish"
        completed = finish.reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS)
        return RequestRecord(
            index,
            Outcome.COMPLETED if completed else Outcome.FAILED,
            arrival,
            now,
            tuple(self.token_times),
            finish.usage,
            None if completed else finish.error or finish.reason.value,
        )


def _spread(previous: Iterable[float], now: float, count: int) -> list[float]:
    """Tokens that arrive together share the time since the last arrival equally; the very first ones came at once."""
    begin = next(iter(previous), now)
    return [begin + (now - begin) * (position + 1) / count for position in range(count)]
