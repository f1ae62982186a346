"""SessionIndex: which continuation a session key means. A hint for lookup and retention; it owns nothing."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.runtime.core.program import CheckpointHandle

MAX_UNBOUND = 4096
"""Sessions without a binding whose order is remembered: more than requests can be outstanding."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A session's latest completed continuation: its endpoint, and the order of the request that published it."""

    endpoint: CheckpointHandle
    owner: int
    order: int


class SessionIndex:
    """Session key → binding. Only a result of a later publication order replaces one."""

    def __init__(self) -> None:
        self._bindings: dict[str, Binding] = {}
        self._latest: dict[str, int] = {}

    def bind(self, session_key: str, binding: Binding) -> bool:
        """Record a completed continuation; False if a later one is already known."""
        if binding.order <= self._latest.get(session_key, -1):
            return False
        self._latest[session_key] = binding.order
        self._bindings[session_key] = binding
        return True

    def lookup(self, session_key: str | None) -> Binding | None:
        """The session's continuation, if its endpoint still exists."""
        return None if session_key is None else self._bindings.get(session_key)

    def drop(self, checkpoint: CheckpointHandle) -> None:
        """The checkpoint is gone. The order stays known, so that no earlier result can come back in its place."""
        for key in [key for key, binding in self._bindings.items() if binding.endpoint == checkpoint]:
            del self._bindings[key]
        if len(self._latest) > len(self._bindings) + 2 * MAX_UNBOUND:
            self._forget_oldest()

    @property
    def live(self) -> dict[int, int]:
        """Owner → publication order of its live endpoint."""
        return {binding.owner: binding.order for binding in self._bindings.values()}

    def clear(self) -> None:
        """Forget everything."""
        self._bindings.clear()
        self._latest.clear()

    def _forget_oldest(self) -> None:
        """Orders of sessions without a binding are kept for the latest few only: requests in flight are few."""
        unbound = sorted(self._latest.keys() - self._bindings.keys(), key=self._latest.__getitem__)
        for key in unbound[:-MAX_UNBOUND]:
            del self._latest[key]
