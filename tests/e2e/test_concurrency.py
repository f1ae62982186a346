"""Requests that run together answer as they do alone, byte for byte, and give everything back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ninfer.engine import Engine
from ninfer.types import (
    EngineOptions,
    Event,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    KvDtype,
    Sampling,
    StopConditions,
    TokenPrompt,
)
from tests.e2e.conftest import Models

LANES = 8
ROUNDS = 20


def request(lane: int) -> GenerationRequest:
    """Unequal lengths and budgets; half of the lanes sample, each with its own seed."""
    rng = random.Random(lane)
    ids = tuple(rng.randrange(256) for _ in range(3 + 17 * lane))
    sampling = Sampling.greedy() if lane % 2 else Sampling(temperature=0.8, top_k=20, presence_penalty=0.5, seed=lane)
    return GenerationRequest(TokenPrompt(ids), 5 + 3 * lane, sampling, StopConditions(ignore_eos=True), top_logprobs=2)


def options(dtype: KvDtype, checkpoints: int = 0) -> EngineOptions:
    return EngineOptions(
        threads=1,
        max_context=256,
        kv_capacity=32,
        kv_dtype=dtype,
        prefill_chunk=128,
        max_concurrency=LANES,
        device_state_slots=checkpoints,
    )


def answer(result: GenerationResult) -> tuple[object, ...]:
    """Everything that must not depend on company: text, tokens, and log-probabilities to the last bit."""
    return result.text, result.reasoning, result.token_ids, result.logprobs, result.finish_reason


def free_axes(engine: Engine) -> dict[str, int]:
    """What is available; with reuse on, checkpoints keep pages and slots of their own."""
    occupancy = engine.stats().occupancy
    assert occupancy is not None
    for axis in occupancy.axes:
        assert axis.allocated + axis.reserved + axis.available == axis.capacity
    return {axis.name: axis.available for axis in occupancy.axes}


def solo_answers(artifact: Path, dtype: KvDtype) -> list[GenerationResult]:
    with Engine(artifact, options(dtype)) as engine:
        return [engine.generate(request(lane)).result() for lane in range(LANES)]


@pytest.mark.parametrize(("dtype", "checkpoints"), [(KvDtype.BF16, 0), (KvDtype.INT8, 12)])
def test_lanes_answer_as_they_do_alone_whatever_else_is_cancelled(
    models: Models, dtype: KvDtype, checkpoints: int
) -> None:
    _, artifact = models("tied", "q8")
    alone = solo_answers(artifact, dtype)
    rng = random.Random(7)
    with Engine(artifact, options(dtype, checkpoints)) as engine:
        before = free_axes(engine)
        for _ in range(ROUNDS):
            lanes = rng.sample(range(LANES), LANES)
            doomed = set(rng.sample(lanes, 3))
            handles = {lane: engine.generate(request(lane)) for lane in lanes}
            for lane in doomed:
                events = rng.randrange(4)
                for _ in range(events):
                    handles[lane].next_event()
                handles[lane].cancel()
            for lane, handle in handles.items():
                result = handle.result()
                if result.finish_reason is FinishReason.CANCELLED:
                    assert lane in doomed
                    assert_prefix(result.token_ids, alone[lane].token_ids)
                else:
                    assert answer(result) == answer(alone[lane])
        assert engine.stats().decode_rows > engine.stats().decode_rounds, "decode never ran as a batch"
        engine.generate(request(0)).result()
        after = free_axes(engine)
        kept = {name for name in before if before[name] != after[name]}
        assert kept <= ({"kv_pages", "checkpoint_images", "host_images", "host_kv_bytes"} if checkpoints else set())


def assert_prefix(tokens: tuple[int, ...], whole: tuple[int, ...]) -> None:
    assert whole[: len(tokens)] == tokens


def test_abandoned_and_finished_requests_leave_room_for_the_next(models: Models) -> None:
    _, artifact = models("tied", "q8")
    with Engine(artifact, options(KvDtype.BF16)) as engine:
        with engine.generate(request(7)) as handle:
            first: Event | None = handle.next_event()
        assert first is not None
        assert engine.generate(request(1)).result().finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("chunk", [128, 384])
def test_answers_do_not_depend_on_the_prefill_chunk(models: Models, chunk: int) -> None:
    _, artifact = models("moe", "groupwise")
    ids = tuple(random.Random(5).randrange(256) for _ in range(500))
    asked = GenerationRequest(TokenPrompt(ids), 4, Sampling.greedy(), StopConditions(ignore_eos=True), top_logprobs=3)

    def run(chunk: int) -> tuple[object, ...]:
        with Engine(artifact, EngineOptions(threads=1, max_context=512, prefill_chunk=chunk)) as engine:
            return answer(engine.generate(asked).result())

    assert run(chunk) == run(1024)
