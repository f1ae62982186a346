"""Checkpoints built once per session; tests that change one work on a copy."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoints import Checkpoint, dense_checkpoint, moe_checkpoint


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Dense, untied, with MTP and vision, in three shards."""
    return dense_checkpoint(tmp_path_factory.mktemp("dense"), mtp=True, vision=True, shards=3)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Dense, tied, text only, without a `text_config` level, in one file."""
    return dense_checkpoint(tmp_path_factory.mktemp("plain"), tied=True, seed=1)


@pytest.fixture(scope="session")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Mixture of experts with MTP."""
    return moe_checkpoint(tmp_path_factory.mktemp("moe"), mtp=True, seed=2)


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[Checkpoint], Path]:
    """Copies a checkpoint's directory so that a test may damage it."""

    def copy(checkpoint: Checkpoint) -> Path:
        target = tmp_path / "source"
        shutil.copytree(checkpoint.path, target)
        return target

    return copy
