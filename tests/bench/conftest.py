"""The reference data folder beside the repository."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    return Path(__file__).resolve().parents[3] / "shared"
