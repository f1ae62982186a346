"""EngineCore: the request control plane as other threads see it, and the one worker that runs its boundaries.

Ingress, consumers and gateways touch only the arrival list, flags and response channels. Records, Scheduler,
ResourceManager and Program belong to the worker.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ninfer.errors import EngineFailure, RequestError, RequestErrorKind
from ninfer.runtime.core.cache.cost import CostModel
from ninfer.runtime.core.cache.options import CacheOptions
from ninfer.runtime.core.capacity import CapacityLease, OutstandingCapacity
from ninfer.runtime.core.channel import Failure, ResponseChannel
from ninfer.runtime.core.handle import GenerationHandle
from ninfer.runtime.core.loop import ControlLoop
from ninfer.runtime.core.output import OutputSession
from ninfer.runtime.core.program import Occupancy, Program, SequenceDemand
from ninfer.runtime.core.request import RequestRecord
from ninfer.runtime.core.stats import Availability, EngineStats, log_end
from ninfer.types import CacheUse, Finish, FinishReason, PreparedPrompt, ResolvedSampling

logger = logging.getLogger("ninfer.engine")


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """`max_pending_requests` may wait beyond the active ones; `concurrent_prefill` admits during another's prefill.

    `cache` limits the catalog of checkpoints, by default to what Program has room for; `cost` ranks what to keep and
    reuse.
    """

    max_pending_requests: int = 64
    concurrent_prefill: bool = False
    cache: CacheOptions | None = None
    cost: CostModel | None = None


class EngineCore:
    """Accepts requests from any thread and runs them on one worker.

    `start` launches the worker; without it the owner drives the same worker by calling `step`. `clock` gives seconds
    and must not go back.
    """

    def __init__(
        self, program: Program, options: CoreOptions | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        options = options or CoreOptions()
        self._program = program
        self._limits = program.limits
        self._options = options
        self._clock = clock
        self._capacity = OutstandingCapacity(options.max_pending_requests + self._limits.max_concurrency)
        self._loop = ControlLoop(program, options.concurrent_prefill, clock, options.cache, options.cost)
        self._orders = itertools.count()
        self._signal = threading.Condition()
        self._signalled = False
        self._arrivals: list[RequestRecord] = []
        self._availability = Availability.READY
        self._draining = False
        self._failure = Failure(None, "")
        self._submitted = 0
        self._refused = 0
        self._worker: threading.Thread | None = None
        self._picture = self._draw(program.occupancy())

    # --- requests ---

    def submit(
        self,
        prepared: PreparedPrompt,
        output: OutputSession[Any],
        max_new_tokens: int | None,
        sampling: ResolvedSampling,
        top_logprobs: int | None = None,
        deadline: float | None = None,
        session_key: str | None = None,
        cache: CacheUse = CacheUse.READ_WRITE,
    ) -> GenerationHandle:
        """Queue one generation. `max_new_tokens` None means up to the context limit; `deadline` is seconds from now.

        Refuses before any state exists: RequestError with kind INVALID, CONTEXT_EXCEEDED, OVERLOADED or CLOSED, and
        EngineFailure once the Engine has failed. Thread-safe; never blocks on the model.
        """
        try:
            demand = self._demand(prepared, max_new_tokens, sampling, top_logprobs)
            _check_deadline(deadline)
            _check_session_key(session_key)
            return self._accept(demand, output, deadline, session_key, cache)
        except (RequestError, EngineFailure):
            with self._signal:
                self._refused += 1
            raise

    def _demand(
        self, prepared: PreparedPrompt, max_new_tokens: int | None, sampling: ResolvedSampling, top_logprobs: int | None
    ) -> SequenceDemand:
        prompt, context = len(prepared.token_ids), self._limits.max_context
        if prompt == 0:
            raise RequestError(RequestErrorKind.INVALID, "the prompt is empty: give it at least one token")
        _check_count("max_new_tokens", max_new_tokens)
        _check_count("top_logprobs", top_logprobs)
        if prompt >= context:
            raise RequestError(
                RequestErrorKind.CONTEXT_EXCEEDED,
                f"the prompt has {prompt} tokens, max_context is {context}: shorten the prompt or raise max_context",
            )
        budget = context - prompt if max_new_tokens is None else max_new_tokens
        if prompt + budget > context:
            raise RequestError(
                RequestErrorKind.CONTEXT_EXCEEDED,
                f"{prompt} prompt tokens and max_new_tokens {budget} make {prompt + budget}, max_context is {context}: "
                f"ask for at most {context - prompt} new tokens, shorten the prompt or raise max_context",
            )
        return SequenceDemand(prepared, budget, sampling, top_logprobs)

    def _accept(
        self,
        demand: SequenceDemand,
        output: OutputSession[Any],
        deadline: float | None,
        session_key: str | None,
        cache: CacheUse,
    ) -> GenerationHandle:
        with self._signal:
            self._check_open()
            lease = self._lease(demand)
            record = RequestRecord(
                order=next(self._orders),
                demand=demand,
                output=output,
                channel=ResponseChannel(lease),
                submitted_at=self._clock(),
                session_key=session_key,
                cache=cache,
            )
            if deadline is not None:
                record.deadline_at = record.submitted_at + deadline
            if demand.max_new_tokens == 0:
                _finish_empty(record)
            else:
                self._submitted += 1
                self._arrivals.append(record)
                self._wake()
        return GenerationHandle(record.order, record.channel, self._wake)

    def _check_open(self) -> None:
        if self._availability is Availability.FAILED:
            raise self._failure.exception()
        if self._availability is not Availability.READY:
            raise RequestError(RequestErrorKind.CLOSED, "the Engine is closed: create a new one")

    def _lease(self, demand: SequenceDemand) -> CapacityLease:
        """A share of the outstanding capacity; a request for no output needs none."""
        if demand.max_new_tokens == 0:
            return CapacityLease()
        lease = self._capacity.acquire()
        if lease is None:
            raise RequestError(
                RequestErrorKind.OVERLOADED,
                f"{self._capacity.limit} requests are outstanding (max_pending_requests "
                f"{self._options.max_pending_requests} + max_concurrency {self._limits.max_concurrency}): "
                "retry when one has ended and been read, or raise max_pending_requests",
            )
        return lease

    # --- facts for gateways ---

    @property
    def availability(self) -> Availability:
        """Whether requests are accepted."""
        return self._availability

    def stats(self) -> EngineStats:
        """The picture at the last boundary, with ingress as it is now."""
        with self._signal:
            picture = self._picture
            return EngineStats(
                **{**picture, "waiting": picture["waiting"] + len(self._arrivals)},
                availability=self._availability,
                outstanding=self._capacity.outstanding,
                capacity=self._capacity.limit,
                submitted=self._submitted,
                refused=self._refused,
            )

    def _draw(self, occupancy: Occupancy | None) -> dict[str, Any]:
        """What the worker contributes to `stats`, never changed once drawn: at every boundary, so it must be cheap."""
        picture = self._loop.counters.totals()
        picture["waiting"] = self._loop.waiting
        picture["active"] = self._loop.active
        picture["checkpoints"] = self._loop.checkpoints
        picture["occupancy"] = occupancy
        return picture

    # --- the worker ---

    def start(self) -> None:
        """Launch the worker thread (once)."""
        assert self._worker is None, "an Engine has one worker"
        # A daemon, so that a process can exit: interpreters join other threads before they run `atexit` handlers.
        self._worker = threading.Thread(target=self._work, name="ninfer-engine", daemon=True)
        self._worker.start()

    def step(self) -> bool:
        """Run one boundary. False if nothing happened, so that nothing will until something arrives or is overdue."""
        if not self._running:
            return False
        try:
            moved = self._loop.receive(self._take_arrivals())
            if self._availability is Availability.CLOSING and not self._draining:
                self._loop.cancel_all()
            moved |= self._loop.boundary()
            self._picture = self._draw(self._program.occupancy())
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
            return False
        self._close_when_idle()
        return moved

    @property
    def _running(self) -> bool:
        return self._availability in (Availability.READY, Availability.CLOSING)

    def _work(self) -> None:
        while self._running:
            if not self.step():
                self._sleep()

    def _sleep(self) -> None:
        """Until somebody signals or the next deadline passes."""
        deadline = self._loop.next_deadline()
        timeout = None if deadline is None else min(max(deadline - self._clock(), 0.0), threading.TIMEOUT_MAX)
        with self._signal:
            self._signal.wait_for(lambda: self._signalled or not self._running, timeout)
            self._signalled = False

    def _wake(self) -> None:
        with self._signal:
            self._signalled = True
            self._signal.notify_all()

    def _take_arrivals(self) -> list[RequestRecord]:
        with self._signal:
            arrivals, self._arrivals = self._arrivals, []
        return arrivals

    def _fail(self, error: BaseException) -> None:
        """Refuse everyone from now on, then clean up in the safe order and answer everyone."""
        logger.error("the Engine failed", exc_info=error)
        failure = Failure(None, f"the Engine failed and must be created anew: {type(error).__name__}: {error}")
        with self._signal:
            self._availability, self._failure = Availability.FAILED, failure
            arrivals = self._take_arrivals()
        self._loop.fail(failure, arrivals)
        self._picture = self._draw(None)

    # --- the end ---

    def close(self, drain: bool = False) -> None:
        """End every request, then Program. Idempotent, safe from any thread and from `atexit`.

        `drain` lets accepted requests finish; otherwise they end as cancelled with what they have.
        """
        with self._signal:
            if self._availability is Availability.READY:
                self._availability, self._draining = Availability.CLOSING, drain
            self._draining = self._draining and drain
            self._wake()
        if self._worker is None:
            while self._running:
                self.step()
        elif threading.current_thread() is not self._worker:
            self._worker.join()

    def _close_when_idle(self) -> None:
        if self._availability is not Availability.CLOSING or not self._loop.idle:
            return
        self._loop.close()
        with self._signal:
            self._availability = Availability.CLOSED
        self._picture = self._draw(None)


def _check_count(name: str, value: object) -> None:
    """A value that is no int would first be noticed by the worker, and there it would cost every request."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise RequestError(RequestErrorKind.INVALID, f"{name} is {value!r}: give a whole number, 0 or more")


def _check_deadline(deadline: object) -> None:
    if deadline is not None and not (isinstance(deadline, (int, float)) and deadline >= 0):
        raise RequestError(RequestErrorKind.INVALID, f"deadline is {deadline!r}: give seconds from now, 0 or more")


def _check_session_key(key: object) -> None:
    if key is not None and not isinstance(key, str):
        raise RequestError(RequestErrorKind.INVALID, f"session_key is {key!r}: give a string")


def _finish_empty(record: RequestRecord) -> None:
    """A request for no output is complete as it is: no queue, no Program."""
    finish = Finish(FinishReason.LENGTH, record.usage(), record.timings(record.submitted_at))
    log_end(record.order, finish, None)
    record.channel.finish(finish, None)
