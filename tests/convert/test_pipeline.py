"""Streaming: memory does not grow with the tensors, all threads work, failures stop everything."""

from __future__ import annotations

import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ninfer.artifact.formats import Format
from ninfer.convert import convert
from ninfer.convert.recipe import Recipe
from ninfer.convert.recipes.uniform import q8
from tests.checkpoints import Checkpoint, dense_checkpoint

BIG = {"hidden_size": 1024, "vocab_size": 16384, "intermediate_size": 4096, "num_hidden_layers": 1}
LAYERS = {"layer_types": ["full_attention"]}


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """About 65 MB of bf16: a 32 MB embedding and 8 MB matrices."""
    return dense_checkpoint(tmp_path_factory.mktemp("big"), tied=True, text_config={**BIG, **LAYERS})


@pytest.mark.parametrize("recipe", ["bf16", "groupwise", "fp8"])
def test_memory_is_bounded_by_blocks_not_by_tensors(big: Checkpoint, tmp_path: Path, recipe: str) -> None:
    source = sum(tensor.numel() * tensor.element_size() for tensor in big.tensors.values())
    assert source > 60e6
    tracemalloc.start()
    try:
        convert(big.path, tmp_path / "m.ninfer", recipe=recipe, workers=2, block_bytes=1 << 19)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Two threads hold a block of values each, its encoded form, and the encoder's temporaries.
    assert peak < 24e6 < max(tensor.numel() for tensor in big.tensors.values()) * 2


def test_block_size_and_workers_do_not_change_a_byte(plain: Checkpoint, tmp_path: Path) -> None:
    def payload(name: str, *, workers: int, block_bytes: int) -> bytes:
        convert(plain.path, tmp_path / name, recipe="groupwise", workers=workers, block_bytes=block_bytes)
        return (tmp_path / name).read_bytes()[32:]

    whole = payload("a.ninfer", workers=1, block_bytes=1 << 30)
    assert payload("b.ninfer", workers=3, block_bytes=20_000) == whole
    assert payload("c.ninfer", workers=2, block_bytes=100_000) == whole


def test_blocks_run_in_several_threads(plain: Checkpoint, tmp_path: Path) -> None:
    """Two blocks meet at a barrier, so they must be in work at the same time."""
    barrier = threading.Barrier(2, timeout=30)

    def meet(values: NDArray[np.float32], fmt: Format) -> NDArray[np.float32]:
        barrier.wait()
        return values

    def recipe(recipe: Recipe) -> None:
        q8(recipe)
        recipe.assign("text/layers/0/mlp/down", "bf16", meet)

    convert(plain.path, tmp_path / "m.ninfer", recipe=recipe, workers=2, block_bytes=128 * 256)
    assert barrier.n_waiting == 0


def test_a_failing_block_stops_the_conversion_and_leaves_nothing(plain: Checkpoint, tmp_path: Path) -> None:
    def fail(values: NDArray[np.float32], fmt: Format) -> Any:
        raise ZeroDivisionError("in a custom method")

    def recipe(recipe: Recipe) -> None:
        q8(recipe)
        recipe.assign("text/layers/1/mlp/down", "q4", fail)

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        convert(plain.path, tmp_path / "m.ninfer", recipe=recipe, block_bytes=4096)
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == before
