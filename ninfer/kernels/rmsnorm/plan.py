"""Which routes serve an RMSNorm, best first."""

from __future__ import annotations

from ninfer.kernels.routes import DeviceKind, Problem, Route

_ROUTES = {Problem(DeviceKind.CPU): (Route.CPU_TORCH,)}


def plan(problem: Problem) -> tuple[Route, ...]:
    """The routes for `problem`, best first."""
    return _ROUTES[problem]
