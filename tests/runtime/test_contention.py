"""Four sessions over room for two: long random histories of one Engine in which everything contends.

The control plane and Program are the real ones; only tensors are simulated (`simulated.py`), so that every answer is
known in advance and a run of thousands of operations takes a second.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from ninfer.errors import RequestError, RequestErrorKind
from ninfer.runtime.core.engine_core import CoreOptions, EngineCore
from ninfer.runtime.core.handle import GenerationHandle
from ninfer.runtime.core.program import ProgramLimits
from ninfer.runtime.core.stats import Availability
from ninfer.types import Boundary, BoundaryKind, CacheUse, Delta, Finish, FinishReason, PreparedPrompt
from tests.fakes import GREEDY, FakeClock
from tests.runtime.core.outputs import FakeOutput
from tests.runtime.simulated import PAGE_BYTES, Simulation, answer_to, axes, check_ownership

OPERATIONS = 2000
SEEDS = 20
SESSIONS = 4
CONTEXT = 448
PENDING = 3
PATIENCE = 1500
"""Boundaries after which a request counts as starved: far more than all outstanding requests one after another."""


def limits(host_tier: bool, slots: int) -> ProgramLimits:
    """Pages for two whole contexts; a host arena smaller than what wants to go there."""
    host_images, host_pages = (4, 9) if host_tier else (0, 0)
    return ProgramLimits(4, CONTEXT, 2 * CONTEXT // 64, 128, 64, slots, host_images, host_pages * PAGE_BYTES)


@dataclass
class Asked:
    """One request as the test knows it."""

    handle: GenerationHandle
    session: int
    prompt: tuple[int, ...]
    new: int
    submitted: int
    faults: int
    stoppable: bool = False


@dataclass
class World:
    """An Engine stepped by hand, its sessions and their histories."""

    rng: random.Random
    simulation: Simulation
    clock: FakeClock = field(default_factory=FakeClock)
    core: EngineCore = field(init=False)
    histories: list[tuple[int, ...]] = field(default_factory=lambda: [()] * SESSIONS)
    asked: list[Asked] = field(default_factory=list)
    boundaries: int = 0
    answered: int = 0
    longest_wait: int = 0

    def __post_init__(self) -> None:
        options = CoreOptions(PENDING, concurrent_prefill=self.rng.random() < 0.5)
        self.core = EngineCore(self.simulation.program, options, self.clock)

    # --- operations ---

    def operate(self) -> None:
        operation = self.rng.choices(
            (self.step, self.next_turn, self.other_turn, self.stop, self.wait, self.fault), (75, 10, 6, 4, 2, 1)
        )[0]
        operation()

    def step(self) -> None:
        self.core.step()
        self.boundaries += 1
        assert self.core.availability is Availability.READY, self.core._failure.message
        check_ownership(self.simulation.program)
        if self.simulation.settled:
            stats = self.core.stats()
            assert stats.checkpoints == len(self.simulation.stores.checkpoints)
            assert stats.active == len(self.simulation.stores.sequences)
        self.collect()

    def next_turn(self) -> None:
        """A session goes on from its latest history, or anew when that has become too long."""
        session = self.rng.randrange(SESSIONS)
        history = self.histories[session]
        prompt = (*history, *self.fresh(self.rng.choice((1, 5, 40, 63, 64, 65, 130))))
        new = self.rng.choice((1, 2, 5, 20))
        if len(prompt) + new > CONTEXT:
            self.histories[session], prompt = (), self.fresh(self.rng.randrange(1, 200))
        self.submit(session, prompt, new)

    def other_turn(self) -> None:
        """A session repeats, cuts off, or edits its history; or takes over another's; or uses up the whole context."""
        session, other = self.rng.randrange(SESSIONS), self.rng.randrange(SESSIONS)
        history = self.histories[other] or self.fresh(100)
        cut = self.rng.randrange(1, len(history) + 1)
        prompt = self.rng.choice((history, history[:cut], (*history[:cut], *self.fresh(20))))[: CONTEXT - 8]
        self.submit(session, prompt, self.rng.choice((1, 8, CONTEXT - len(prompt))))

    def submit(self, session: int, prompt: tuple[int, ...], new: int) -> None:
        rng = self.rng
        marks = [Boundary(kind, rng.randrange(1, len(prompt) + 1)) for kind in rng.sample(list(BoundaryKind), 2)]
        prepared = PreparedPrompt(prompt, None, False, b"", tuple(sorted(marks, key=lambda mark: mark.frontier)))
        deadline = rng.choice((None, None, None, 3.0))
        cache = CacheUse.DISABLED if rng.random() < 0.1 else CacheUse.READ_WRITE
        key = f"session {session}" if rng.random() < 0.8 else None
        try:
            handle = self.core.submit(prepared, FakeOutput(), new, GREEDY, None, deadline, session_key=key, cache=cache)
        except RequestError as error:
            if error.kind is not RequestErrorKind.OVERLOADED:
                raise
            return
        faults = self.simulation.model.raised
        self.asked.append(Asked(handle, session, prompt, new, self.boundaries, faults, deadline is not None))

    def stop(self) -> None:
        if self.asked:
            asked = self.rng.choice(self.asked)
            asked.stoppable = True
            asked.handle.cancel()

    def wait(self) -> None:
        self.clock.advance(1.0)

    def fault(self) -> None:
        """The next unit fails, and with it whoever is in it."""
        self.simulation.model.armed = True

    def fresh(self, count: int) -> tuple[int, ...]:
        return tuple(self.rng.randrange(256) for _ in range(count))

    # --- answers ---

    def collect(self) -> None:
        """Check and read what has ended; a whole answer extends its session's history."""
        for asked in [asked for asked in self.asked if asked.handle.finished]:
            self.asked.remove(asked)
            self.check_answer(asked)
        for asked in self.asked:
            assert self.boundaries - asked.submitted < PATIENCE, "a request starves"

    def check_answer(self, asked: Asked) -> None:
        events = list(asked.handle)
        finish = events[-1]
        assert isinstance(finish, Finish)
        tokens = tuple(token for event in events if isinstance(event, Delta) for token in event.token_ids)
        right = answer_to(asked.prompt, asked.new)
        assert tokens == right[: len(tokens)], "a wrong answer"
        assert finish.usage.reused_tokens < len(asked.prompt)
        if finish.reason is FinishReason.LENGTH:
            assert tokens == right
            self.histories[asked.session] = (*asked.prompt, *tokens)
            self.answered += 1
            self.longest_wait = max(self.longest_wait, self.boundaries - asked.submitted)
        elif finish.reason is FinishReason.ERROR:
            assert asked.faults < self.simulation.model.raised, finish.error
        else:
            assert asked.stoppable

    def settle(self) -> None:
        """Without new requests everything ends."""
        self.simulation.model.armed = False
        for _ in range(PATIENCE):
            if not self.asked:
                break
            self.step()
        assert not self.asked
        while self.core.step():
            check_ownership(self.simulation.program)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_contending_sessions_are_all_answered_rightly(seed: int) -> None:
    rng = random.Random(seed)
    simulation = Simulation(limits(host_tier=seed % 2 == 1, slots=(0, 2, 5, 12)[seed // 2 % 4]))
    start = axes(simulation.program)
    world = World(rng, simulation)
    for number in range(OPERATIONS):
        world.operate()
        if number % 50 == 0:
            simulation.check_contents()
    world.settle()
    simulation.check_contents()
    stats = world.core.stats()
    assert world.answered > 50
    assert (stats.reused_tokens > 0) == (simulation.limits.checkpoint_images > 0)
    ended = axes(simulation.program)
    assert ended["lanes"] == start["lanes"]
    assert ended["state_images"] == start["state_images"]
    assert ended["kv_pages"][1] == 0
    world.core.close()
    assert axes(simulation.program) == start
