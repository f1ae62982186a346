"""Progress bars on stderr: shown only on a terminal, and only for what takes longer than a moment."""

from __future__ import annotations

import enum
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

SHOW_AFTER_SECONDS = 0.5


class ProgressUnit(enum.Enum):
    """What is being counted: plain steps, or bytes (shown with MB/s)."""

    STEPS = "steps"
    BYTES = "bytes"


class ProgressBar:
    """A context manager whose `report(stage, done, total)` moves one bar per stage."""

    def __init__(self, unit: ProgressUnit = ProgressUnit.STEPS) -> None:
        self._unit = unit
        self._enabled = sys.stderr.isatty()
        self._begin = time.monotonic()
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the bars off the screen; nothing is shown afterwards."""
        self._enabled = False
        if self._progress is not None:
            self._progress.stop()

    def report(self, stage: str, done: int, total: int) -> None:
        """`done` of `total` steps or bytes of `stage` are finished; a total of 0 means not known."""
        if not self._enabled or time.monotonic() - self._begin < SHOW_AFTER_SECONDS:
            return
        progress = self._started()
        if stage not in self._tasks:
            self._tasks[stage] = progress.add_task(stage, total=total or None)
        progress.update(self._tasks[stage], completed=done, total=total or None)

    def _started(self) -> Progress:
        if self._progress is None:
            from rich.console import Console
            from rich.progress import Progress

            self._progress = Progress(*_columns(self._unit), console=Console(stderr=True), transient=True)
            self._progress.start()
        return self._progress


def _columns(unit: ProgressUnit) -> tuple[ProgressColumn, ...]:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    name = TextColumn("{task.description}")
    if unit is ProgressUnit.BYTES:
        return (name, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return (name, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
