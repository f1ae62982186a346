"""Rich tables of bench results."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from ninfer.bench.micro import MicroResult
from ninfer.bench.report import LoadReport, Quantiles


def latency_table(report: LoadReport) -> Table:
    """Quantiles of the three latencies, in milliseconds."""
    table = Table(title="latency (ms)", title_justify="left")
    table.add_column("")
    for name in ("mean", "p50", "p90", "p99"):
        table.add_column(name, justify="right")
    rows = {
        "time to first token": report.time_to_first_token,
        "inter-token": report.inter_token,
        "end to end": report.end_to_end,
    }
    for name, latency in rows.items():
        table.add_row(name, *_cells(latency))
    return table


def totals_table(report: LoadReport) -> Table:
    """Counts, throughput, goodput, reuse and occupancy."""
    table = Table(title="totals", title_justify="left", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in _totals(report):
        table.add_row(name, value)
    return table


def micro_table(results: Sequence[MicroResult]) -> Table:
    """Tokens per second per point."""
    table = Table(title="tokens per second", title_justify="left")
    table.add_column("point")
    for name in ("median", "slowest", "fastest"):
        table.add_column(name, justify="right")
    for result in results:
        table.add_row(result.point.name, *(f"{rate:,.1f}" for rate in (result.median, result.slowest, result.fastest)))
    return table


def _cells(latency: Quantiles | None) -> list[str]:
    if latency is None:
        return ["–"] * 4
    return [f"{value * 1000:,.1f}" for value in (latency.mean, latency.p50, latency.p90, latency.p99)]


def _totals(report: LoadReport) -> list[tuple[str, str]]:
    rows = [
        ("completed", f"{report.completed}"),
        ("skipped (beyond the context)", f"{report.skipped}"),
        ("refused", f"{report.refused}"),
        ("failed", f"{report.failed}"),
        ("duration", f"{report.duration:.2f} s"),
        ("prompt tokens", f"{report.prompt_tokens:,}"),
        ("output tokens", f"{report.output_tokens:,}"),
        ("throughput", f"{report.requests_per_second:.2f} requests/s"),
        ("", f"{report.output_tokens_per_second:,.1f} output tokens/s"),
        ("", f"{report.total_tokens_per_second:,.1f} tokens/s in all"),
        ("prefix reuse", f"{report.reuse_ratio:.1%} of prompt tokens"),
    ]
    if report.goodput_per_second is not None and report.goodput_ratio is not None:
        rows.append(
            ("goodput under the SLO", f"{report.goodput_per_second:.2f} requests/s ({report.goodput_ratio:.1%})")
        )
    if report.kv_occupancy is not None:
        rows.append(("KV occupancy", f"mean {report.kv_occupancy.mean:.1%}, peak {report.kv_occupancy.peak:.1%}"))
    return rows
