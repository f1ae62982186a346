"""Counters of one Engine and the snapshot that other threads may read."""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ninfer.runtime.core.cache.search import StopReason
from ninfer.runtime.core.program import Occupancy
from ninfer.types import CheckpointKind, Finish, FinishReason, Reuse, ReuseReason

logger = logging.getLogger("ninfer.engine")

MISSES = tuple(reason for reason in ReuseReason if reason is not ReuseReason.HIT)


class Availability(enum.Enum):
    """Whether an Engine accepts requests. Gateways map it to their own readiness."""

    READY = "ready"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"


@dataclass(slots=True)
class Counters:
    """Totals since start, kept by the worker. Token totals cover ended requests only."""

    boundaries: int = 0
    admission_attempts: int = 0
    backfills: int = 0
    resource_transitions: int = 0
    prefill_units: int = 0
    control_units: int = 0
    decode_rounds: int = 0
    decode_rows: int = 0
    unit_faults: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    completion_tokens: int = 0
    finished: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))
    reuse_hits: dict[CheckpointKind, int] = field(default_factory=lambda: dict.fromkeys(CheckpointKind, 0))
    reuse_misses: dict[ReuseReason, int] = field(default_factory=lambda: dict.fromkeys(MISSES, 0))
    planner_runs: int = 0
    planner_stops: dict[StopReason, int] = field(default_factory=lambda: dict.fromkeys(StopReason, 0))
    captures: int = 0
    captures_skipped: int = 0
    retained: int = 0
    evictions: int = 0
    offloads: int = 0

    def totals(self) -> dict[str, Any]:
        """Every counter by name, tables copied. Taken at every boundary, where `dataclasses.asdict` would be slow."""
        totals = {name: getattr(self, name) for name in _COUNTERS}
        for name in _TABLES:
            totals[name] = totals[name].copy()
        return totals


_COUNTERS = tuple(counter.name for counter in fields(Counters))
_TABLES = ("finished", "reuse_hits", "reuse_misses", "planner_stops")


@dataclass(frozen=True, slots=True)
class EngineStats:
    """One consistent picture of an Engine at its last boundary.

    `outstanding` of `capacity` requests are submitted and not yet both ended and consumed. Counters are totals since
    start; requests for no output at all take no part in them. `occupancy` is None once Program is gone.

    Of the prefix cache: admitted requests by what they reused (`reuse_hits`) or why nothing (`reuse_misses`); planner
    runs and how their searches ended; checkpoints made during prefill (`captures`), done without (`captures_skipped`:
    there already, or not worth their room), kept at the end (`retained`), given up (`evictions`) and moved to the host
    only (`offloads`); `checkpoints` exist now.
    """

    availability: Availability
    waiting: int
    active: int
    outstanding: int
    capacity: int
    submitted: int
    refused: int
    boundaries: int
    admission_attempts: int
    backfills: int
    resource_transitions: int
    prefill_units: int
    control_units: int
    decode_rounds: int
    decode_rows: int
    unit_faults: int
    prompt_tokens: int
    reused_tokens: int
    completion_tokens: int
    finished: Mapping[FinishReason, int]
    reuse_hits: Mapping[CheckpointKind, int]
    reuse_misses: Mapping[ReuseReason, int]
    planner_runs: int
    planner_stops: Mapping[StopReason, int]
    captures: int
    captures_skipped: int
    retained: int
    evictions: int
    offloads: int
    checkpoints: int
    occupancy: Occupancy | None


def log_end(order: int, finish: Finish, reuse: Reuse | None) -> None:
    """The one structured log line of a request. `reuse` is None for one that was never admitted."""
    usage, timings = finish.usage, finish.timings
    logger.info(
        "request=%d reason=%s prompt=%d reused=%d completion=%d reuse=%s common=%d "
        "queue=%.6f prefill=%.6f decode=%.6f total=%.6f error=%s",
        order,
        finish.reason.value,
        usage.prompt_tokens,
        usage.reused_tokens,
        usage.completion_tokens,
        _reuse_word(reuse),
        0 if reuse is None else reuse.common_tokens,
        timings.queue,
        timings.prefill,
        timings.decode,
        timings.total,
        finish.error,
    )


def _reuse_word(reuse: Reuse | None) -> str:
    """What was reused, or why nothing."""
    if reuse is None:
        return "not_admitted"
    return reuse.reason.value if reuse.kind is None else f"{reuse.kind.value}@{reuse.frontier}"
