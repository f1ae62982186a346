"""A device for tests that runs CUDA kernels on the CPU and finds their mistakes; README.md says how and which."""

import pytest

from tests.kernels.emulator.device import Emulator, EmulatorError
from tests.kernels.emulator.memory import guarded
from tests.kernels.emulator.modules import missing

__all__ = ["NEEDS_EMULATOR", "Emulator", "EmulatorError", "guarded", "missing"]

NEEDS_EMULATOR = pytest.mark.skipif(bool(missing()), reason=missing() or "nothing is missing")
