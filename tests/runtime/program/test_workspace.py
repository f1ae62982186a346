"""The workspace that is planned is the workspace that passes take."""

from __future__ import annotations

import pytest
import torch

from ninfer.kernels.arena import Arena
from ninfer.kernels.kv_cache import KvCodec
from ninfer.kernels.sampling import allow_only
from ninfer.models.qwen3_5.state import allocate_state
from ninfer.models.qwen3_5.workspace import workspace_bytes
from ninfer.runtime.core.program import SequenceDemand, SequenceHandle
from ninfer.runtime.instance import ModelInstance
from ninfer.runtime.program.pages import AddressSpace, PagePool, PageStore
from ninfer.runtime.program.rounds import DecodeRound, taped
from ninfer.runtime.program.sequence import ZERO_IMAGE, Sequence
from ninfer.runtime.program.spans import Span
from ninfer.runtime.program.units import Executor
from ninfer.types import ResolvedSampling
from tests.fakes import prompt_of

GREEDY = ResolvedSampling(0.0, 1.0, 0, 0.0, 0.0, 0.0, 1.0, 0)


@pytest.mark.parametrize("tokens", [1, 5, 100, 128])
def test_a_unit_takes_what_was_counted(instance: ModelInstance, tokens: int) -> None:
    config = instance.config.text
    state = allocate_state(config, KvCodec.BF16, 4, 2)
    executor = Executor(instance.model, state, allow_only(range(config.vocab_size), config.vocab_size), 4, None)
    space = AddressSpace.reserve(PageStore(PagePool(4)), tokens)
    sequence = Sequence(SequenceHandle(0, 0), SequenceDemand(prompt_of(tokens), 1, GREEDY), space)
    executor.choose((sequence,), (Span(space, tuple(range(tokens)), ZERO_IMAGE, 0),))
    assert executor._arena.peak_bytes == workspace_bytes(config, tokens, 1)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_round_takes_no_more_than_was_counted(instance: ModelInstance, rows: int) -> None:
    """Its hidden states and logits, which it keeps, are counted as if they were workspace."""
    config = instance.config.text
    if not instance.compiled:
        pytest.skip("no C++ compiler here")
    state = allocate_state(config, KvCodec.BF16, 4, 2 * rows)
    made = DecodeRound(instance.model, state, rows, 4, taped)
    store = PageStore(PagePool(4))
    spaces = [AddressSpace.reserve(store, 1) for _ in range(rows)]
    for space in spaces:
        space.grow(1)
    made.run([Span(space, (row,), ZERO_IMAGE, row) for row, space in enumerate(spaces)])
    assert 0 < made._arena.peak_bytes <= workspace_bytes(config, rows, rows)


def test_an_arena_that_was_given_its_workspace_never_moves(instance: ModelInstance) -> None:
    arena = Arena(reserved=workspace_bytes(instance.config.text, 128, 1))
    before = arena._backing.data_ptr()
    with arena.scope():
        arena.take(arena._backing.numel(), dtype=torch.uint8)
    assert arena._backing.data_ptr() == before
