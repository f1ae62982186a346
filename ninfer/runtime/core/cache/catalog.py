"""The catalog: what the control plane knows of every checkpoint that exists. It holds no physical quantity.

Checkpoints of one history form a chain of prefixes, histories that branch form a tree. `parent` is the longest
recorded proper prefix on the path that the checkpoint was computed along; when an entry goes, its children move up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ninfer.runtime.core.program import CheckpointHandle
from ninfer.types import CheckpointKind


@dataclass(slots=True, eq=False)
class Entry:
    """One checkpoint. `owner` is the continuation it belongs to, `order` the publication order of the request that
    made it, `born` the number of materialisations before it was made, `hits` how often a request started from it.
    """

    handle: CheckpointHandle
    kind: CheckpointKind
    frontier: int
    digest: bytes
    owner: int
    order: int
    domain: bytes
    born: int = 0
    last_used: int = 0
    hits: int = 0
    parent: CheckpointHandle | None = None


class Catalog:
    """All entries, by handle, by (frontier, digest) and by owner."""

    def __init__(self) -> None:
        self._entries: dict[CheckpointHandle, Entry] = {}
        self._places: dict[tuple[int, bytes], CheckpointHandle] = {}
        self._frontiers: Counter[int] = Counter()
        self._children: dict[CheckpointHandle, set[CheckpointHandle]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, handle: CheckpointHandle) -> bool:
        return handle in self._entries

    def __getitem__(self, handle: CheckpointHandle) -> Entry:
        return self._entries[handle]

    def __iter__(self) -> Iterator[Entry]:
        """Entries in order of publication."""
        return iter(self._entries.values())

    def get(self, handle: CheckpointHandle | None) -> Entry | None:
        """The entry, if it exists."""
        return None if handle is None else self._entries.get(handle)

    # --- changes ---

    def add(self, entry: Entry) -> None:
        """A checkpoint was published. A parent that is gone, or is no proper prefix, counts as none."""
        assert entry.handle not in self._entries, "a checkpoint is published once"
        parent = self.get(entry.parent)
        entry.parent = parent.handle if parent is not None and parent.frontier < entry.frontier else None
        self._entries[entry.handle] = entry
        self._places[entry.frontier, entry.digest] = entry.handle
        self._frontiers[entry.frontier] += 1
        self._children[entry.handle] = set()
        if entry.parent is not None:
            self._children[entry.parent].add(entry.handle)

    def remove(self, handle: CheckpointHandle) -> Entry:
        """A checkpoint is gone; its children now hang below its parent."""
        entry = self._entries.pop(handle)
        for child in self._children.pop(handle):
            self._entries[child].parent = entry.parent
            if entry.parent is not None:
                self._children[entry.parent].add(child)
        if entry.parent is not None:
            self._children[entry.parent].discard(handle)
        if self._places.get((entry.frontier, entry.digest)) == handle:
            del self._places[entry.frontier, entry.digest]
        self._frontiers -= Counter((entry.frontier,))
        return entry

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._places.clear()
        self._frontiers.clear()
        self._children.clear()

    # --- questions ---

    @property
    def frontiers(self) -> tuple[int, ...]:
        """Every frontier at which some checkpoint lies."""
        return tuple(self._frontiers)

    def at(self, frontier: int, digest: bytes) -> Entry | None:
        """The latest checkpoint with this frontier and digest."""
        return self.get(self._places.get((frontier, digest)))

    def shortlist(self, digests: Mapping[int, bytes]) -> list[Entry]:
        """Checkpoints whose digest agrees with a prompt's, longest first. They still have to be proved exact."""
        found = (self.at(frontier, digests[frontier]) for frontier in sorted(digests, reverse=True))
        return [entry for entry in found if entry is not None]

    def children(self, handle: CheckpointHandle) -> frozenset[CheckpointHandle]:
        """Entries whose parent this is."""
        return frozenset(self._children[handle])

    def ancestors(self, entry: Entry) -> Iterator[Entry]:
        """Proper prefixes of an entry, longest first."""
        parent = self.get(entry.parent)
        while parent is not None:
            yield parent
            parent = self.get(parent.parent)

    def of_owner(self, owner: int) -> list[Entry]:
        """The checkpoints of one continuation, shared ones not among them."""
        return [e for e in self if e.owner == owner and e.kind is not CheckpointKind.SHARED_PREFIX]

    def of_kind(self, kind: CheckpointKind) -> list[Entry]:
        """The checkpoints of one kind."""
        return [entry for entry in self if entry.kind is kind]
