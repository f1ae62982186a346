"""Pictures of a replay: latency distributions and the answers' progress over time. Needs the `plot` extra."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ninfer.bench.replay import Outcome, RequestRecord
from ninfer.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def check_available() -> None:
    """Raise ConfigError, naming the extra to install, where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: install it with `pip install matplotlib`")


def plot_replay(records: Sequence[RequestRecord], path: Path) -> None:
    """Write one PNG: time to first token, inter-token and end-to-end distributions, and tokens over time."""
    from matplotlib.figure import Figure

    completed = [record for record in records if record.outcome is Outcome.COMPLETED]
    figure = Figure(figsize=(11, 7), layout="constrained")
    axes = figure.subplots(2, 2)
    _distribution(axes[0][0], "Time to first token", [item.first_token or 0.0 for item in completed])
    _distribution(axes[0][1], "Inter-token latency", [gap for item in completed for gap in item.gaps])
    _distribution(axes[1][0], "End-to-end latency", [item.finished - item.arrival for item in completed])
    _progress(axes[1][1], completed)
    figure.savefig(path, dpi=120, format="png")


def _distribution(axes: Axes, title: str, values: Sequence[float]) -> None:
    """The share of observations at or below each latency."""
    ordered = sorted(values)
    shares = [(position + 1) / len(ordered) for position in range(len(ordered))]
    axes.step([value * 1000 for value in ordered], shares, where="post")
    axes.set(title=title, xlabel="milliseconds", ylabel="share of observations", ylim=(0, 1.02))
    axes.grid(alpha=0.3)


def _progress(axes: Axes, completed: Sequence[RequestRecord]) -> None:
    times = sorted(time for record in completed for time in record.token_times)
    axes.step(times, range(1, len(times) + 1), where="post")
    axes.set(title="Tokens generated", xlabel="seconds", ylabel="tokens, all requests")
    axes.grid(alpha=0.3)
