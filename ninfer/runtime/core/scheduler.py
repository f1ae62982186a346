"""Scheduler: the only owner of order. FIFO head, backfill protection, prefill/decode fairness, round membership.

It reads request states and Program's `resource_revision`; it never sees a resource, a checkpoint or a page.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ninfer.runtime.core.program import SequenceHandle
from ninfer.runtime.core.request import RequestRecord, RequestState


class UnitKind(enum.Enum):
    """What one model execution unit does."""

    PREFILL = "prefill"
    CONTROL = "control"
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class Unit:
    """The one unit of a boundary: one sequence's prompt chunk or forced tokens, or a whole decode round."""

    kind: UnitKind
    records: tuple[RequestRecord, ...]


@dataclass(slots=True)
class Protection:
    """A blocked head, and the active sequences whose end must suffice to let it in."""

    head: RequestRecord
    donors: set[SequenceHandle]


@dataclass(frozen=True, slots=True)
class Candidate:
    """The one request that may try admission now. With `protection` set it is a borrower and needs Program's proof."""

    record: RequestRecord
    revision: int
    protection: Protection | None


@dataclass(slots=True)
class _Attempts:
    """Who has been turned away under one revision. While no fact changes, asking again would give the same answer."""

    revision: int = -1
    orders: set[int] = field(default_factory=set)


class Scheduler:
    """Orders waiting and active requests."""

    def __init__(self, concurrent_prefill: bool) -> None:
        self._concurrent_prefill = concurrent_prefill
        self._waiting: deque[RequestRecord] = deque()
        self._active: list[RequestRecord] = []
        self._attempts = _Attempts()
        self._protection: Protection | None = None
        self._decoded_last = False
        self._admitted_since_decode = False

    # --- waiting requests ---

    @property
    def waiting(self) -> tuple[RequestRecord, ...]:
        """Waiting requests, oldest first."""
        return tuple(self._waiting)

    def enqueue(self, record: RequestRecord) -> None:
        """A new request takes its place at the end."""
        self._waiting.append(record)

    def remove_waiting(self, record: RequestRecord) -> None:
        """A waiting request left the queue: admitted, ended or refused."""
        if self._waiting[0] is record:
            self._protection = None
            self.facts_changed()
        self._waiting.remove(record)

    # --- admission ---

    def facts_changed(self) -> None:
        """Something that may change an admission verdict happened: everyone may be asked again."""
        self._attempts.orders.clear()

    def admission_candidate(self, revision: int) -> Candidate | None:
        """Who may try admission at this boundary: the head, or behind a blocked head the oldest not yet asked."""
        if not self._admission_open():
            return None
        if revision != self._attempts.revision:
            self._attempts = _Attempts(revision)
        for record in self._waiting:
            if record.order not in self._attempts.orders:
                protection = None if record is self._waiting[0] else self._protection
                return Candidate(record, revision, protection)
        return None

    def turned_away(self, candidate: Candidate, donors: Iterable[SequenceHandle]) -> None:
        """The candidate is blocked. A blocked head becomes protected, with the present incumbents as its donors."""
        self._attempts.orders.add(candidate.record.order)
        if candidate.protection is None and self._protection is None:
            self._protection = Protection(candidate.record, set(donors))

    def admitted(self, record: RequestRecord) -> None:
        """The candidate's materialisation has started."""
        self.remove_waiting(record)
        self._admitted_since_decode = True

    def _admission_open(self) -> bool:
        """Gates: terminal requests settle first, one staged prefill at a time, and a decode round in between."""
        states = [record.state for record in self._active]
        if RequestState.TERMINAL_PENDING in states:
            return False
        if RequestState.PREFILL in states and not self._concurrent_prefill:
            return False
        return RequestState.DECODE_READY not in states or not self._admitted_since_decode

    # --- active requests ---

    @property
    def active(self) -> tuple[RequestRecord, ...]:
        """Active requests, terminal-pending ones included."""
        return tuple(self._active)

    def activate(self, record: RequestRecord) -> None:
        """A sequence became active; it owns a staged prefill."""
        self._active.append(record)
        self.facts_changed()

    def retire(self, record: RequestRecord) -> None:
        """A sequence's resources are settled."""
        self._active.remove(record)
        if self._protection is not None and record.sequence is not None:
            self._protection.donors.discard(record.sequence)
        self.facts_changed()

    def next_terminal(self) -> RequestRecord | None:
        """The next request whose resources are to be settled."""
        return next((record for record in self._active if record.state is RequestState.TERMINAL_PENDING), None)

    def next_capture(self) -> RequestRecord | None:
        """The next request whose prefill has come to a place where a checkpoint is to be made."""
        return next((record for record in self._active if record.capture_due), None)

    def next_unit(self) -> Unit | None:
        """The unit to run at this boundary.

        Decode rounds and single-sequence units alternate while both have work, so neither starves the other; the
        sequences with prompt chunks or forced tokens take turns.
        """
        ready = [record for record in self._active if record.state is RequestState.DECODE_READY]
        single = self._next_single()
        if ready and (single is None or not self._decoded_last):
            self._decoded_last = True
            self._admitted_since_decode = False
            return Unit(UnitKind.DECODE, tuple(sorted(ready, key=_order)))
        if single is None:
            return None
        self._decoded_last = False
        self._active.remove(single)
        self._active.append(single)
        kind = UnitKind.PREFILL if single.state is RequestState.PREFILL else UnitKind.CONTROL
        return Unit(kind, (single,))

    def _next_single(self) -> RequestRecord | None:
        states = (RequestState.PREFILL, RequestState.CONTROL_READY)
        return next((r for r in self._active if r.state in states and not r.capture_due), None)

    def clear(self) -> None:
        """Forget everyone (Engine failure)."""
        self._waiting.clear()
        self._active.clear()
        self._protection = None
        self.facts_changed()


def _order(record: RequestRecord) -> int:
    return record.order
