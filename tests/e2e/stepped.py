"""An Engine over a real model, stepped by hand, with its physical side in view; and the same without any cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from ninfer.runtime.core.engine_core import CoreOptions, EngineCore
from ninfer.runtime.core.handle import GenerationHandle
from ninfer.runtime.core.stats import Availability
from ninfer.runtime.instance import ModelInstance
from ninfer.runtime.options import settle
from ninfer.runtime.program.program import Program
from ninfer.types import (
    EngineOptions,
    GenerationRequest,
    GenerationResult,
    GenerationStart,
    Prompt,
    Reuse,
    Sampling,
    StopConditions,
)
from tests.fakes import FakeClock
from tests.runtime.simulated import check_ownership

Answer = tuple[tuple[int, ...], object, str]


def greedy(prompt: Prompt, new: int = 3, session: str | None = None) -> GenerationRequest:
    """A request whose answer is fixed and always has `new` tokens."""
    return GenerationRequest(
        prompt, new, Sampling.greedy(), StopConditions(ignore_eos=True), top_logprobs=3, session_key=session
    )


def answer(result: GenerationResult) -> Answer:
    """Everything that must not depend on reuse: tokens, text, and log-probabilities to the last bit."""
    return result.token_ids, result.logprobs, result.text + result.reasoning


def reuse_of(handle: GenerationHandle) -> Reuse:
    """The reuse that was announced."""
    start = next(event for event in handle.published if isinstance(event, GenerationStart))
    assert start.reuse is not None
    assert start.reused_tokens == start.reuse.frontier
    return start.reuse


def poison(program: Program) -> None:
    """Whatever was never written is not a number: whoever reads it shows."""
    state = program._executor._state
    for layer in state.gdn:
        layer.state.fill_(torch.nan)
        layer.history.fill_(torch.nan)


@dataclass
class Stepped:
    """A core over one instance's own Program. Every boundary checks who owns what."""

    instance: ModelInstance
    options: EngineOptions
    clock: FakeClock = field(default_factory=FakeClock)
    program: Program = field(init=False)
    core: EngineCore = field(init=False)

    def __post_init__(self) -> None:
        self.program = self.instance.program(settle(self.options, 32768, 1))
        poison(self.program)
        core = CoreOptions(self.options.max_pending_requests, self.options.concurrent_prefill)
        self.core = EngineCore(self.program, core, self.clock)

    def submit(self, request: GenerationRequest) -> GenerationHandle:
        frontend = self.instance.frontend
        prepared = frontend.prepare(request.prompt)
        return self.core.submit(
            prepared,
            frontend.output_session(prepared, request),
            request.max_new_tokens,
            frontend.resolve_sampling(request, prepared, lambda: 0),
            request.top_logprobs,
            request.deadline,
            request.session_key,
            request.cache,
        )

    def step(self) -> bool:
        moved = self.core.step()
        if self.core.availability is not Availability.FAILED:
            check_ownership(self.program)
        return moved

    def settle(self, limit: int = 1000) -> None:
        """Run boundaries until one does nothing."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError(f"still busy after {limit} boundaries")

    def run_until(self, condition: Callable[[], bool], limit: int = 1000) -> None:
        """Run boundaries until a condition holds."""
        for _ in range(limit):
            if condition():
                return
            self.step()
        raise AssertionError(f"the condition did not hold within {limit} boundaries")

    def ask(self, request: GenerationRequest) -> tuple[Answer, Reuse]:
        """Submit, run to the end, and read."""
        handle = self.submit(request)
        self.settle()
        return answer(handle.result(0)), reuse_of(handle)

    def usable(self, prompt: Prompt) -> int:
        """The longest complete history on record that the prompt repeats and goes beyond."""
        prepared = self.instance.frontend.prepare(prompt)
        histories = [tuple(c.identity.tokens) for c in self.program._stores.checkpoints.values()]
        lengths = [len(h) for h in histories if len(h) < len(prepared.token_ids) and prepared.token_ids[: len(h)] == h]
        return max(lengths, default=0)


@dataclass
class Cold:
    """What requests are answered without a cache, each computed once and alone."""

    instance: ModelInstance
    options: EngineOptions
    known: dict[object, Answer] = field(default_factory=dict)
    engine: Stepped = field(init=False)

    def __post_init__(self) -> None:
        self.engine = Stepped(self.instance, replace(self.options, device_state_slots=0))

    def __call__(self, request: GenerationRequest) -> Answer:
        prepared = self.instance.frontend.prepare(request.prompt)
        key = prepared.token_ids, prepared.opens_thinking, request.max_new_tokens, request.sampling
        if key not in self.known:
            self.known[key], reuse = self.engine.ask(replace(request, session_key=None, deadline=None))
            assert reuse.frontier == 0
        return self.known[key]


def open_instance(artifact: Path) -> ModelInstance:
    """The instance, on one thread."""
    torch.set_num_threads(1)
    return ModelInstance.open(artifact)
