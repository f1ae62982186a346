"""The GPU: modules loaded and kernels launched through CuPy, the only place that imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ninfer.errors import CudaError

if TYPE_CHECKING:
    from ninfer.kernels.jit import Device


def open_gpu() -> Device:
    """The current CUDA device.

    Raises:
        CudaError: CuPy or a driver is missing or too old; saying what to install.
    """
    raise CudaError("no GPU")
