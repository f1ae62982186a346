"""What is installed is used: a fault of ours must not pass as a machine that lacks something.

Tests skip where there is no C++ compiler, no NVRTC or nothing to emulate with, and they learn that from the code under
test. Here the same is asked of the machine itself.
"""

from __future__ import annotations

import os
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution

import pytest

from ninfer.kernels import has_compiled_routes, native
from ninfer.kernels.jit.build import compiler
from tests.kernels.emulator import missing


def _installed(package: str) -> bool:
    try:
        return bool(distribution(package).version)
    except PackageNotFoundError:
        return False


CXX = bool(os.environ.get("CXX")) or any(shutil.which(name) for name in ("c++", "g++", "clang++"))
NVRTC = sys.platform == "linux" and _installed("nvidia-cuda-nvrtc")
HEADERS = _installed("nvidia-cuda-runtime") and _installed("nvidia-cuda-cccl")


@pytest.mark.skipif(not CXX, reason="no C++ compiler is installed")
def test_an_installed_compiler_compiles_every_source() -> None:
    assert native.prepare()
    assert has_compiled_routes()


@pytest.mark.skipif(not NVRTC, reason="nvidia-cuda-nvrtc is not installed")
def test_an_installed_nvrtc_is_found_and_loaded() -> None:
    assert compiler().toolkit.nvrtc is not None


@pytest.mark.skipif(not (HEADERS and shutil.which("g++")) or "CXX" in os.environ, reason="no g++, or no CUDA headers")
def test_with_gcc_and_cuda_headers_kernels_are_emulated() -> None:
    assert missing() == ""
