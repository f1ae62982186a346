"""What a call's tensors say about the machine that will run it."""

from __future__ import annotations

from pathlib import Path

import torch

from ninfer.kernels.jit import on_device
from ninfer.kernels.native import body_for
from ninfer.kernels.routes import DeviceKind, Problem


def problem(tensor: torch.Tensor, source: Path | None) -> Problem:
    """The problem that a plan looks at.

    Args:
        tensor: an operand of the call.
        source: the C++ source that would serve it on a CPU; None where none would.

    Raises:
        ValueError: no op of this catalogue runs on that device.
    """
    if on_device(tensor):
        return Problem(DeviceKind.CUDA)
    if tensor.device.type == "cpu":
        return Problem(DeviceKind.CPU, None if source is None else body_for(source))
    known = ", ".join(kind.value for kind in DeviceKind)
    raise ValueError(f"no op runs on a {tensor.device.type} tensor; move it to one of: {known}")
