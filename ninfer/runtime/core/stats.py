"""Counters of one Engine and the snapshot that other threads may read."""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from ninfer.runtime.core.program import Occupancy
from ninfer.types import Finish, FinishReason

logger = logging.getLogger("ninfer.engine")


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


@dataclass(frozen=True, slots=True)
class EngineStats:
    """One consistent picture of an Engine at its last boundary.

    `outstanding` of `capacity` requests are submitted and not yet both ended and consumed. Counters are totals since
    start; requests for no output at all take no part in them. `occupancy` is None once Program is gone.
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
    occupancy: Occupancy | None


def log_end(order: int, finish: Finish) -> None:
    """The one structured log line of a request."""
    usage, timings = finish.usage, finish.timings
    logger.info(
        "request=%d reason=%s prompt=%d reused=%d completion=%d "
        "queue=%.6f prefill=%.6f decode=%.6f total=%.6f error=%s",
        order,
        finish.reason.value,
        usage.prompt_tokens,
        usage.reused_tokens,
        usage.completion_tokens,
        timings.queue,
        timings.prefill,
        timings.decode,
        timings.total,
        finish.error,
    )
