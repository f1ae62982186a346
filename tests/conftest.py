"""What all tests share.

The reference data folder beside the repository: tests marked `shared` use it, and run only where it exists. Property
tests have no deadlines, which say more about what else a machine does than about the code.
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import settings

from ninfer.kernels import native
from ninfer.kernels.native.build import build
from ninfer.kernels.routes import Route

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

MANY_TESTS = 500
"""From so many tests on, all kernels are compiled before the first one, on all cores."""

FIRST_WORKER = "gw0"

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


def pytest_collection_finish(session: pytest.Session) -> None:
    """What a body cannot be built with here, its own tests report. Of several workers, the first one builds."""
    if len(session.items) < MANY_TESTS or session.config.option.collectonly:
        return
    if os.environ.get("PYTEST_XDIST_WORKER", FIRST_WORKER) != FIRST_WORKER:
        return
    pairs = [(source, body) for source in native.sources() for body in (*native.BODIES, Route.CPU_AVX512_PLAIN)]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(_build, pairs))


def _build(pair: tuple[Path, Route]) -> None:
    with contextlib.suppress(native.BuildError):
        build(*pair)
