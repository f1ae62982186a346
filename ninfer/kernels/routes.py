"""The ways in which an op can be computed, and the machines that decide between them."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class Route(enum.Enum):
    """One implementation of an op. Every route is held to the same oracle and the same exactness."""

    CPU_TORCH = "cpu_torch"
    CPU_ONEDNN = "cpu_onednn"


class DeviceKind(enum.Enum):
    """The kind of machine that holds an op's tensors."""

    CPU = "cpu"


class Problem(NamedTuple):
    """What a plan looks at when nothing but the device decides. A tuple, because it is built once per call."""

    device: DeviceKind


def device_kind(tensor: torch.Tensor) -> DeviceKind:
    """The kind of device that holds `tensor`.

    Raises:
        ValueError: no op of this catalogue runs on that device.
    """
    try:
        return DeviceKind(tensor.device.type)
    except ValueError:
        known = ", ".join(kind.value for kind in DeviceKind)
        raise ValueError(f"no op runs on a {tensor.device.type} tensor; move it to one of: {known}") from None
