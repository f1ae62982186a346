"""GenerationHandle: a consumer's hold on one submitted request, synchronous or asynchronous."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

from ninfer.runtime.core.channel import ResponseChannel
from ninfer.types import Event, GenerationResult


class GenerationHandle:
    """Read one request's events or its result, or cancel it. Thread-safe; one consumer at a time.

    As a context manager (also `async with`) leaving the block abandons the request: if it is not finished it is
    cancelled. Dropping the last reference does the same.
    """

    def __init__(self, request_id: int, channel: ResponseChannel, wake: Callable[[], None]) -> None:
        self.request_id = request_id
        self._channel = channel
        self._wake = wake

    @property
    def finished(self) -> bool:
        """True once the request has ended (its events may still be unread)."""
        return self._channel.finished

    @property
    def published(self) -> tuple[Event, ...]:
        """Every event published so far, without consuming any."""
        return self._channel.published

    def next_event(self, timeout: float | None = None) -> Event | None:
        """The next event, None after `Finish`. Raises TimeoutError when none comes within `timeout` seconds."""
        return self._channel.take(timeout)

    def __iter__(self) -> Iterator[Event]:
        while (event := self._channel.take(None)) is not None:
            yield event

    def result(self, timeout: float | None = None) -> GenerationResult:
        """Wait for the end. A cancelled or overdue request gives what it had; `finish_reason` says so.

        Raises RequestError or EngineFailure if the request ended with an error, TimeoutError after `timeout` seconds.
        """
        return self._channel.outcome(timeout)

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self._channel.take_async()) is not None:
            yield event

    async def aresult(self) -> GenerationResult:
        """`result` for a coroutine."""
        return await self._channel.outcome_async()

    def cancel(self) -> None:
        """Ask for the end; it takes effect at the worker's next boundary. Harmless once finished."""
        self._channel.cancel_requested = True
        self._wake()

    def abandon(self) -> None:
        """Cancel, and give back the consumer's share of the Engine's outstanding capacity."""
        self._channel.lease.consumer_released = True
        self.cancel()

    def __enter__(self) -> GenerationHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    async def __aenter__(self) -> GenerationHandle:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abandon()

    def __del__(self) -> None:
        # A finaliser may run inside any lock, so it only sets flags. The worker needs no waking: as long as this
        # request is unfinished there is work at hand, and every boundary reads the flag.
        self._channel.lease.consumer_released = True
        self._channel.cancel_requested = True
