"""Any order of submissions, cancels, deadlines, abandons, reads, faults, steps and closes, against a plain reference.

The reference knows only what each request asked for and what was done to it. Checked after every step: order and
single ending of events, nothing visible before its commit, output a prefix of what the model would say, pages and lanes
conserved. Checked at the end: everyone ended, exactly once, for an allowed reason, and everything was given back.
"""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ninfer.errors import EngineFailure, RequestError, RequestErrorKind
from ninfer.runtime.core.engine_core import CoreOptions, EngineCore
from ninfer.runtime.core.handle import GenerationHandle
from ninfer.runtime.core.program import UnitFault
from ninfer.runtime.core.stats import Availability
from ninfer.types import Boundary, BoundaryKind, CacheUse, Finish, FinishReason, GenerationStart, PreparedPrompt
from tests.fakes import GREEDY, FakeClock, ScriptedProgram, scripted_token
from tests.runtime.core.outputs import FakeOutput
from tests.runtime.core.support import finish_of, tokens_of

UNIT_CALLS = ("prefill", "decode", "control", "commit")
CACHE_CALLS = ("assess_capture", "seal_capture", "assess_retain")
ALL_CALLS = (
    *(*UNIT_CALLS, *CACHE_CALLS),
    *("assess", "seal", "start", "advance", "result", "abort", "abort_pending", "seal_terminal"),
)
MAX_CONTEXT = 40
MAX_PROMPT = 24


@dataclass
class Asked:
    """What the reference knows of one request."""

    handle: GenerationHandle
    prompt: PreparedPrompt
    new: int
    stop_at: int | None
    forced: bool
    deadline_at: float | None
    broken_at: int | None
    read: int = 0
    cancelled: bool = False
    consumed: bool = False

    def output(self) -> tuple[int, ...]:
        """Everything the request would say if left alone."""
        tokens: list[int] = []
        while len(tokens) < self.new:
            if self.forced and len(tokens) == 1:
                tokens.extend((7, 8)[: self.new - len(tokens)])
            else:
                tokens.append(scripted_token(self.prompt, len(tokens)))
            if self.stop_at is not None and len(tokens) > self.stop_at:
                return tuple(tokens[: self.stop_at + 1])
        return tuple(tokens)

    def natural(self) -> FinishReason:
        """How it would end if left alone."""
        stops = self.stop_at is not None and self.stop_at < self.new
        return FinishReason.STOP if stops else FinishReason.LENGTH


class ControlPlane(RuleBasedStateMachine):
    """Drives a stepped EngineCore over a scripted Program."""

    @initialize(
        lanes=st.integers(1, 4),
        pages=st.integers(4, 14),
        chunk=st.integers(1, 5),
        span=st.integers(1, 3),
        stages=st.integers(1, 3),
        terminal_stages=st.integers(1, 2),
        commits_at=st.sampled_from([None, 1]),
        concurrent=st.booleans(),
        pending=st.integers(0, 6),
        images=st.integers(0, 5),
        host_images=st.integers(0, 3),
    )
    def build(
        self,
        lanes: int,
        pages: int,
        chunk: int,
        span: int,
        stages: int,
        terminal_stages: int,
        commits_at: int | None,
        concurrent: bool,
        pending: int,
        images: int,
        host_images: int,
    ) -> None:
        times = (stages, terminal_stages, commits_at)
        self.program = ScriptedProgram(lanes, pages, 4, MAX_CONTEXT, chunk, span, *times, images, host_images)
        self.clock = FakeClock()
        self.core = EngineCore(self.program, CoreOptions(pending, concurrent), self.clock)
        self.capacity = pending + lanes
        self.asked: list[Asked] = []
        self.faulted = False
        self.broken = False
        self.closing = False
        self.program.observer = self.check_visible

    # --- actions ---

    @rule(
        data=st.data(),
        length=st.integers(1, 12),
        boundaries=st.lists(st.tuples(st.sampled_from(BoundaryKind), st.integers(1, 12)), max_size=3),
        session=st.sampled_from([None, "a", "b"]),
        cache=st.sampled_from([CacheUse.READ_WRITE] * 3 + [CacheUse.DISABLED]),
        new=st.integers(0, 12),
        stop_at=st.none() | st.integers(0, 6),
        forced=st.booleans(),
        deadline=st.none() | st.integers(0, 12),
        broken_at=st.none() | st.none() | st.integers(0, 8),
        hold=st.booleans(),
    )
    def submit(
        self,
        data: st.DataObject,
        length: int,
        boundaries: list[tuple[BoundaryKind, int]],
        session: str | None,
        cache: CacheUse,
        new: int,
        stop_at: int | None,
        forced: bool,
        deadline: int | None,
        broken_at: int | None,
        hold: bool,
    ) -> None:
        """A prompt continues one of two stems, or what an earlier request said; its last token is its own."""
        histories = [(), *(a.prompt.token_ids + a.output()[: data.draw(st.integers(0, 6))] for a in self.asked[-4:])]
        stem = data.draw(st.sampled_from(histories))[: MAX_PROMPT - length]
        number = len(self.asked)
        family = data.draw(st.sampled_from([100, 200]))
        tokens = (*stem, *range(family, family + length - 1), 10_000 + number)
        marks = tuple(Boundary(kind, frontier) for kind, frontier in boundaries if frontier <= len(tokens))
        prompt = PreparedPrompt(tokens, None, False, b"", marks)
        # Forced tokens come where a span ends; the first span is one token whatever the span length.
        controls: dict[int, tuple[int, ...]] = {1: (7, 8)} if forced else {}
        output = FakeOutput(None, number, stop_at, controls, hold, broken_at)
        outstanding = self.outstanding()
        try:
            handle = self.core.submit(prompt, output, new, GREEDY, deadline=deadline, session_key=session, cache=cache)
        except RequestError as error:
            self.check_refusal(error, outstanding, new)
        except EngineFailure:
            assert self.core.availability is Availability.FAILED
        else:
            assert new == 0 or outstanding < self.capacity
            deadline_at = None if deadline is None else self.clock.now + deadline
            self.asked.append(Asked(handle, prompt, new, stop_at, forced, deadline_at, broken_at))

    def check_refusal(self, error: RequestError, outstanding: int, new: int) -> None:
        if error.kind is RequestErrorKind.CLOSED:
            assert self.closing
        else:
            assert error.kind is RequestErrorKind.OVERLOADED
            assert outstanding >= self.capacity
            assert new > 0

    @rule(times=st.integers(1, 8))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.core.step()
            self.check_events()

    @rule(seconds=st.integers(1, 6))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from(self.asked))
        asked.cancelled = True
        asked.handle.cancel()

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from(self.asked))
        asked.cancelled = asked.consumed = True
        asked.handle.abandon()

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        asked = data.draw(st.sampled_from(self.asked))
        try:
            while (event := asked.handle.next_event(timeout=0)) is not None:
                assert event == asked.handle.published[asked.read]
                asked.read += 1
                asked.consumed = asked.consumed or isinstance(event, Finish)
        except TimeoutError:
            assert not asked.handle.finished

    @rule(operation=st.sampled_from(UNIT_CALLS))
    def fault(self, operation: str) -> None:
        self.faulted = True
        self.program.arm(operation, UnitFault("scripted"))

    @rule(operation=st.sampled_from(ALL_CALLS), chance=st.integers(0, 3))
    def break_down(self, operation: str, chance: int) -> None:
        """Rarely: an Engine that has failed has little more to show."""
        if chance == 0:
            self.broken = True
            self.program.arm(operation, RuntimeError("scripted"))

    @rule(count=st.integers(1, 3))
    def go_stale(self, count: int) -> None:
        self.program.stale_plans = count

    @rule(drain=st.booleans(), chance=st.integers(0, 3))
    def close(self, drain: bool, chance: int) -> None:
        if chance == 0:
            self.closing = True
            self.core.close(drain)

    # --- the reference ---

    def outstanding(self) -> int:
        open_ones = [a for a in self.asked if a.new > 0 and not (a.handle.finished and a.consumed)]
        return len(open_ones)

    def check_visible(self) -> None:
        """At every call into Program: nothing is published that Program has not committed."""
        for asked in self.asked:
            committed = self.program.committed.get(asked.prompt.token_ids, [])
            visible = tokens_of(asked.handle.published)
            assert list(visible) == committed[: len(visible)]

    def check_events(self) -> None:
        for asked in self.asked:
            events = asked.handle.published
            finishes = [number for number, event in enumerate(events) if isinstance(event, Finish)]
            starts = [number for number, event in enumerate(events) if isinstance(event, GenerationStart)]
            assert finishes in ([], [len(events) - 1])
            assert starts == [0] if len(events) > len(finishes) else starts == []
            visible = tokens_of(events)
            assert visible == asked.output()[: len(visible)]

    @invariant()
    def books_balance(self) -> None:
        assert self.program.violations == []
        assert self.core.stats().outstanding == self.outstanding()
        occupancy = self.core.stats().occupancy
        for axis in occupancy.axes if occupancy is not None else ():
            assert axis.allocated + axis.reserved + axis.available == axis.capacity
            assert min(axis.allocated, axis.reserved, axis.available) >= 0

    @invariant()
    def events_make_sense(self) -> None:
        self.check_visible()
        self.check_events()

    def check_ending(self, asked: Asked) -> None:
        finish = finish_of(asked.handle)
        text = "".join(f"<{token}>" for token in tokens_of(asked.handle.published))
        if finish.reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert finish.reason is asked.natural()
            result = asked.handle.result(0)
            assert result.token_ids == asked.output()
            assert result.text == text
            assert result.usage.completion_tokens == len(result.token_ids)
        elif finish.reason is FinishReason.CANCELLED:
            assert asked.cancelled or self.closing
            assert asked.handle.result(0).text == text
        elif finish.reason is FinishReason.DEADLINE:
            assert asked.deadline_at is not None
            assert asked.deadline_at <= self.clock.now
        else:
            self.check_error(asked)

    def check_error(self, asked: Asked) -> None:
        with pytest.raises((EngineFailure, RequestError)) as raised:
            asked.handle.result(0)
        error = raised.value
        if not isinstance(error, RequestError):
            assert self.broken
        elif error.kind is RequestErrorKind.INFEASIBLE:
            assert -(-(len(asked.prompt.token_ids) + asked.new) // 4) > self.program.limits.kv_pages
        else:
            assert error.kind is RequestErrorKind.FAILED
            assert self.faulted or asked.broken_at is not None

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        for _ in range(3000):
            if not self.core.step():
                break
        else:
            raise AssertionError("the Engine never comes to rest")
        self.events_make_sense()
        for asked in self.asked:
            self.check_ending(asked)
        assert self.program.sequences == {}
        assert self.program.reclaimable_pages == self.program.limits.kv_pages
        assert self.core.stats().checkpoints == len(self.program.checkpoints)
        assert self.program.transaction is None
        assert (self.core.stats().active, self.core.stats().waiting) == (0, 0)
        self.core.close()
        assert self.program.violations == []
        assert self.program.calls("close") == [("close",)]


ControlPlane.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestControlPlane = ControlPlane.TestCase
