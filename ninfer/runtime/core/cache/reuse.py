"""Which checkpoints a prompt can start from, and why it reused what it did."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ninfer.runtime.core.cache.catalog import Catalog, Entry
from ninfer.runtime.core.cache.prefix_digest import prefix_digests
from ninfer.runtime.core.program import CheckpointHandle
from ninfer.types import PreparedPrompt, Reuse, ReuseReason

MAX_PROBES = 2
"""Histories compared with a prompt only to say where it diverges."""
EVICTED_KEPT = 64


class Identities(Protocol):
    """The exact comparison, Program's."""

    def common_prefix(self, checkpoint: CheckpointHandle, prompt: PreparedPrompt) -> int: ...


@dataclass(frozen=True, slots=True)
class Lookup:
    """`usable` are the checkpoints that the prompt repeats exactly and goes beyond, longest first.

    `common` is the longest prefix known to be shared with any history that was compared. `evicted` is the longest
    frontier at which a usable checkpoint once was but is no more; 0 for none.
    """

    usable: tuple[Entry, ...] = ()
    common: int = 0
    evicted: int = 0


class ReuseFinder:
    """Looks prompts up in the catalog; remembers what was evicted lately, for explanations."""

    def __init__(self, catalog: Catalog, identities: Identities) -> None:
        self._catalog = catalog
        self._identities = identities
        self._evicted: deque[tuple[int, bytes]] = deque(maxlen=EVICTED_KEPT)

    def evicted(self, entry: Entry) -> None:
        """A checkpoint was given up."""
        self._evicted.append((entry.frontier, entry.digest))

    def clear(self) -> None:
        """Forget what was evicted."""
        self._evicted.clear()

    def look_up(self, prompt: PreparedPrompt, endpoint: CheckpointHandle | None) -> Lookup:
        """Everything usable. `endpoint` is the session's own continuation: the first history to compare with."""
        longest = len(prompt.token_ids) - 1
        frontiers = (*self._catalog.frontiers, *(frontier for frontier, _ in self._evicted))
        digests = prefix_digests(prompt.token_ids, prompt.identity, (f for f in frontiers if f <= longest))
        shortlist = self._catalog.shortlist(digests)
        usable = self._proved(shortlist, prompt)
        best = usable[0].frontier if usable else 0
        lost = (f for f, digest in self._evicted if f > best and digests.get(f) == digest)
        return Lookup(usable, max(best, self._common(prompt, usable, endpoint)), max(lost, default=0))

    def _proved(self, shortlist: Sequence[Entry], prompt: PreparedPrompt) -> tuple[Entry, ...]:
        """Those that Program finds exact. What lies on the path of an exact one was a prefix of it from its making."""
        exact: dict[CheckpointHandle, Entry] = {}
        for entry in shortlist:
            if entry.handle not in exact and self._identities.common_prefix(entry.handle, prompt) == entry.frontier:
                exact[entry.handle] = entry
                exact.update((above.handle, above) for above in self._catalog.ancestors(entry))
        return tuple(sorted(exact.values(), key=lambda entry: -entry.frontier))

    def _common(self, prompt: PreparedPrompt, usable: Sequence[Entry], endpoint: CheckpointHandle | None) -> int:
        """How far the likeliest histories agree with the prompt."""
        probes = list(dict.fromkeys(self._probes(usable, endpoint)))[:MAX_PROBES]
        return max((self._identities.common_prefix(handle, prompt) for handle in probes), default=0)

    def _probes(self, usable: Sequence[Entry], endpoint: CheckpointHandle | None) -> Iterable[CheckpointHandle]:
        if endpoint is not None and endpoint in self._catalog:
            yield endpoint
        if usable:
            yield from sorted(self._catalog.children(usable[0].handle), key=lambda h: -self._catalog[h].frontier)
        else:
            owners: dict[int, CheckpointHandle] = {}
            for entry in self._catalog:
                owners[entry.owner] = entry.handle
            yield from reversed(owners.values())


def explain(lookup: Lookup, source: Entry | None, catalog_size: int) -> Reuse:
    """The reason for reusing `source`, or for reusing nothing."""
    if source is not None:
        return Reuse(ReuseReason.HIT, source.frontier, lookup.common, source.kind)
    if lookup.usable:
        return Reuse(ReuseReason.NOT_WORTH_IT, 0, lookup.common)
    if lookup.evicted:
        return Reuse(ReuseReason.EVICTED, 0, max(lookup.common, lookup.evicted))
    if lookup.common == 0 and catalog_size:
        return Reuse(ReuseReason.IDENTITY_DIFFERS, 0, 0)
    return Reuse(ReuseReason.NO_CHECKPOINT, 0, lookup.common)


DISABLED = Reuse(ReuseReason.DISABLED)
