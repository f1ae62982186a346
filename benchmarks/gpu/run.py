"""One GPU, one command: what it is, whether every kernel is right on it, and how far each is from its floor.

    python benchmarks/gpu/run.py [--seconds 420] [--json FILE] [--parts facts,checks,kernels,models] [--emulate]

Needs torch with CUDA, CuPy, NumPy and CUDA's headers and NVRTC (the extra `cuda` brings all of them); the project need
not be installed. Prints tables for RESULTS.md. What the seconds do not allow is named as left out. `--emulate` runs all
of it at tiny shapes on the emulator that the tests use, where times mean nothing: it shows that this script works.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

_BENCHMARKS = Path(__file__).resolve().parents[1]

if __name__ == "__main__":
    # The project need not be installed, and its modules are found only after this.
    sys.path[:0] = [str(_BENCHMARKS), str(_BENCHMARKS.parent)]
    sys.exit(import_module("gpu.command").main((__doc__ or "").splitlines()[0]))
