"""Recorded decode rounds give the bits of ordinary forward passes, and record nothing but kernels."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ninfer.kernels.kv_cache import KvCodec
from ninfer.kernels.native import record
from ninfer.kernels.placement import Cuda
from ninfer.models.qwen3_5.state import ModelState, allocate_state
from ninfer.runtime.instance import ModelInstance
from ninfer.runtime.program.pages import AddressSpace, PagePool, PageStore
from ninfer.runtime.program.rounds import DecodeRound, RoundInputs
from ninfer.runtime.program.sequence import ZERO_IMAGE
from ninfer.runtime.program.spans import Span
from tests.runtime.program.test_exactness import IMAGES, PAGES, TOKENS, Runner, run, tokens

WITHOUT_EFFECT = ("view", "slice", "select", "split", "expand", "unsqueeze", "transpose", "detach", "empty", "alias")
CHECKS = ("min", "max", "aminmax", "_local_scalar_dense")


@dataclass
class Rounds:
    """Feeds single tokens through recorded rounds of any membership."""

    instance: ModelInstance
    codec: KvCodec
    state: ModelState = field(init=False)
    slots: list[int] = field(default_factory=lambda: random.Random(3).sample(range(IMAGES), IMAGES))
    rounds: dict[int, DecodeRound] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = allocate_state(self.instance.config.text, self.codec, PAGES, IMAGES)

    def feed(self, rows: list[tuple[AddressSpace, int, int]]) -> tuple[torch.Tensor, list[int]]:
        """Per row (space, image, token) -> logits [B, V] and the new images."""
        if len(rows) not in self.rounds:
            self.rounds[len(rows)] = DecodeRound(self.instance.model, self.state, len(rows), PAGES)
        targets = [self.slots.pop() for _ in rows]
        spans = [Span(s, (token,), image, target) for (s, image, token), target in zip(rows, targets, strict=True)]
        for span in spans:
            span.space.grow(span.end)
        logits = self.rounds[len(rows)].run(spans).clone()
        for span in spans:
            span.space.advance(span.end)
            if span.source != ZERO_IMAGE:
                self.slots.insert(0, span.source)
        return logits, targets


@pytest.fixture(autouse=True)
def _needs_compiled_kernels(instance: ModelInstance) -> None:
    if not instance.compiled:
        pytest.skip("no C++ compiler here")


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("codec", [KvCodec.BF16, KvCodec.INT8])
def test_rounds_of_changing_membership_give_the_bits_of_a_prefill(instance: ModelInstance, codec: KvCodec) -> None:
    """Pages are crossed, members come and go, rows change places; every row's logits are those of one prefill."""
    rng = random.Random(7)
    histories = [tokens(seed, TOKENS - 20 * seed) for seed in range(4)]
    alone = [run(Runner(instance, codec), PageStore(PagePool(PAGES)), ids, (len(ids),)) for ids in histories]
    rounds, pool = Rounds(instance, codec), PageStore(PagePool(PAGES))
    spaces = [AddressSpace.reserve(pool, len(ids)) for ids in histories]
    images, seen = [ZERO_IMAGE] * 4, [0] * 4
    while any(done < len(ids) for done, ids in zip(seen, histories, strict=True)):
        members = [i for i in rng.sample(range(4), rng.randint(1, 4)) if seen[i] < len(histories[i])]
        if members:
            logits, targets = rounds.feed([(spaces[i], images[i], histories[i][seen[i]]) for i in members])
            for i, got, target in zip(members, logits, targets, strict=True):
                assert torch.equal(got, alone[i][seen[i]]), f"token {seen[i]} of sequence {i}"
                images[i], seen[i] = target, seen[i] + 1


class _OnlyLaunches(TorchDispatchMode):
    """Fails where torch computes something: a recording would not repeat it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name in CHECKS or any(word in name for word in WITHOUT_EFFECT), f"torch computes {name}"
        return func(*args, **(kwargs or {}))


def test_a_recording_holds_all_of_a_round(instance: ModelInstance) -> None:
    state = allocate_state(instance.config.text, KvCodec.BF16, PAGES, IMAGES)
    made = DecodeRound(instance.model, state, 2, PAGES)
    with _OnlyLaunches(), record():
        made._launch()


def test_inputs_are_written_by_the_host_whatever_torchs_default_device_is() -> None:
    """A script that makes tensors on a GPU by default makes rounds, too."""
    with torch.device("meta"):
        inputs = RoundInputs(Cuda.at(torch.device("cpu")), 2, 3)
    assert inputs.batch.segments.data.tolist() == [[0, 1], [1, 1], [0, 0]]
    assert inputs.batch.states.data.tolist() == [[-1, -1], [0, 1]]
