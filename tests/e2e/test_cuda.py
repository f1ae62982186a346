"""Whole tiny models on the emulated CUDA device, held against the CPU: every kernel in its place, end to end.

Linears round their inputs to bf16 for the tensor cores, and so does attention in a prefill. The reference is the CPU
with the inputs of linears rounded alike, as the oracle of `linear` does it; a dense model is held against the CPU as it
is, too. (Of a MoE model the rounding may turn a near tie of two experts, and then nothing can be compared.)
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from ninfer.convert import convert
from ninfer.kernels import jit
from ninfer.kernels.arena import Arena
from ninfer.kernels.jit import using
from ninfer.kernels.kv_cache import KvCodec
from ninfer.kernels.placement import choose
from ninfer.kernels.tolerances import WHOLE_MODEL, WHOLE_MODEL_BF16, Tolerance
from ninfer.models.qwen3_5.state import ModelState, allocate_state
from ninfer.runtime.instance import ModelInstance
from ninfer.runtime.program.pages import AddressSpace, PagePool, PageStore
from ninfer.runtime.program.rounds import DecodeRound, Recorder, Repeated, taped
from ninfer.runtime.program.sequence import ZERO_IMAGE
from ninfer.runtime.program.spans import Span, build_batch
from tests.checkpoints import moe_checkpoint
from tests.e2e.conftest import Models
from tests.e2e.emulated import Unwarmed, rounded_activations
from tests.kernels.emulator import NEEDS_EMULATOR

pytestmark = NEEDS_EMULATOR

PAGES, IMAGES = 16, 16


def tokens(seed: int, count: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(256) for _ in range(count))


# --- logits -----------------------------------------------------------------------------------------------


@dataclass
class Row:
    """One sequence: what it has consumed, and the logits after each token."""

    history: tuple[int, ...]
    space: AddressSpace
    image: int = ZERO_IMAGE
    logits: list[torch.Tensor] = field(default_factory=list)


@dataclass
class Runner:
    """Feeds histories through prefills and recorded decode rounds, wherever the instance lives."""

    instance: ModelInstance
    codec: KvCodec
    recorder: Recorder
    state: ModelState = field(init=False)
    store: PageStore = field(default_factory=lambda: PageStore(PagePool(PAGES)))
    images: list[int] = field(default_factory=lambda: random.Random(3).sample(range(IMAGES), IMAGES))
    rounds: dict[int, DecodeRound] = field(default_factory=dict)

    def __post_init__(self) -> None:
        instance = self.instance
        self.state = allocate_state(instance.config.text, self.codec, PAGES, IMAGES, instance.placement)
        self.arena = Arena(instance.placement)

    def open(self, history: tuple[int, ...]) -> Row:
        return Row(history, AddressSpace.reserve(self.store, len(history)))

    def prefill(self, row: Row, count: int) -> None:
        """Consume the next `count` tokens in one pass."""
        model, placement = self.instance.model, self.instance.placement
        span = self._span(row, count)
        with self.arena.scope():
            hidden, logits = self.arena.take(count, model.hidden_size), self.arena.take(count, model.vocab_size)
            model.forward(build_batch((span,), placement), self.state, self.arena, hidden)
            model.logits(hidden, self.arena, logits)
            self._advance(row, span, logits.clone())

    def decode(self, rows: Sequence[Row]) -> None:
        """Consume one token of each row in one recorded round."""
        if len(rows) not in self.rounds:
            made = DecodeRound(
                self.instance.model, self.state, len(rows), PAGES, self.recorder, self.instance.placement
            )
            self.rounds[len(rows)] = made
        spans = [self._span(row, 1) for row in rows]
        logits = self.rounds[len(rows)].run(spans).clone()
        for index, (row, span) in enumerate(zip(rows, spans, strict=True)):
            self._advance(row, span, logits[index : index + 1])

    def _span(self, row: Row, count: int) -> Span:
        begin = row.space.frontier
        span = Span(row.space, row.history[begin : begin + count], row.image, self.images.pop())
        row.space.grow(span.end)
        return span

    def _advance(self, row: Row, span: Span, logits: torch.Tensor) -> None:
        row.logits.append(logits)
        row.space.advance(span.end)
        if span.source != ZERO_IMAGE:
            self.images.insert(0, span.source)
        row.image = span.target


def run(runner: Runner) -> list[torch.Tensor]:
    """Prefills in one and two chunks, rounds of three rows and of one, a page crossed on the way."""
    rows = [runner.open(tokens(seed, count)) for seed, count in ((1, 70), (2, 9), (3, 40))]
    for row, chunks in zip(rows, ((59,), (1,), (17, 15)), strict=True):
        for chunk in chunks:
            runner.prefill(row, chunk)
    for _ in range(8):
        runner.decode(rows)
    for _ in range(3):
        runner.decode(rows[:1])
    return [torch.cat(row.logits) for row in rows]


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory, models: Models) -> Mapping[str, Path]:
    root = tmp_path_factory.mktemp("cuda")
    convert(moe_checkpoint(root / "hf", seed=8).path, root / "moe.ninfer", recipe="groupwise")
    return {"dense": models("untied", "q8")[1], "moe": root / "moe.ninfer"}


@pytest.mark.parametrize("codec", [KvCodec.BF16, KvCodec.INT8])
@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_logits_are_those_of_the_cpu(artifacts: Mapping[str, Path], kind: str, codec: KvCodec) -> None:
    torch.set_num_threads(1)
    with using(Unwarmed("fast")):
        instance = ModelInstance.open(artifacts[kind], placement=choose("cuda"))
        actual = run(Runner(instance, codec, jit.record))
    with rounded_activations():
        rounded = run(Runner(ModelInstance.open(artifacts[kind]), codec, Repeated.record))
    assert_close(actual, rounded, WHOLE_MODEL)
    if kind == "dense":
        assert_close(actual, run(Runner(ModelInstance.open(artifacts[kind]), codec, taped)), WHOLE_MODEL_BF16)


def assert_close(actual: list[torch.Tensor], expected: list[torch.Tensor], tolerance: Tolerance) -> None:
    for ours, theirs in zip(actual, expected, strict=True):
        assert not ours.isnan().any()
        error, limit = (ours - theirs).abs().max().item(), bound(theirs, tolerance)
        assert error <= limit, f"off by {error}, which is {error / limit:.2f} of what may be"


def bound(expected: torch.Tensor, tolerance: Tolerance) -> float:
    """How far a logit may be off."""
    return tolerance.of_peak * expected.abs().max().item()
