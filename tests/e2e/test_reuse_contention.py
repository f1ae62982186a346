"""Many lanes over too little room, on the real CPU model: every answer has the bits of the same request alone."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from ninfer.runtime.core.handle import GenerationHandle
from ninfer.runtime.instance import ModelInstance
from ninfer.types import EngineOptions, FinishReason, GenerationRequest, TokenPrompt
from tests.e2e.conftest import Models
from tests.e2e.stepped import Cold, Stepped, answer, greedy, open_instance
from tests.runtime.simulated import axes

ROUNDS = 20
OPTIONS = EngineOptions(threads=1, max_context=256, kv_capacity=32, prefill_chunk=128, max_concurrency=8, host_kv_mib=1)


@pytest.fixture(scope="module")
def instance(models: Models) -> ModelInstance:
    return open_instance(models("small", "q8")[1])


@pytest.fixture(scope="module")
def cold(instance: ModelInstance) -> Cold:
    return Cold(instance, replace(OPTIONS, max_concurrency=1, kv_capacity=4))


def ids(seed: int, count: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(256) for _ in range(count))


def code_word(lane: int, turn: int) -> GenerationRequest:
    """Turn `turn` of a lane's own conversation: what it said before, and more. Unequal lengths and budgets."""
    history = ids(lane, 5 + 11 * lane) + tuple(t for past in range(turn) for t in ids(100 * lane + past, 20 + lane))
    return greedy(TokenPrompt(history), 2 + lane % 4, f"lane {lane}")


@dataclass
class Crowd:
    """An Engine whose requests are cancelled at random moments."""

    engine: Stepped
    cold: Cold
    rng: random.Random
    doomed: dict[GenerationHandle, int] = field(default_factory=dict)

    def run(self, requests: list[GenerationRequest], chance: float) -> int:
        """Ask everything at once; returns how many were answered in full."""
        handles = [(request, self.engine.submit(request)) for request in requests]
        for _, handle in handles:
            if self.rng.random() < chance:
                self.doomed[handle] = self.rng.randrange(12)
        steps = 0
        while any(not handle.finished for _, handle in handles):
            for handle in [handle for handle, step in self.doomed.items() if step == steps]:
                handle.cancel()
            assert self.engine.step(), "nothing moves, and yet a request is waiting"
            steps += 1
        return sum(self.check(request, handle) for request, handle in handles)

    def check(self, request: GenerationRequest, handle: GenerationHandle) -> bool:
        result, right = handle.result(0), self.cold(request)
        if result.finish_reason is FinishReason.CANCELLED:
            assert handle in self.doomed
            assert result.token_ids == right[0][: len(result.token_ids)]
            return False
        assert answer(result) == right
        return True


@pytest.mark.parametrize("lanes", range(1, 9))
def test_lanes_with_their_own_code_words(instance: ModelInstance, cold: Cold, lanes: int) -> None:
    options = replace(OPTIONS, max_concurrency=lanes, kv_capacity=4 * lanes, concurrent_prefill=lanes % 2 == 0)
    crowd = Crowd(Stepped(instance, options), cold, random.Random(lanes))
    start = axes(crowd.engine.program)
    answered = 0
    for _ in range(ROUNDS):
        turn = crowd.rng.randrange(5)
        answered += crowd.run([code_word(lane, turn) for lane in crowd.rng.sample(range(lanes), lanes)], 0.3)
    assert answered > ROUNDS * lanes // 2
    crowd.engine.settle()
    stats = crowd.engine.core.stats()
    assert stats.reused_tokens > stats.prompt_tokens // 4
    assert stats.decode_rows > stats.decode_rounds or lanes < 3
    crowd.engine.core.close()
    assert axes(crowd.engine.program) == start


@pytest.mark.parametrize("host_slots", [0, 6])
def test_four_sessions_over_room_for_two(instance: ModelInstance, cold: Cold, host_slots: int) -> None:
    """Long histories that push each other out, edits and repeats among them, all in flight together."""
    options = replace(OPTIONS, max_concurrency=4, kv_capacity=8, device_state_slots=5, host_state_slots=host_slots)
    crowd = Crowd(Stepped(instance, options), cold, random.Random(host_slots))
    for turn in (0, 2, 4, 1, 5, 5, 3, 4):
        crowd.run([code_word(lane, turn) for lane in crowd.rng.sample(range(4), 4)], 0.15)
    stats = crowd.engine.core.stats()
    assert stats.reused_tokens > 0
    assert stats.evictions + stats.offloads > 0
    assert (stats.offloads > 0) == (host_slots > 0)
