"""A device for tests that runs CUDA kernels on the CPU and finds their mistakes; README.md says how and which."""

from tests.kernels.emulator.device import Emulator, EmulatorError
from tests.kernels.emulator.memory import guarded
from tests.kernels.emulator.modules import missing

__all__ = ["Emulator", "EmulatorError", "guarded", "missing"]
