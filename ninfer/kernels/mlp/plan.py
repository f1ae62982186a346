"""Which routes serve the gated feed-forward products, best first."""

from __future__ import annotations

from ninfer.kernels.routes import DeviceKind, Problem, Route

_ROUTES = {Problem(DeviceKind.CPU): (Route.CPU_TORCH,)}


def plan(problem: Problem) -> tuple[Route, ...]:
    """The routes for `problem`, best first."""
    return _ROUTES[problem]
