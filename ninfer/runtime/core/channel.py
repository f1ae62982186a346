"""The way from the worker to one request's consumer: published events, the final outcome, and the wish to cancel."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from ninfer.errors import EngineFailure, NinferError, RequestError, RequestErrorKind
from ninfer.runtime.core.capacity import CapacityLease
from ninfer.types import Channel, Delta, Event, Finish, GenerationResult, TokenLogprob, ToolCall, ToolCallDelta

_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request ended with an error; `kind` None means that the whole Engine failed."""

    kind: RequestErrorKind | None
    message: str

    def exception(self) -> NinferError:
        """A fresh exception for one consumer to raise."""
        return EngineFailure(self.message) if self.kind is None else RequestError(self.kind, self.message)


class ResponseChannel:
    """Events of one request. The worker publishes, one consumer reads; `cancel_requested` is the only way back."""

    def __init__(self, lease: CapacityLease) -> None:
        self.lease = lease
        self.cancel_requested = False
        self._changed = threading.Condition()
        self._events: list[Event] = []
        self._read = 0
        self._finished = False
        self._failure: Failure | None = None
        self._waiters: list[_Waiter] = []

    # --- worker side ---

    def publish(self, events: Sequence[Event]) -> None:
        """Make events visible, in order."""
        if events:
            self._append(events, finished=False)

    def finish(self, finish: Finish, failure: Failure | None) -> None:
        """Publish the one terminal event; the response is complete."""
        assert not self._finished, "a request ends exactly once"
        self._failure = failure
        # Before the event is visible: whoever has seen the end may submit again at once.
        self.lease.response_done = True
        self._append((finish,), finished=True)

    def _append(self, events: Sequence[Event], finished: bool) -> None:
        with self._changed:
            self._events.extend(events)
            self._finished = finished
            waiters, self._waiters = self._waiters, []
            self._changed.notify_all()
        for loop, future in waiters:
            # A loop that is closed has no consumer left to wake.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_resolve, future)

    # --- consumer side ---

    @property
    def finished(self) -> bool:
        """True once the terminal event is published."""
        return self._finished

    @property
    def published(self) -> tuple[Event, ...]:
        """Everything published so far, whether read or not."""
        with self._changed:
            return tuple(self._events)

    def take(self, timeout: float | None) -> Event | None:
        """The next unread event, None after the last; TimeoutError when none comes within `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(self._readable, timeout):
                raise TimeoutError(f"no event within {timeout} s")
            return self._pop()

    async def take_async(self) -> Event | None:
        """`take` for a coroutine: waits without polling and without a thread."""
        while True:
            with self._changed:
                if self._readable():
                    return self._pop()
                waiter = self._subscribe()
            await self._wait(waiter)

    def outcome(self, timeout: float | None) -> GenerationResult:
        """Wait for the end; the aggregated result, or the request's error raised."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._finished, timeout):
                raise TimeoutError(f"the request did not end within {timeout} s")
        return self._settle()

    async def outcome_async(self) -> GenerationResult:
        """`outcome` for a coroutine."""
        while True:
            with self._changed:
                if self._finished:
                    return self._settle()
                waiter = self._subscribe()
            await self._wait(waiter)

    def _readable(self) -> bool:
        return self._read < len(self._events) or self._finished

    def _pop(self) -> Event | None:
        if self._read == len(self._events):
            return None
        event = self._events[self._read]
        self._read += 1
        if isinstance(event, Finish):
            self.lease.consumer_released = True
        return event

    def _settle(self) -> GenerationResult:
        self.lease.consumer_released = True
        if self._failure is not None:
            raise self._failure.exception()
        return aggregate(self._events)

    def _subscribe(self) -> _Waiter:
        loop = asyncio.get_running_loop()
        waiter = (loop, loop.create_future())
        self._waiters.append(waiter)
        return waiter

    async def _wait(self, waiter: _Waiter) -> None:
        try:
            await waiter[1]
        finally:
            with self._changed:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def aggregate(events: Sequence[Event]) -> GenerationResult:
    """Fold a finished request's events into one result. Tool calls cut off before their end are left out."""
    deltas = [event for event in events if isinstance(event, Delta)]
    finish = events[-1]
    assert isinstance(finish, Finish), "only a finished request has a result"
    logprobs: list[TokenLogprob] = []
    for delta in deltas:
        logprobs.extend(delta.logprobs)
    return GenerationResult(
        text="".join(delta.text for delta in deltas if delta.channel is Channel.CONTENT),
        reasoning="".join(delta.text for delta in deltas if delta.channel is Channel.REASONING),
        tool_calls=_tool_calls([event for event in events if isinstance(event, ToolCallDelta)]),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        logprobs=tuple(logprobs),
        finish_reason=finish.reason,
        usage=finish.usage,
        timings=finish.timings,
    )


def _tool_calls(pieces: Sequence[ToolCallDelta]) -> tuple[ToolCall, ...]:
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for piece in pieces:
        if piece.name is not None:
            names[piece.index] = piece.name
        arguments[piece.index] = arguments.get(piece.index, "") + piece.arguments
    calls = []
    for index, name in sorted(names.items()):
        with contextlib.suppress(json.JSONDecodeError):
            parsed = json.loads(arguments[index] or "{}")
            if isinstance(parsed, dict):
                calls.append(ToolCall(name=name, arguments=parsed))
    return tuple(calls)
