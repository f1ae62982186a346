"""The worker thread, blocking consumers and the asynchronous bridge. Real threads, real clock, no sleeps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from ninfer.errors import EngineFailure, RequestError
from ninfer.runtime.core.engine_core import CoreOptions, EngineCore
from ninfer.runtime.core.handle import GenerationHandle
from ninfer.runtime.core.stats import Availability
from ninfer.types import Delta, Finish, FinishReason, GenerationStart
from tests.fakes import GREEDY, ScriptedProgram, prompt_of
from tests.runtime.core.outputs import FakeOutput
from tests.runtime.core.support import expected

LONG = 5000


@contextmanager
def _running(program: ScriptedProgram | None = None, pending: int = 64) -> Iterator[tuple[EngineCore, ScriptedProgram]]:
    program = program or ScriptedProgram(lanes=4, pages=64)
    core = EngineCore(program, CoreOptions(max_pending_requests=pending))
    core.start()
    try:
        yield core, program
    finally:
        core.close()
        assert program.violations == []
        assert program.closed


def _endless() -> ScriptedProgram:
    return ScriptedProgram(lanes=1, pages=LONG, max_context=LONG * 4)


def _submit(core: EngineCore, first: int, new: int, deadline: float | None = None) -> GenerationHandle:
    return core.submit(prompt_of(3, first), FakeOutput(), new, GREEDY, None, deadline)


def _gate(program: ScriptedProgram, operation: str) -> tuple[threading.Event, threading.Event]:
    """Hold the worker at its next call of an operation: (reached, go on)."""
    reached, released = threading.Event(), threading.Event()

    def observe() -> None:
        if program.log and program.log[-1][0] == operation:
            reached.set()
            assert released.wait(30)

    program.observer = observe
    return reached, released


def test_many_threads_submit_and_read() -> None:
    with _running() as (core, _):

        def one(first: int) -> tuple[int, ...]:
            handle = _submit(core, first, 1 + first % 9)
            events = list(handle)
            assert isinstance(events[0], GenerationStart)
            assert isinstance(events[-1], Finish)
            return tuple(token for event in events if isinstance(event, Delta) for token in event.token_ids)

        with ThreadPoolExecutor(8) as pool:
            outputs = list(pool.map(one, range(1, 61)))
        assert outputs == [expected(3, 1 + first % 9, first) for first in range(1, 61)]
        assert core.stats().outstanding == 0


def test_an_idle_worker_sleeps_and_wakes_for_the_next_request() -> None:
    with _running() as (core, _):
        for first in range(1, 6):
            assert _submit(core, first, 2).result(30).token_ids == expected(3, 2, first)
        boundaries = core.stats().boundaries
        assert boundaries <= 5 * 6
        assert _submit(core, 9, 2).result(30).finish_reason is FinishReason.LENGTH


def test_cancel_from_another_thread() -> None:
    with _running(_endless()) as (core, _):
        handle = _submit(core, 1, LONG)
        assert isinstance(handle.next_event(30), GenerationStart)
        threading.Thread(target=handle.cancel).start()
        assert handle.result(30).finish_reason is FinishReason.CANCELLED


def test_a_deadline_needs_nobody_to_wake_the_worker() -> None:
    with _running(_endless()) as (core, _):
        assert _submit(core, 1, LONG, deadline=0.0).result(30).finish_reason is FinishReason.DEADLINE


def test_a_cancel_while_the_unit_runs_takes_effect_at_its_end() -> None:
    program = _endless()
    with _running(program) as (core, _):
        reached, released = _gate(program, "decode")
        handle = _submit(core, 1, LONG)
        assert reached.wait(30)
        handle.cancel()
        assert not handle.finished
        released.set()
        assert handle.result(30).token_ids == expected(3, 1)


def test_dropping_the_handle_ends_the_request() -> None:
    program = _endless()
    with _running(program, pending=0) as (core, _):
        handle = _submit(core, 1, LONG)
        handle.next_event(30)
        del handle
        core.close(drain=True)
        assert core.stats().finished[FinishReason.CANCELLED] == 1
        assert core.stats().outstanding == 0


def test_close_while_a_consumer_waits() -> None:
    with _running(_endless()) as (core, _):
        handle = _submit(core, 1, LONG)
        waiting = _submit(core, 9, LONG)
        with ThreadPoolExecutor(2) as pool:
            results = [pool.submit(handle.result, 30), pool.submit(waiting.result, 30)]
            handle.next_event(30)
            core.close()
        assert [result.result().finish_reason for result in results] == [FinishReason.CANCELLED] * 2
        with pytest.raises(RequestError, match="closed"):
            _submit(core, 20, 1)


def test_close_from_many_threads_at_once() -> None:
    with _running(_endless()) as (core, program):
        handle = _submit(core, 1, LONG)
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(core.close) for _ in range(4)]:
                done.result(30)
        assert handle.finished
        assert core.availability is Availability.CLOSED
        assert program.calls("close") == [("close",)]


def test_a_drain_can_be_cut_short() -> None:
    program = _endless()
    with _running(program) as (core, _):
        reached, released = _gate(program, "decode")
        handle = _submit(core, 1, LONG)
        assert reached.wait(30)
        with ThreadPoolExecutor(2) as pool:
            drained = pool.submit(core.close, True)
            closed = pool.submit(core.close)
            released.set()
            drained.result(30)
            closed.result(30)
        assert handle.result(0).finish_reason is FinishReason.CANCELLED


def test_failure_reaches_every_waiting_thread() -> None:
    program = _endless()
    with _running(program) as (core, _):
        reached, released = _gate(program, "decode")
        handles = [_submit(core, 1, LONG), _submit(core, 9, LONG)]
        assert reached.wait(30)
        with ThreadPoolExecutor(2) as pool:
            results = [pool.submit(handle.result, 30) for handle in handles]
            program.arm("commit", RuntimeError("scripted"))
            released.set()
            for result in results:
                with pytest.raises(EngineFailure, match="scripted"):
                    result.result()
        assert core.availability is Availability.FAILED


# --- asynchronous consumers -------------------------------------------------------------------------------


def test_async_iteration_and_result() -> None:
    async def consume(core: EngineCore, first: int) -> tuple[int, ...]:
        handle = _submit(core, first, 6)
        tokens: list[int] = []
        async for event in handle:
            if isinstance(event, Delta):
                tokens.extend(event.token_ids)
        assert (await handle.aresult()).token_ids == tuple(tokens)
        return tuple(tokens)

    async def main() -> None:
        with _running() as (core, _):
            outputs = await asyncio.gather(*[consume(core, first) for first in range(1, 21)])
            assert outputs == [expected(3, 6, first) for first in range(1, 21)]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_async_context_abandons_and_a_cancelled_wait_leaves_no_waiter() -> None:
    program = _endless()

    async def main(core: EngineCore) -> None:
        reached, released = _gate(program, "decode")
        async with _submit(core, 1, LONG) as handle:
            waiting = asyncio.ensure_future(handle.aresult())
            assert await asyncio.to_thread(reached.wait, 30)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        released.set()
        assert (await handle.aresult()).finish_reason is FinishReason.CANCELLED

    with _running(program) as (core, _):
        asyncio.run(asyncio.wait_for(main(core), 60))


def test_async_error() -> None:
    program = ScriptedProgram(lanes=1)

    async def main(core: EngineCore) -> None:
        with pytest.raises(EngineFailure, match="scripted"):
            await _submit(core, 1, 9).aresult()

    with _running(program) as (core, _):
        program.arm("decode", RuntimeError("scripted"))
        asyncio.run(asyncio.wait_for(main(core), 60))


def test_a_closed_event_loop_does_not_disturb_the_worker() -> None:
    program = _endless()
    with _running(program) as (core, _):
        reached, released = _gate(program, "prefill")
        handle = _submit(core, 1, 2)
        assert reached.wait(30)
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # it would report the task that it leaves behind
        waiting = loop.create_task(handle.aresult())

        async def breathe() -> None:
            await asyncio.sleep(0)

        loop.run_until_complete(breathe())
        loop.close()
        released.set()
        assert handle.result(30).token_ids == expected(3, 2)
        assert not waiting.done()
