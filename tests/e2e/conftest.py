"""Converted tiny random models, made once per test run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from ninfer.convert import convert
from tests.checkpoints import Checkpoint, dense_checkpoint, moe_checkpoint

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
}

Models = Callable[[str, str], tuple[Checkpoint, Path]]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """(kind, recipe) -> the checkpoint and its artifact. Kinds: tied, untied, moe, and small, which costs the least."""
    root = tmp_path_factory.mktemp("models")
    makers: dict[str, Callable[[Path], Checkpoint]] = {
        "tied": lambda path: dense_checkpoint(path, tied=True, seed=1),
        "untied": lambda path: dense_checkpoint(path, seed=2),
        "moe": lambda path: moe_checkpoint(path, seed=3),
        "small": lambda path: dense_checkpoint(path, tied=True, seed=4, text_config=SMALL),
    }

    @cache
    def checkpoint(kind: str) -> Checkpoint:
        return makers[kind](root / kind)

    @cache
    def make(kind: str, recipe: str) -> tuple[Checkpoint, Path]:
        out = root / f"{kind}-{recipe}.ninfer"
        convert(checkpoint(kind).path, out, recipe=recipe)
        return checkpoint(kind), out

    return make
