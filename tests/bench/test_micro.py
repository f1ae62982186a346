"""Fixed points against a server of known speed, in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ninfer.bench.micro import STANDARD_POINTS, MicroPoint, MicroResult, chosen_points, decode_rate, measure
from ninfer.bench.replay import Outcome, RequestRecord
from ninfer.errors import RequestError
from ninfer.types import CacheUse, GenerationRequest, TokenPrompt
from tests.bench.fakes import FakeServer
from tests.bench.virtual_time import run


def measured(make: Callable[[], FakeServer], points: tuple[MicroPoint, ...], repeat: int = 2) -> list[MicroResult]:
    async def body() -> list[MicroResult]:
        server = make()
        results = await measure(points, server.stream, range(40), repeat, lambda record: None)
        assert all(request.stops.ignore_eos for _, request in server.started)
        assert len(server.started) == sum(point.batch for point in points) * (repeat + 1)
        return results

    return run(body())


def test_prefill_speed_is_prompt_tokens_per_second() -> None:
    [result] = measured(lambda: FakeServer(prefill=0.02), (MicroPoint(64, 1, 1),))
    assert result.median == pytest.approx(50)
    assert result.slowest == pytest.approx(50)
    assert result.fastest == pytest.approx(50)


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_decode_speed_counts_every_lane(batch: int) -> None:
    [result] = measured(lambda: FakeServer(decode=0.1), (MicroPoint(16, 32, batch),))
    assert result.median == pytest.approx(10 * batch, rel=0.02)


async def requests_of(point: MicroPoint, repeat: int) -> list[GenerationRequest]:
    server = FakeServer()
    await measure((point,), server.stream, range(40), repeat, lambda record: None)
    return [request for _, request in server.started]


@pytest.mark.parametrize("point", [MicroPoint(64, 1, 1), MicroPoint(16, 8, 2)])
def test_reading_and_shallow_writing_reuse_nothing(point: MicroPoint) -> None:
    assert {request.cache for request in run(requests_of(point, 2))} == {CacheUse.DISABLED}


def test_a_deep_prompt_is_the_same_in_every_repetition_and_may_be_reused() -> None:
    requests = run(requests_of(MicroPoint(100, 8, 2), 2))
    assert {request.cache for request in requests} == {CacheUse.READ_WRITE}
    prompts = [prompt_of(request) for request in requests]
    assert [len(prompt) for prompt in prompts] == [100] * 6
    assert prompts[:2] == prompts[2:4] == prompts[4:]
    assert prompts[0] != prompts[1]


def test_a_warm_up_is_the_beginning_of_the_point() -> None:
    reading = run(requests_of(MicroPoint(3000, 1, 1), 1))
    assert [len(prompt_of(request)) for request in reading] == [1024, 3000]
    writing = run(requests_of(MicroPoint(3000, 32, 1), 1))
    assert [(len(prompt_of(request)), request.max_new_tokens) for request in writing] == [(3000, 8), (3000, 32)]


def prompt_of(request: GenerationRequest) -> tuple[int, ...]:
    assert isinstance(request.prompt, TokenPrompt)
    return request.prompt.token_ids


def test_every_repetition_has_its_rate() -> None:
    result = MicroResult(MicroPoint(8, 1, 1), (3.0, 1.0, 2.0))
    assert (result.median, result.slowest, result.fastest) == (2.0, 1.0, 3.0)


def record(*times: float) -> RequestRecord:
    return RequestRecord(0, Outcome.COMPLETED, 0.0, times[-1], times)


def test_decode_speed_is_taken_where_all_lanes_run() -> None:
    early, late = record(1.0, 2.0, 3.0, 4.0, 5.0), record(3.0, 4.0, 5.0, 6.0, 7.0)
    # All lanes run from 3 to 5: two tokens each in two seconds.
    assert decode_rate([early, late]) == pytest.approx(2.0)


def test_decode_speed_without_a_common_window_spans_everything() -> None:
    assert decode_rate([record(1.0, 2.0), record(3.0, 5.0)]) == pytest.approx(3 / 4)


def test_a_failing_request_fails_the_measurement() -> None:
    async def body() -> None:
        server = FakeServer(refuse=frozenset({0}))
        await measure((MicroPoint(8, 1, 1),), server.stream, range(9), 1, lambda record: None)

    with pytest.raises(RequestError, match="pp8: queue full"):
        run(body())


def test_points_have_the_fields_usual_names() -> None:
    assert [point.name for point in STANDARD_POINTS] == [
        "pp64",
        "pp256",
        "tg32 B=1",
        "tg32 B=2",
        "tg32 B=4",
        "tg32 B=8",
    ]
    assert chosen_points(100, None, 1) == (MicroPoint(100, 1, 1),)
    assert [point.name for point in chosen_points(100, 20, 4)] == ["pp100", "tg20 B=4"]
    assert [point.name for point in chosen_points(100, 20, 4, 500)] == ["pp100", "tg20 B=4 @ d500"]
