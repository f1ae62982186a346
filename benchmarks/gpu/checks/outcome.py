"""What is checked, how much of it, and what comes of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from ops import Geometry

from ninfer.artifact.formats import Format
from ninfer.kernels import tolerances as within
from ninfer.kernels.placement import Cuda
from ninfer.kernels.tolerances import Tolerance


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a device's result is against its oracle: `worst` is the greatest error over what is allowed, at most 1."""

    op: str
    shape: str
    worst: float

    @property
    def passed(self) -> bool:
        return self.worst <= 1.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of a geometry is checked.

    Attributes:
        rows: of weights, about.
        tokens: that weights are multiplied with.
        prompt: tokens of a prompt for everything else.
        depth: keys before a decode step.
    """

    geometry: Geometry
    placement: Cuda
    rows: int
    tokens: tuple[int, ...]
    prompt: int
    depth: int


def outcome(op: str, shape: str, got: torch.Tensor, wanted: np.ndarray[Any, Any], tolerance: Tolerance) -> Outcome:
    values, expected = got.cpu().double().numpy(), np.asarray(wanted, np.float64)
    if tolerance == within.EXACT:
        return Outcome(op, shape, 0.0 if np.array_equal(values, expected) else np.inf)
    magnitude = np.abs(expected)
    bound = tolerance.absolute + tolerance.relative * magnitude + tolerance.of_peak * magnitude.max(initial=0.0)
    worst = (np.abs(values - expected) / bound).max(initial=0.0)
    return Outcome(op, shape, float(np.nan_to_num(worst, nan=np.inf)))


def as_numpy(x: torch.Tensor) -> np.ndarray[Any, Any]:
    return x.cpu().numpy()


def rounded(x: torch.Tensor, fmt: Format) -> np.ndarray[Any, Any]:
    """Activations as the kernels of this format take them."""
    return as_numpy(x if fmt is Format.FP32 else x.bfloat16().float())
