"""Open and closed loops against a fake server in virtual time: every figure is known in advance."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.bench.replay import Outcome, ReplayItem, RequestRecord, closed_loop, open_loop
from ninfer.types import GenerationRequest, TokenPrompt
from tests.bench.fakes import FakeServer
from tests.bench.virtual_time import run


def item(index: int, arrival: float = 0.0, prompt: int = 10, output: int = 3) -> ReplayItem:
    return ReplayItem(index, arrival, GenerationRequest(TokenPrompt((1,) * prompt), max_new_tokens=output))


def ignore(_: RequestRecord) -> None:
    pass


def replay(
    make: Callable[[], FakeServer], load: Callable[[FakeServer], Awaitable[list[RequestRecord]]]
) -> tuple[FakeServer, list[RequestRecord]]:
    async def body() -> tuple[FakeServer, list[RequestRecord]]:
        server = make()
        return server, await load(server)

    return run(body())


def test_one_request_is_timed_exactly() -> None:
    _, [record] = replay(FakeServer, lambda server: open_loop([item(0)], server.stream, 1.0, ignore))
    assert record.outcome is Outcome.COMPLETED
    assert record.first_token == pytest.approx(0.1)
    assert record.gaps == pytest.approx((0.1, 0.1))
    assert record.finished == pytest.approx(0.3)


def test_open_loop_sends_at_the_traced_times_however_busy_the_server_is() -> None:
    items = [item(0, 0.0), item(1, 0.05), item(2, 2.0)]
    server, records = replay(lambda: FakeServer(lanes=1), lambda server: open_loop(items, server.stream, 1.0, ignore))
    assert [moment for moment, _ in server.started] == pytest.approx([0.0, 0.05, 2.0])
    # The second waits for the only lane (until 0.3), then reads its prompt (0.1); it arrived at 0.05.
    assert records[1].first_token == pytest.approx(0.35)
    assert records[2].first_token == pytest.approx(0.1)


def test_speed_compresses_arrivals() -> None:
    items = [item(0, 0.0), item(1, 10.0)]
    server, records = replay(FakeServer, lambda server: open_loop(items, server.stream, 4.0, ignore))
    assert [moment for moment, _ in server.started] == pytest.approx([0.0, 2.5])
    assert records[1].arrival == pytest.approx(2.5)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.integers(1, 6))
def test_closed_loop_keeps_its_clients_busy_and_answers_everything(count: int, clients: int) -> None:
    items = [item(index) for index in range(count)]
    server, records = replay(FakeServer, lambda server: closed_loop(items, server.stream, clients, ignore))
    assert [record.index for record in records] == list(range(count))
    assert server.most_at_once == min(count, clients)
    rounds = -(-count // clients)
    assert max(record.finished for record in records) == pytest.approx(0.3 * rounds)


def test_closed_loop_takes_the_order_of_the_trace() -> None:
    items = [item(index, prompt=index + 1) for index in range(4)]
    server, _ = replay(FakeServer, lambda server: closed_loop(items, server.stream, 2, ignore))
    assert [request for _, request in server.started] == [one.request for one in items]


def test_refusals_and_failures_are_recorded_and_the_rest_goes_on() -> None:
    items = [item(index, float(index)) for index in range(4)]
    _, records = replay(
        lambda: FakeServer(refuse=frozenset({1}), fail=frozenset({2})),
        lambda server: open_loop(items, server.stream, 1.0, ignore),
    )
    outcomes = [record.outcome for record in records]
    assert outcomes == [Outcome.COMPLETED, Outcome.REFUSED, Outcome.FAILED, Outcome.COMPLETED]
    assert [record.error for record in records] == [None, "queue full", "a unit failed", None]
    assert records[1].first_token is None


def test_tokens_that_come_together_share_the_time_between_deltas() -> None:
    _, [record] = replay(
        lambda: FakeServer(burst=2), lambda server: open_loop([item(0, output=5)], server.stream, 1.0, ignore)
    )
    assert len(record.token_times) == 5
    assert record.token_times == pytest.approx((0.1, 0.1, 0.2, 0.3, 0.5))


def test_every_finished_request_is_announced() -> None:
    seen: list[int] = []
    items = [item(index) for index in range(3)]
    replay(FakeServer, lambda server: closed_loop(items, server.stream, 1, lambda record: seen.append(record.index)))
    assert seen == [0, 1, 2]
