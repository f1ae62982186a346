"""Bits of a row's logits do not depend on chunking, batch, company, pages or image slots."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from ninfer.kernels.arena import Arena
from ninfer.kernels.kv_cache import KvCodec
from ninfer.models.qwen3_5.state import ModelState, allocate_state
from ninfer.runtime.instance import ModelInstance
from ninfer.runtime.program.pages import AddressSpace, PagePool, PageStore
from ninfer.runtime.program.sequence import ZERO_IMAGE
from ninfer.runtime.program.spans import Span, build_batch

PAGES, IMAGES, TOKENS = 64, 24, 133


@dataclass
class Runner:
    """Feeds token spans of several sequences to the model and collects every row of logits."""

    instance: ModelInstance
    codec: KvCodec
    state: ModelState = field(init=False)
    arena: Arena = field(default_factory=Arena)
    slots: list[int] = field(default_factory=lambda: random.Random(3).sample(range(IMAGES), IMAGES))

    def __post_init__(self) -> None:
        self.state = allocate_state(self.instance.config.text, self.codec, PAGES, IMAGES)

    def feed(self, rows: Sequence[tuple[AddressSpace, int, Sequence[int]]]) -> tuple[list[torch.Tensor], list[int]]:
        """Per row (space, image, tokens) -> its logits and its new image."""
        targets = [self.slots.pop() for _ in rows]
        spans = [Span(s, tuple(t), image, target) for (s, image, t), target in zip(rows, targets, strict=True)]
        with self.arena.scope():
            for span in spans:
                span.space.grow(span.end)
            hidden = self.arena.take(sum(len(span.tokens) for span in spans), self.instance.model.hidden_size)
            self.instance.model.forward(build_batch(spans), self.state, self.arena, hidden)
            logits = torch.empty(hidden.shape[0], self.instance.model.vocab_size)
            self.instance.model.logits(hidden, self.arena, logits)
        for span, (_, image, _) in zip(spans, rows, strict=True):
            span.space.advance(span.end)
            if image != ZERO_IMAGE:
                self.slots.insert(0, image)
        return list(logits.split([len(span.tokens) for span in spans])), targets


def tokens(seed: int, count: int = TOKENS) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(256) for _ in range(count)]


def run(runner: Runner, pool: PageStore, ids: Sequence[int], chunks: Sequence[int]) -> torch.Tensor:
    """Logits of every position, the sequence alone, fed in pieces of these sizes (the last repeats)."""
    space, image, done, out = AddressSpace.reserve(pool, len(ids)), ZERO_IMAGE, 0, []
    sizes = iter(chunks)
    size = chunks[-1]
    while done < len(ids):
        size = next(sizes, size)
        logits, (image,) = runner.feed([(space, image, ids[done : done + size])])
        out.append(logits[0])
        done += len(logits[0])
    runner.slots.append(image)
    return torch.cat(out)


@pytest.mark.parametrize("codec", [KvCodec.FP32, KvCodec.INT8])
@pytest.mark.parametrize("chunks", [(1,), (7, 57, 1, 64, 4), (65, 68), (128, 5)])
def test_logits_do_not_depend_on_the_chunking(instance: ModelInstance, codec: KvCodec, chunks: tuple[int, ...]) -> None:
    whole = run(Runner(instance, codec), PageStore(PagePool(PAGES)), tokens(1), (TOKENS,))
    assert torch.equal(run(Runner(instance, codec), PageStore(PagePool(PAGES)), tokens(1), chunks), whole)


@pytest.mark.parametrize("wanted", [(TOKENS - 1,), (0, 64, 100), (), tuple(range(TOKENS))])
def test_some_rows_have_the_bits_of_all_rows(instance: ModelInstance, wanted: tuple[int, ...]) -> None:
    model, states, outs = instance.model, [], []
    for rows in (None, torch.tensor(wanted, dtype=torch.int64)):
        runner, space = Runner(instance, KvCodec.BF16), AddressSpace.reserve(PageStore(PagePool(PAGES)), TOKENS)
        space.grow(TOKENS)
        batch = build_batch((Span(space, tuple(tokens(1)), ZERO_IMAGE, 0),))
        out = torch.empty(TOKENS if rows is None else len(rows), model.hidden_size)
        with runner.arena.scope():
            if rows is None:
                model.forward(batch, runner.state, runner.arena, out)
            else:
                model.forward_rows(batch, runner.state, runner.arena, rows, out)
        states.append(runner.state)
        outs.append(out)
    assert torch.equal(outs[1], outs[0][list(wanted)])
    for left, right in zip(states[0].gdn, states[1].gdn, strict=True):
        assert torch.equal(left.state[0], right.state[0])
        assert torch.equal(left.history[0], right.history[0])
    for one, other in zip(states[0].kv, states[1].kv, strict=True):
        assert torch.equal(one.keys.codes, other.keys.codes)
        assert torch.equal(one.values.codes, other.values.codes)


@pytest.mark.parametrize("codec", [KvCodec.FP32, KvCodec.K8V4])
def test_logits_do_not_depend_on_company(instance: ModelInstance, codec: KvCodec) -> None:
    """Eight sequences of unequal length in ragged batches against each of them alone."""
    rng = random.Random(5)
    histories = [tokens(seed, 20 + 9 * seed) for seed in range(8)]
    alone = [run(Runner(instance, codec), PageStore(PagePool(PAGES)), ids, (len(ids),)) for ids in histories]
    runner, pool = Runner(instance, codec), PageStore(PagePool(PAGES))
    spaces = [AddressSpace.reserve(pool, len(ids)) for ids in histories]
    images, seen = [ZERO_IMAGE] * 8, [0] * 8
    while any(done < len(ids) for done, ids in zip(seen, histories, strict=True)):
        members = [i for i in rng.sample(range(8), rng.randint(1, 8)) if seen[i] < len(histories[i])]
        if not members:
            continue
        pieces = [histories[i][seen[i] : seen[i] + rng.choice((1, 1, 2, 30))] for i in members]
        rows = [(spaces[i], images[i], piece) for i, piece in zip(members, pieces, strict=True)]
        logits, targets = runner.feed(rows)
        for i, got, target in zip(members, logits, targets, strict=True):
            assert torch.equal(got, alone[i][seen[i] : seen[i] + len(got)])
            images[i], seen[i] = target, seen[i] + len(got)
