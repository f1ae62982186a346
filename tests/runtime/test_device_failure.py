"""A unit that raises costs its requests; a device that has failed costs the whole Engine, and everybody is told."""

from __future__ import annotations

import pytest

from ninfer.errors import EngineFailure, RequestError
from ninfer.runtime.core.engine_core import CoreOptions, EngineCore
from ninfer.runtime.core.handle import GenerationHandle
from ninfer.runtime.core.stats import Availability
from ninfer.types import FinishReason
from tests.fakes import GREEDY, FakeClock, prompt_of
from tests.runtime.core.outputs import FakeOutput
from tests.runtime.simulated import Simulation, axes
from tests.runtime.test_contention import limits


class World:
    """An Engine over a simulated model, with one request that decodes and one whose prompt is about to be read."""

    def __init__(self) -> None:
        self.simulation = Simulation(limits(host_tier=True, slots=4))
        self.core = EngineCore(self.simulation.program, CoreOptions(4, False), FakeClock())
        self.before = axes(self.simulation.program)
        self.decoding = self.submit(20)
        while not self.core.stats().decode_rounds:
            self.core.step()
        self.waiting = self.submit(200)

    def submit(self, tokens: int) -> GenerationHandle:
        return self.core.submit(prompt_of(tokens), FakeOutput(), 8, GREEDY)

    def settle(self) -> None:
        while self.core.step():
            pass


def test_a_unit_that_raises_on_a_healthy_device_costs_only_itself() -> None:
    world = World()
    world.simulation.model.armed = True
    world.settle()
    ended = [handle for handle in (world.decoding, world.waiting) if raises(handle, RequestError)]
    assert len(ended) == 1
    assert world.core.availability is Availability.READY
    later = world.submit(30)
    world.settle()
    assert later.result(0).finish_reason is FinishReason.LENGTH


def test_a_failed_device_costs_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()

    def broken() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(world.simulation.model, "synchronise", broken)
    world.simulation.model.armed = True
    world.settle()
    assert world.core.availability is Availability.FAILED
    for handle in (world.decoding, world.waiting):
        with pytest.raises(EngineFailure, match="illegal memory access"):
            handle.result(0)
    with pytest.raises(EngineFailure, match="illegal memory access"):
        world.submit(10)
    assert axes(world.simulation.program)["lanes"] == world.before["lanes"]


def raises(handle: GenerationHandle, kind: type[Exception]) -> bool:
    try:
        return handle.result(0).finish_reason is FinishReason.ERROR
    except kind:
        return True
