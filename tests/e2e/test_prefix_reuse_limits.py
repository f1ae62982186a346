"""What is computed again of a prompt, on a real model: the benchmark's scenarios, their limits, and equal answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from benchmarks.reuse_scenarios import (
    SCENARIOS,
    Client,
    Outcome,
    Tokens,
    alternating,
    branch,
    exact_repeat,
    next_turn,
    options,
    second_user,
)
from ninfer.engine import Engine
from ninfer.types import CheckpointKind
from tests.e2e.conftest import Models

Scenario = Callable[[Client, Tokens], Outcome]

EXPECTED = [
    (exact_repeat, 64, CheckpointKind.RESPONSE_REPLAY),
    (next_turn, 65, CheckpointKind.SESSION_ENDPOINT),
    (branch, 192, CheckpointKind.LONG_ANCHOR),
    (second_user, 256, CheckpointKind.LONG_ANCHOR),
    (alternating, 65, CheckpointKind.SESSION_ENDPOINT),
]


@pytest.fixture(scope="module")
def client(models: Models) -> Iterator[Client]:
    with Engine(models("tied", "bf16")[1], options(threads=1)) as engine:
        yield Client(engine)


@pytest.mark.parametrize(("scenario", "limit", "source"), EXPECTED, ids=[case[0].__name__ for case in EXPECTED])
def test_recomputed_tokens_stay_within_their_limit(
    client: Client, scenario: Scenario, limit: int, source: CheckpointKind
) -> None:
    rng = random.Random(scenario.__name__)
    found = scenario(client, lambda count: [rng.randrange(256) for _ in range(count)])
    assert found.recomputed <= found.limit <= limit
    assert found.warm.source == source.value
    assert found.cold.reused == 0
    assert found.warm.answer == found.cold.answer


def test_every_scenario_of_the_benchmark_is_checked() -> None:
    assert [case[0] for case in EXPECTED] == list(SCENARIOS)
