"""Cheap sets of checkpoints to give up, in the order of the degradation graph."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass

from ninfer.runtime.core.cache.catalog import Catalog, Entry
from ninfer.runtime.core.cache.portfolio import Valuation
from ninfer.runtime.core.program import CheckpointFacts, CheckpointHandle, Degradation, Victim

_Key = tuple[int, bool, int, int, int]


def shortening_order(
    catalog: Catalog, valuation: Valuation, kept: Container[CheckpointHandle | None]
) -> Iterator[Entry]:
    """Checkpoints to delete one after another so that each frees pages: the least loss per token comes first.

    A checkpoint holds every page of its prefixes, so a prefix goes only when nothing longer hangs below it: histories
    are shortened from their ends, whole continuations go last. What `kept` checkpoints hold follows at the very end.
    """
    children = {entry.handle: len(catalog.children(entry.handle)) for entry in catalog}
    heap = [_keyed(entry, catalog, valuation) for entry in catalog if not children[entry.handle]]
    heap = [item for item in heap if item[1].handle not in kept]
    heapq.heapify(heap)
    done = set()
    while heap:
        _, entry = heapq.heappop(heap)
        done.add(entry.handle)
        yield entry
        parent = catalog.get(entry.parent)
        if parent is not None:
            children[parent.handle] -= 1
            if not children[parent.handle] and parent.handle not in kept:
                heapq.heappush(heap, _keyed(parent, catalog, valuation))
    rest = [entry for entry in catalog if entry.handle not in done and entry.handle not in kept]
    yield from sorted(rest, key=lambda entry: (-entry.frontier, entry.handle.index))


def _keyed(entry: Entry, catalog: Catalog, valuation: Valuation) -> tuple[_Key, Entry]:
    parent = catalog.get(entry.parent)
    tokens = entry.frontier - (0 if parent is None else parent.frontier)
    handle = entry.handle
    return (valuation.worth(entry) // tokens, entry.hits > 0, entry.last_used, handle.generation, handle.index), entry


@dataclass(frozen=True, slots=True)
class Move:
    """One degradation and what it alone would cost later."""

    loss: int
    victim: Victim


def single_moves(
    catalog: Catalog,
    valuation: Valuation,
    kept: Container[CheckpointHandle | None],
    facts: Callable[[CheckpointHandle], CheckpointFacts] | None,
) -> tuple[Move, ...]:
    """Every degradation of every checkpoint outside `kept`, the cheapest first. No `facts`: there is no host tier."""
    entries = [entry for entry in catalog if entry.handle not in kept]
    moves = [Move(valuation.worth(entry), Victim(entry.handle, Degradation.DELETE)) for entry in entries]
    for entry in entries if facts is not None else ():
        if facts is not None and may_leave(facts(entry.handle)):
            moves.append(Move(valuation.removal(entry), Victim(entry.handle, Degradation.HOST_ONLY)))
    return tuple(sorted(moves, key=lambda move: (move.loss, catalog[move.victim.checkpoint].hits > 0, _age(move))))


def may_leave(facts: CheckpointFacts) -> bool:
    """True if HOST_ONLY would free something on the device: all of a checkpoint, or pages left over from a restore."""
    return facts.on_device or facts.exclusive_pages > 0


def _age(move: Move) -> tuple[int, int, str]:
    handle = move.victim.checkpoint
    return handle.generation, handle.index, move.victim.degradation.value


def deletions(entries: Sequence[Entry]) -> tuple[Victim, ...]:
    """These checkpoints as victims to be deleted."""
    return tuple(Victim(entry.handle, Degradation.DELETE) for entry in entries)
