"""A bench for the control plane: scripted Program, fake clock and a core that is stepped by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ninfer.runtime.core.engine_core import CoreOptions, EngineCore
from ninfer.runtime.core.handle import GenerationHandle
from ninfer.runtime.core.program import SequenceHandle
from ninfer.types import (
    Boundary,
    CacheUse,
    Delta,
    Event,
    Finish,
    FinishReason,
    GenerationStart,
    PreparedPrompt,
    Reuse,
)
from tests.fakes import GREEDY, FakeClock, ScriptedProgram, prompt_of, scripted_token
from tests.runtime.core.outputs import FakeOutput


@dataclass
class Bench:
    """Everything a stepped test needs."""

    program: ScriptedProgram
    clock: FakeClock
    core: EngineCore

    def submit(
        self,
        prompt: int = 3,
        new: int | None = 4,
        first: int = 1,
        output: FakeOutput | None = None,
        deadline: float | None = None,
        top_logprobs: int | None = None,
    ) -> GenerationHandle:
        """Submit a prompt of `prompt` tokens that starts with token `first`; it takes no part in the cache."""
        output = output or FakeOutput(self.program.log, first)
        return self.core.submit(
            prompt_of(prompt, first), output, new, GREEDY, top_logprobs, deadline, cache=CacheUse.DISABLED
        )

    def ask(
        self,
        tokens: Sequence[int],
        new: int = 4,
        session: str | None = None,
        boundaries: Sequence[Boundary] = (),
        identity: bytes = b"",
        output: FakeOutput | None = None,
    ) -> GenerationHandle:
        """Submit a prompt of exactly these tokens, with the cache in use."""
        prompt = PreparedPrompt(tuple(tokens), None, False, identity, tuple(boundaries))
        return self.core.submit(prompt, output or FakeOutput(self.program.log), new, GREEDY, session_key=session)

    def answer(self, tokens: Sequence[int], new: int = 4, session: str | None = None) -> tuple[int, ...]:
        """Ask, run to the end, and return the whole history: prompt and answer."""
        handle = self.ask(tokens, new, session)
        self.settle()
        return (*tokens, *handle.result(0).token_ids)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.core.step()

    def settle(self, limit: int = 1000) -> None:
        """Run boundaries until one does nothing."""
        for _ in range(limit):
            if not self.core.step():
                return
        raise AssertionError(f"still busy after {limit} boundaries")

    def run_until(self, condition: Callable[[], bool], limit: int = 1000) -> None:
        """Run boundaries until a condition holds."""
        for _ in range(limit):
            if condition():
                return
            self.core.step()
        raise AssertionError(f"the condition did not hold within {limit} boundaries")

    def check_clean(self) -> None:
        """Nothing is active, held or misused."""
        assert self.program.violations == []
        assert self.program.sequences == {}
        assert self.program.transaction is None
        assert self.program.reclaimable_pages == self.program.limits.kv_pages
        assert self.core.stats().checkpoints == len(self.program.checkpoints)
        assert self.core.stats().active == 0
        assert self.core.stats().waiting == 0


def bench(*, pending: int = 8, concurrent_prefill: bool = False, program: ScriptedProgram | None = None) -> Bench:
    """A bench over `program` (by default one of two lanes)."""
    program = program or ScriptedProgram()
    clock = FakeClock()
    return Bench(program, clock, EngineCore(program, CoreOptions(pending, concurrent_prefill), clock))


def expected(prompt: int, count: int, first: int = 1) -> tuple[int, ...]:
    """The first `count` output tokens of a prompt."""
    return tuple(scripted_token(prompt_of(prompt, first), position) for position in range(count))


def tokens_of(events: tuple[Event, ...]) -> tuple[int, ...]:
    """Output tokens in published deltas."""
    return tuple(token for event in events if isinstance(event, Delta) for token in event.token_ids)


def finish_of(handle: GenerationHandle) -> Finish:
    """The one terminal event; it must be last, and preceded by at most one start, which must be first."""
    events = handle.published
    finishes = [event for event in events if isinstance(event, Finish)]
    assert len(finishes) == 1
    assert events[-1] is finishes[0]
    starts = [number for number, event in enumerate(events) if isinstance(event, GenerationStart)]
    assert starts in ([], [0])
    assert (finishes[0].error is not None) == (finishes[0].reason is FinishReason.ERROR)
    return finishes[0]


def reuse_of(handle: GenerationHandle) -> Reuse:
    """The reuse that was announced."""
    start = next(event for event in handle.published if isinstance(event, GenerationStart))
    assert start.reuse is not None
    assert start.reused_tokens == start.reuse.frontier
    return start.reuse


def rounds(program: ScriptedProgram) -> list[tuple[SequenceHandle, ...]]:
    """Membership of every decode round so far."""
    found = []
    for entry in program.calls("decode"):
        members = entry[1]
        assert isinstance(members, tuple)
        found.append(members)
    return found
