"""From request records to numbers: latencies, throughput, goodput, prefix reuse, KV occupancy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ninfer.bench.replay import Outcome, RequestRecord


@dataclass(frozen=True, slots=True)
class Slo:
    """A service-level objective per request, in seconds; None asks nothing."""

    first_token: float | None = None
    inter_token: float | None = None

    def met_by(self, record: RequestRecord) -> bool:
        """First token in time, and the mean gap between tokens small enough."""
        first, gaps = record.first_token, record.gaps
        if first is None or (self.first_token is not None and first > self.first_token):
            return False
        return self.inter_token is None or not gaps or sum(gaps) / len(gaps) <= self.inter_token

    @property
    def asks(self) -> bool:
        return self.first_token is not None or self.inter_token is not None


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Mean and quantiles of a latency, in seconds, over `count` observations."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Fraction of the KV pages in use when requests finished a step: mean and peak of the samples."""

    mean: float
    peak: float


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One replay. Rates are per second of `duration`; ratios are 0..1; None where nothing was observed or asked."""

    completed: int
    refused: int
    failed: int
    skipped: int
    duration: float
    prompt_tokens: int
    reused_tokens: int
    output_tokens: int
    time_to_first_token: Quantiles | None
    inter_token: Quantiles | None
    end_to_end: Quantiles | None
    requests_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float
    goodput_per_second: float | None
    goodput_ratio: float | None
    reuse_ratio: float
    kv_occupancy: Occupancy | None
    errors: tuple[str, ...] = ()


def summarise(records: Sequence[RequestRecord], skipped: int, slo: Slo, occupancy: Sequence[float] = ()) -> LoadReport:
    """The numbers of one replay. Only completed requests count towards latencies and throughput."""
    completed = [record for record in records if record.outcome is Outcome.COMPLETED]
    good = sum(slo.met_by(record) for record in completed)
    duration = max((record.finished for record in records), default=0.0)
    prompt, reused, output = (
        (sum(counts) for counts in zip(*map(_tokens, completed), strict=True)) if completed else (0, 0, 0)
    )
    return LoadReport(
        completed=len(completed),
        refused=_count(records, Outcome.REFUSED),
        failed=_count(records, Outcome.FAILED),
        skipped=skipped,
        duration=duration,
        prompt_tokens=prompt,
        reused_tokens=reused,
        output_tokens=output,
        time_to_first_token=quantiles([record.first_token for record in completed if record.first_token is not None]),
        inter_token=quantiles([gap for record in completed for gap in record.gaps]),
        end_to_end=quantiles([record.finished - record.arrival for record in completed]),
        requests_per_second=_rate(len(completed), duration),
        output_tokens_per_second=_rate(output, duration),
        total_tokens_per_second=_rate(prompt + output, duration),
        goodput_per_second=_rate(good, duration) if slo.asks else None,
        goodput_ratio=_rate(good, len(records)) if slo.asks else None,
        reuse_ratio=_rate(reused, prompt),
        kv_occupancy=Occupancy(sum(occupancy) / len(occupancy), max(occupancy)) if occupancy else None,
        errors=tuple(sorted({record.error for record in records if record.error is not None})),
    )


def quantiles(values: Sequence[float]) -> Quantiles | None:
    """Mean, median, 90th and 99th percentile; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    return Quantiles(
        len(ordered),
        math.fsum(ordered) / len(ordered),
        percentile(ordered, 0.50),
        percentile(ordered, 0.90),
        percentile(ordered, 0.99),
    )


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Linear interpolation between the two nearest ranks (NumPy's default, Hyndman and Fan's type 7)."""
    rank = fraction * (len(ordered) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def record_json(record: RequestRecord) -> dict[str, object]:
    """One request of the JSON report."""
    return {
        "index": record.index,
        "outcome": record.outcome.value,
        "arrival": record.arrival,
        "first_token": record.first_token,
        "finished": record.finished,
        "usage": None if record.usage is None else asdict(record.usage),
        "error": record.error,
    }


def _tokens(record: RequestRecord) -> tuple[int, int, int]:
    usage = record.usage
    assert usage is not None, "completed requests carry their usage"
    return usage.prompt_tokens, usage.reused_tokens, usage.completion_tokens


def _count(records: Sequence[RequestRecord], outcome: Outcome) -> int:
    return sum(record.outcome is outcome for record in records)


def _rate(amount: float, per: float) -> float:
    return amount / per if per > 0 else 0.0
