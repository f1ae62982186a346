"""A device whose memory only seems to be the host's: whoever confuses the two is found without a GPU.

What is made with an explicit `device=`, moved by `to`, or computed from either counts as device memory. Kernels may be
given nothing else, torch may not mix the two but in a copy, and the host may not look into it but through `tolist` and
the like, which wait. The CPU's own kernels may not run at all.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

from ninfer.kernels.jit import CudaSource, Launch, using
from ninfer.kernels.native import Kernel
from tests.e2e.emulated import Unwarmed
from tests.kernels.emulator import memory

_READS = ("numpy",)
_CROSSES = ("copy_",)


class Wall(TorchFunctionMode):
    """Knows which memory is the device's. As a mode it watches torch in its thread."""

    def __init__(self) -> None:
        super().__init__()
        self._device: dict[int, torch.UntypedStorage] = {}

    def holds(self, tensor: torch.Tensor) -> bool:
        with torch._C.DisableTorchFunction():
            return tensor.numel() == 0 or tensor.untyped_storage().data_ptr() in self._device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        given = [t for t in memory.tensors([args, named]) if t.numel()]
        there = [self.holds(t) for t in given]
        name = func.__name__
        assert not (any(there) and name in _READS), f"the host looks into the device's memory by {name}"
        assert all(there) or not any(there) or name in _CROSSES, f"torch mixes memories in {name}"
        made = func(*args, **named)
        moved = name == "to" and any(isinstance(argument, torch.device) for argument in args)
        if moved and not any(there):
            with torch._C.DisableTorchFunction():
                made = made.clone()
        if named.get("device") is not None or any(there) or moved:
            self._note(made, given)
        return made

    def _note(self, made: object, given: list[torch.Tensor]) -> None:
        with torch._C.DisableTorchFunction():
            known = {t.untyped_storage().data_ptr() for t in given}
            for tensor in memory.tensors(made):
                storage = tensor.untyped_storage()
                if tensor.numel() and storage.data_ptr() not in known:
                    self._device[storage.data_ptr()] = storage


class Walled(Unwarmed):
    """The emulated device behind a wall; what a launch keeps must lie behind it."""

    def __init__(self, wall: Wall, mode: Any) -> None:
        super().__init__(mode)
        self._wall = wall

    def holds(self, tensor: torch.Tensor) -> bool:
        return self._wall.holds(tensor)

    def run_launch(
        self, source: CudaSource, kernel: str, how: Launch, args: ctypes.Structure, keep: tuple[object, ...]
    ) -> None:
        foreign = [t.shape for t in memory.tensors(keep) if not self._wall.holds(t)]
        assert not foreign, f"{kernel} is given host memory: {foreign}"
        super().run_launch(source, kernel, how, args, keep)


@contextmanager
def walled(mode: str = "fast") -> Iterator[None]:
    """Run this thread's kernels on such a device."""

    def refuse(*arguments: object) -> None:
        raise AssertionError("a kernel of the CPU runs")

    wall = Wall()
    with wall, using(Walled(wall, mode)), patch.object(Kernel, "launch", refuse):
        yield
