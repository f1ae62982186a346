"""Outstanding capacity: how many requests may be anywhere between submission and having been consumed.

Two independent facts release a request's share: the worker has formed its final response, and the consumer has ended
its wait or dropped the handle. Either may come first, from any thread; a lease whose both facts hold counts no longer,
so there is nothing that could be released twice.
"""

from __future__ import annotations

import threading


class CapacityLease:
    """One request's share. Both facts only ever turn true; setting one takes no lock (it may happen in a finaliser)."""

    __slots__ = ("consumer_released", "response_done")

    def __init__(self) -> None:
        self.response_done = False
        self.consumer_released = False

    @property
    def released(self) -> bool:
        """True once nobody needs the share any more."""
        return self.response_done and self.consumer_released


class OutstandingCapacity:
    """At most `limit` leases are outstanding at any time. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.RLock()
        self._leases: list[CapacityLease] = []

    def acquire(self) -> CapacityLease | None:
        """A new lease, or None when `limit` leases are outstanding."""
        with self._lock:
            if self.outstanding >= self.limit:
                return None
            lease = CapacityLease()
            self._leases.append(lease)
            return lease

    @property
    def outstanding(self) -> int:
        """Leases not yet released."""
        with self._lock:
            self._leases = [lease for lease in self._leases if not lease.released]
            return len(self._leases)
