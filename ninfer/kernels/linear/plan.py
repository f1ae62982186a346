"""Which routes serve a linear, best first. Looked at once, when its weight is prepared."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ninfer.kernels.routes import COMPILED_OR_TORCH, DeviceKind, Route
from ninfer.kernels.routes import Problem as Machine


class Problem(NamedTuple):
    """What decides about one weight.

    Attributes:
        body: the best body of the C++ source that would serve it; None where that cannot be compiled.
        onednn: whether torch was built with oneDNN.
        a8: whether its Uses permit 8-bit activations and all its formats have a kernel for them.
    """

    device: DeviceKind
    body: Route | None
    onednn: bool
    a8: bool


class Plan(NamedTuple):
    """A route, and whether it quantises the activations to 8 bits."""

    route: Route
    a8: bool = False

    @property
    def dense(self) -> bool:
        """Whether the route multiplies by decoded fp32 values instead of stored planes."""
        return self.route in _DENSE


_DENSE = (Route.CPU_ONEDNN, Route.CPU_TORCH)


def _plans(machine: Machine, onednn: bool, a8: bool) -> tuple[Plan, ...]:
    if machine.device is DeviceKind.CUDA:
        return (Plan(Route.CUDA),)
    compiled = (Plan(route, a8) for route in COMPILED_OR_TORCH[machine] if route not in _DENSE)
    return (*compiled, *(Plan(route) for route in _DENSE if onednn or route is not Route.CPU_ONEDNN))


_PLANS: Mapping[Problem, tuple[Plan, ...]] = MappingProxyType(
    {
        Problem(machine.device, machine.body, onednn, a8): _plans(machine, onednn, a8)
        for machine in COMPILED_OR_TORCH
        for onednn in (True, False)
        for a8 in (True, False)
    }
)


def plan(problem: Problem) -> tuple[Plan, ...]:
    """The routes for `problem`, best first."""
    return _PLANS[problem]
