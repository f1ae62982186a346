"""What all tests share.

The reference data folder beside the repository: tests marked `shared` use it, and run only where it exists. Property
tests have no deadlines, which say more about what else a machine does than about the code.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    return SHARED


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (SHARED / "data").is_dir():
        return
    absent = [item for item in items if item.get_closest_marker("shared")]
    items[:] = [item for item in items if not item.get_closest_marker("shared")]
    config.hook.pytest_deselected(items=absent)
