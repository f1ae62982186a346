"""Numbers of a replay, against NumPy and hand-made records."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.bench.replay import Outcome, RequestRecord
from ninfer.bench.report import Slo, quantiles, record_json, summarise
from ninfer.types import Usage


def record(
    index: int, arrival: float, times: tuple[float, ...], finished: float, usage: Usage | None = None
) -> RequestRecord:
    return RequestRecord(index, Outcome.COMPLETED, arrival, finished, times, usage or Usage(10, 4, len(times)))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_quantiles_agree_with_numpy(values: list[float]) -> None:
    found = quantiles(values)
    assert found is not None
    expected = np.quantile(np.array(values), [0.5, 0.9, 0.99])
    assert (found.p50, found.p90, found.p99) == pytest.approx(tuple(expected), rel=1e-9, abs=1e-12)
    assert found.mean == pytest.approx(np.mean(values), rel=1e-9)
    assert found.count == len(values)


def test_no_values_have_no_quantiles() -> None:
    assert quantiles([]) is None


def test_totals_rates_and_reuse() -> None:
    records = [
        record(0, 0.0, (1.0, 1.5, 2.0), 2.0, Usage(100, 60, 3)),
        record(1, 1.0, (3.0, 4.0), 4.0, Usage(50, 0, 2)),
        RequestRecord(2, Outcome.REFUSED, 1.0, 1.0, error="full"),
        RequestRecord(3, Outcome.FAILED, 1.0, 2.0, error="broken"),
    ]
    report = summarise(records, skipped=5, slo=Slo(), occupancy=[0.25, 0.75])
    assert (report.completed, report.refused, report.failed, report.skipped) == (2, 1, 1, 5)
    assert report.duration == 4.0
    assert (report.prompt_tokens, report.reused_tokens, report.output_tokens) == (150, 60, 5)
    assert report.requests_per_second == 0.5
    assert report.output_tokens_per_second == 1.25
    assert report.total_tokens_per_second == 155 / 4
    assert report.reuse_ratio == 0.4
    assert report.time_to_first_token is not None
    assert report.time_to_first_token.mean == pytest.approx(1.5)
    assert report.inter_token is not None
    assert report.inter_token.count == 3
    assert report.end_to_end is not None
    assert report.end_to_end.p50 == pytest.approx(2.5)
    assert report.kv_occupancy is not None
    assert (report.kv_occupancy.mean, report.kv_occupancy.peak) == (0.5, 0.75)
    assert report.goodput_ratio is None
    assert report.errors == ("broken", "full")


@pytest.mark.parametrize(
    ("slo", "good"),
    [(Slo(1.0), 1), (Slo(2.0), 2), (Slo(None, 0.5), 1), (Slo(None, 1.0), 2), (Slo(2.0, 0.5), 1), (Slo(0.5), 0)],
)
def test_goodput_counts_requests_that_meet_every_objective(slo: Slo, good: int) -> None:
    records = [
        record(0, 0.0, (1.0, 1.5, 2.0), 2.0),
        record(1, 1.0, (3.0, 4.0), 4.0),
        RequestRecord(2, Outcome.REFUSED, 0.0, 0.0, error="full"),
    ]
    report = summarise(records, 0, slo)
    assert report.goodput_ratio == pytest.approx(good / 3)
    assert report.goodput_per_second == pytest.approx(good / 4)


def test_an_empty_replay_has_zeros_and_nothing_observed() -> None:
    report = summarise([], 3, Slo())
    assert report.completed == 0
    assert report.skipped == 3
    assert report.requests_per_second == 0.0
    assert report.time_to_first_token is None
    assert report.kv_occupancy is None


def test_an_answer_without_visible_tokens_counts_its_end_as_first_token() -> None:
    assert record(0, 1.0, (), 3.0).first_token == 2.0


def test_record_json_is_plain_data() -> None:
    shown = record_json(record(7, 0.0, (1.0,), 1.0))
    assert shown["index"] == 7
    assert shown["outcome"] == "completed"
    assert shown["usage"] == {"prompt_tokens": 10, "reused_tokens": 4, "completion_tokens": 1}
