"""Fixtures: the small model, and the reference data folder beside the repository."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from ninfer.frontend import Frontend
from tests.frontend.models import library_tokenizer, small_frontend


@pytest.fixture(scope="session")
def library() -> Tokenizer:
    return library_tokenizer()


@pytest.fixture(scope="session")
def frontend() -> Frontend:
    return small_frontend()


@pytest.fixture(scope="session")
def spelled_frontend() -> Frontend:
    """Its vocabulary has no think tokens: the tags are ordinary text."""
    return small_frontend(tags=False)


@pytest.fixture(scope="session")
def reference_data(shared_dir: Path) -> Path:
    return shared_dir / "data"
