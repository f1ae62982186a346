"""Which routes serve a linear, best first. Looked at once, when its weight is prepared."""

from __future__ import annotations

from typing import NamedTuple

from ninfer.kernels.routes import DeviceKind, Route


class Problem(NamedTuple):
    """The device that computes, and whether its torch was built with oneDNN."""

    device: DeviceKind
    onednn: bool


_ROUTES = {
    Problem(DeviceKind.CPU, onednn=True): (Route.CPU_ONEDNN, Route.CPU_TORCH),
    Problem(DeviceKind.CPU, onednn=False): (Route.CPU_TORCH,),
}


def plan(problem: Problem) -> tuple[Route, ...]:
    """The routes for `problem`, best first."""
    return _ROUTES[problem]
