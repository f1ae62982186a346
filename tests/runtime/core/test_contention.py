"""Four sessions over room for two: long random runs in which everything contends, with and without a host tier.

Every answer must be what the model says alone, every axis must balance at every boundary, nobody may starve, and what
is neither active nor a checkpoint must be free in the end.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from ninfer.errors import RequestError
from ninfer.runtime.core.engine_core import CoreOptions, EngineCore
from ninfer.runtime.core.handle import GenerationHandle
from ninfer.runtime.core.program import UnitFault
from ninfer.types import Boundary, BoundaryKind, CheckpointKind, FinishReason, PreparedPrompt
from tests.fakes import GREEDY, FakeClock, ScriptedProgram, scripted_token
from tests.runtime.core.outputs import FakeOutput
from tests.runtime.core.support import finish_of

PAGES, PAGE, CONTEXT = 40, 8, 160
OPERATIONS = 2000
PATIENCE = 600
"""Boundaries within which every request must have ended: none takes more than about 40 units."""


@dataclass
class Session:
    """One conversation: what both sides said so far, and the request under way."""

    key: str
    history: tuple[int, ...]
    prompt: PreparedPrompt | None = None
    handle: GenerationHandle | None = None
    new: int = 0
    asked_at: int = 0


@dataclass
class Run:
    """One seeded run."""

    seed: int
    host_images: int
    rng: random.Random = field(init=False)
    boundaries: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        stages = self.rng.choice((1, 3))
        self.program = ScriptedProgram(
            2,
            PAGES,
            PAGE,
            CONTEXT,
            32,
            2,
            stages,
            self.rng.choice((1, 2)),
            self.rng.choice((None, 1)),
            5,
            self.host_images,
        )
        self.core = EngineCore(self.program, CoreOptions(8, self.rng.random() < 0.5), FakeClock())
        self.sessions = [Session(str(number), (number, number, 50 + number)) for number in range(4)]

    def operate(self) -> None:
        session = self.rng.choice(self.sessions)
        action = self.rng.random()
        if session.handle is None:
            self.ask(session)
        elif action < 0.02:
            session.handle.cancel()
        elif action < 0.03:
            self.program.arm(self.rng.choice(("prefill", "decode", "commit")), UnitFault("scripted"))
        elif action < 0.05:
            self.program.stale_plans = 1
        else:
            self.step()

    def ask(self, session: Session) -> None:
        """The next turn, an edited earlier one, or a fresh start; sometimes with a common first part."""
        choice = self.rng.random()
        history = session.history
        if choice < 0.2:
            history = history[: self.rng.randrange(1, len(history) + 1)]
        if choice < 0.05:
            history = tuple(range(900, 920))
        question = tuple(self.rng.randrange(100, 110) for _ in range(self.rng.randrange(1, 20)))
        tokens = (*history, *question)
        if len(tokens) > CONTEXT - 20:
            tokens = (*history[:10], *question)
        marks = (Boundary(BoundaryKind.TURN_CLOSURE, len(history)), Boundary(BoundaryKind.MARKER, min(20, len(tokens))))
        session.prompt = PreparedPrompt(tokens, None, False, b"", marks)
        session.new = self.rng.randrange(1, 16)
        session.asked_at = self.boundaries
        session.handle = self.core.submit(
            session.prompt, FakeOutput(), session.new, GREEDY, session_key=self.rng.choice((session.key, None))
        )

    def step(self) -> None:
        self.core.step()
        self.boundaries += 1
        occupancy = self.core.stats().occupancy
        assert occupancy is not None, "the Engine failed"
        for axis in occupancy.axes:
            assert axis.allocated + axis.reserved + axis.available == axis.capacity
            assert min(axis.allocated, axis.reserved, axis.available) >= 0
        for session in self.sessions:
            self.collect(session)

    def collect(self, session: Session) -> None:
        if session.handle is None or session.prompt is None:
            return
        if not session.handle.finished:
            assert self.boundaries - session.asked_at < PATIENCE, "a request starves"
            return
        reason = finish_of(session.handle).reason
        if reason is FinishReason.ERROR:
            with pytest.raises(RequestError, match="scripted"):
                session.handle.result(0)
        else:
            said = session.handle.result(0).token_ids
            expected = tuple(scripted_token(session.prompt, position) for position in range(session.new))
            assert said == expected[: len(said)]
            assert reason is FinishReason.CANCELLED or len(said) == session.new
            session.history = (*session.prompt.token_ids, *said)
        session.handle = None

    def finish(self) -> None:
        while any(session.handle is not None for session in self.sessions):
            self.step()
        while self.core.step():
            pass
        assert self.program.violations == []
        assert self.program.reclaimable_pages == PAGES
        assert self.core.stats().checkpoints == len(self.program.checkpoints)


@pytest.mark.parametrize("host_images", [0, 4])
def test_everything_contends(host_images: int) -> None:
    totals: Counter[str] = Counter()
    for seed in range(5):
        run = Run(seed, host_images)
        for _ in range(OPERATIONS):
            run.operate()
        run.finish()
        stats = run.core.stats()
        totals.update({kind.value: count for kind, count in stats.reuse_hits.items()})
        totals.update({"evictions": stats.evictions, "offloads": stats.offloads, "backfills": stats.backfills})
    assert totals["evictions"] > 100
    assert (totals["offloads"] > 100) == (host_images > 0)
    for kind in set(CheckpointKind) - {CheckpointKind.LONG_ANCHOR}:
        assert totals[kind.value] > 0
