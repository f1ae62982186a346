"""Plots are written; a missing matplotlib is named with its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninfer.bench import plot
from ninfer.bench.replay import Outcome, RequestRecord
from ninfer.errors import ConfigError
from ninfer.types import Usage


@pytest.mark.parametrize("count", [0, 5])
def test_a_png_is_written(tmp_path: Path, count: int) -> None:
    records = [
        RequestRecord(i, Outcome.COMPLETED, 0.0, 2.0 + i, (1.0 + i, 1.5 + i), Usage(3, 0, 2)) for i in range(count)
    ]
    plot.plot_replay(records, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_missing_matplotlib_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install matplotlib"):
        plot.check_available()
