"""The catalog and the session index against plain reference models."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ninfer.runtime.core.cache.catalog import Catalog, Entry
from ninfer.runtime.core.cache.prefix_digest import domain_digest, prefix_digests
from ninfer.runtime.core.cache.sessions import Binding, SessionIndex
from ninfer.types import CheckpointKind
from tests.runtime.core.cache.builders import handle


@dataclass
class Known:
    """What the reference knows of a checkpoint: its whole history, and the proper prefixes on its path."""

    history: tuple[int, ...]
    owner: int
    kind: CheckpointKind
    path: tuple[int, ...]


class CatalogModel(RuleBasedStateMachine):
    """Adds and removes checkpoints of short histories over a tiny alphabet, so that prefixes and twins abound."""

    def __init__(self) -> None:
        super().__init__()
        self.catalog = Catalog()
        self.known: dict[int, Known] = {}
        self.number = 0

    @rule(
        data=st.data(),
        more=st.lists(st.integers(0, 1), min_size=1, max_size=3),
        owner=st.integers(0, 2),
        kind=st.sampled_from(CheckpointKind),
    )
    def publish(self, data: st.DataObject, more: list[int], owner: int, kind: CheckpointKind) -> None:
        parent = data.draw(st.none() | st.sampled_from(sorted(self.known))) if self.known else None
        base = self.known[parent].history if parent is not None else ()
        path = (parent, *self.known[parent].path) if parent is not None else ()
        history = (*base, *more)
        self.number += 1
        digest = prefix_digests(history, b"", [len(history)])[len(history)]
        above = None if parent is None else handle(parent)
        self.catalog.add(Entry(handle(self.number), kind, len(history), digest, owner, 0, b"", parent=above))
        self.known[self.number] = Known(history, owner, kind, path)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.known)))
        assert self.catalog.remove(handle(number)).frontier == len(self.known.pop(number).history)

    @rule(prompt=st.lists(st.integers(0, 1), max_size=8))
    def look_up(self, prompt: list[int]) -> None:
        digests = prefix_digests(prompt, b"", [f for f in self.catalog.frontiers if f <= len(prompt)])
        found = [entry.handle.index for entry in self.catalog.shortlist(digests)]
        expected = {k.history for k in self.known.values() if tuple(prompt[: len(k.history)]) == k.history}
        assert {self.known[number].history for number in found} <= expected
        lengths = [len(self.known[number].history) for number in found]
        assert lengths == sorted(set(lengths), reverse=True)

    @invariant()
    def same_entries(self) -> None:
        assert [entry.handle.index for entry in self.catalog] == sorted(self.known)
        assert len(self.catalog) == len(self.known)
        assert set(self.catalog.frontiers) == {len(known.history) for known in self.known.values()}

    @invariant()
    def same_tree(self) -> None:
        for number, known in self.known.items():
            entry = self.catalog[handle(number)]
            path = [above for above in known.path if above in self.known]
            assert [above.handle.index for above in self.catalog.ancestors(entry)] == path
            below = {n for n, k in self.known.items() if next((a for a in k.path if a in self.known), None) == number}
            assert {child.index for child in self.catalog.children(entry.handle)} == below

    @invariant()
    def same_groups(self) -> None:
        for owner in range(3):
            mine = [n for n, k in self.known.items() if k.owner == owner and k.kind is not CheckpointKind.SHARED_PREFIX]
            assert [entry.handle.index for entry in self.catalog.of_owner(owner)] == mine


CatalogModel.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestCatalog = CatalogModel.TestCase

tokens = st.lists(st.integers(0, 2**31 - 1), max_size=12)


@given(tokens, tokens, st.binary(max_size=3), st.binary(max_size=3), st.integers(0, 12))
def test_equal_digest_iff_equal_prefix_and_identity(
    left: list[int], right: list[int], mine: bytes, theirs: bytes, frontier: int
) -> None:
    a = prefix_digests(left, mine, [frontier]).get(frontier)
    b = prefix_digests(right, theirs, [frontier]).get(frontier)
    assert (a is None) == (frontier > len(left))
    if a is not None and b is not None:
        assert (a == b) == (left[:frontier] == right[:frontier] and mine == theirs)


@given(tokens, st.lists(st.integers(0, 15)))
def test_one_pass_gives_what_single_passes_give(history: list[int], frontiers: list[int]) -> None:
    together = prefix_digests(history, b"i", frontiers)
    assert together == {f: prefix_digests(history, b"i", [f])[f] for f in set(frontiers) if f <= len(history)}


def test_domains() -> None:
    assert domain_digest("a", 1) == domain_digest("a", 2) != domain_digest("b", 1)
    assert domain_digest(None, 1) != domain_digest(None, 2)
    assert domain_digest(None, 1) != domain_digest("request 1", 1)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.booleans()), max_size=20))
def test_only_a_later_result_replaces_a_binding(events: list[tuple[str, int, bool]]) -> None:
    """Each event is a completed result of a session (key, order), or the loss of the session's endpoint."""
    index = SessionIndex()
    latest: dict[str, int] = {}
    bound: dict[str, Binding] = {}
    for number, (key, order, lost) in enumerate(events):
        if lost:
            if key in bound:
                index.drop(bound.pop(key).endpoint)
        else:
            binding = Binding(handle(number), order, order)
            newer = order > latest.get(key, -1)
            assert index.bind(key, binding) == newer
            if newer:
                latest[key], bound[key] = order, binding
        assert {key: index.lookup(key) for key in "ab"} == {key: bound.get(key) for key in "ab"}
    assert index.live == {binding.owner: binding.order for binding in bound.values()}
    assert index.lookup(None) is None
