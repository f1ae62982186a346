"""A catalog with no slot left still turns over: new conversations get in, and branches keep their place."""

from __future__ import annotations

import random

import pytest

from ninfer.runtime.core.engine_core import CoreOptions, EngineCore
from ninfer.types import CheckpointKind
from tests.fakes import FakeClock, ScriptedProgram
from tests.runtime.core.support import Bench, reuse_of

ROUNDS, NEW, ANSWER = 10, 64, 24


def crowded(images: int, host_images: int) -> tuple[Bench, random.Random]:
    """A bench whose slots are all taken by conversations that are over."""
    program = ScriptedProgram(4, 256, 64, 4096, 1024, 1, 1, 1, None, images, host_images)
    b, rng = Bench(program, FakeClock(), EngineCore(program, CoreOptions(8))), random.Random(0)
    for number in range(10):
        b.answer(fresh(rng, 1024), ANSWER, f"over {number}")
    assert b.core.stats().checkpoints == images + host_images
    return b, rng


def fresh(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(1 << 20) for _ in range(count)]


@pytest.mark.parametrize(("images", "host_images"), [(32, 32), (32, 0), (48, 16)])
def test_a_new_conversation_is_continued_from_its_endpoint(images: int, host_images: int) -> None:
    b, rng = crowded(images, host_images)
    history = list(b.answer(fresh(rng, 1024), ANSWER, "new"))
    for _ in range(ROUNDS):
        known = len(history) - 1
        history.extend(fresh(rng, NEW))
        turn = b.ask(history, ANSWER, "new")
        b.settle()
        assert reuse_of(turn).kind is CheckpointKind.SESSION_ENDPOINT
        assert reuse_of(turn).frontier == known
        history.extend(turn.result(0).token_ids)
    assert b.core.stats().evictions > 0
    b.check_clean()


@pytest.mark.parametrize("one_session", [True, False])
def test_alternating_branches_keep_their_place(one_session: bool) -> None:
    b, rng = crowded(32, 32)
    trunk = fresh(rng, 1024)
    branches = [[*trunk, *fresh(rng, NEW)] for _ in range(2)]
    for turn in range(ROUNDS + 1):
        for number, history in enumerate(branches):
            handle = b.ask(history, ANSWER, "s" if one_session else f"s{number}")
            b.settle()
            computed = len(history) - reuse_of(handle).frontier
            assert turn == 0 or computed <= NEW + 1
            history.extend([*handle.result(0).token_ids, *fresh(rng, NEW)])
    b.check_clean()
