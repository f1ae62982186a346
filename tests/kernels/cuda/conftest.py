"""Fixtures of the tests of CUDA kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """Fresh tensors, workspaces among them, hold NaN or the greatest integer: a kernel that reads what nobody wrote
    has no right result by luck.
    """
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
