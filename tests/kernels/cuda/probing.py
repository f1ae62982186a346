"""Kernels that try one function of include/*.cuh each, and the ways to run them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from ninfer.errors import CudaError
from ninfer.kernels.jit import CudaSource, Launch, using
from ninfer.kernels.jit.build import Compiler, build, compiler
from tests.kernels.emulator import Emulator

DEVICES: Mapping[str, Emulator] = {
    "check-late": Emulator("check"),
    "check-eager": Emulator("check", order="lifo", cp_async="eager"),
    "random": Emulator(order="random", seed=1),
    "sticky-eager": Emulator(order="sticky", cp_async="eager", seed=2),
}


def nvrtc_or_skip() -> Compiler:
    """The compiler; where it is not installed the test, or the module that is being imported, is skipped."""
    try:
        return compiler()
    except CudaError as error:
        pytest.skip(f"nothing to compile with: {error}", allow_module_level=True)


def probe(name: str, kernels: str, args: type[ctypes.Structure]) -> CudaSource:
    """The source `probe_<name>.cu`, whose kernels `probe_<kernel>` all take `args`."""
    source = Path(__file__).with_name(f"probe_{name}.cu")
    return CudaSource(source, {f"probe_{kernel}": args for kernel in kernels.split()})


def pointers(*names: str, count: bool = False) -> type[ctypes.Structure]:
    """An Args of pointers, and an int64 behind them if `count`."""
    fields = [(name, ctypes.c_void_p) for name in names]
    return type("Args", (ctypes.Structure,), {"_fields_": [*fields, ("count", ctypes.c_int64)] if count else fields})


def run(
    device: Emulator,
    source: CudaSource,
    kernel: str,
    how: Launch,
    *keep: object,
    numbers: tuple[int, ...] = (),
) -> None:
    """Launch `probe_<kernel>`. If the first of `keep` is no Args, it gets the addresses of `keep`, then `numbers`."""
    args, *owners = keep
    if isinstance(args, torch.Tensor):
        owners = [args, *owners]
        addresses = (owner.data_ptr() for owner in owners if isinstance(owner, torch.Tensor))
        args = source.kernels[f"probe_{kernel}"](*addresses, *numbers)
    assert isinstance(args, ctypes.Structure)
    with using(device):
        source.launch(f"probe_{kernel}", how, args, *owners)


def require_compiles(source: CudaSource, target: str, macros: Mapping[str, int] | None = None) -> None:
    """Fail unless NVRTC takes the source for `target` without registers spilled; skip where there is no NVRTC."""
    made = build(source, macros or {}, target, nvrtc_or_skip())
    assert set(made.resources) == set(source.kernels)
    assert [name for name, need in made.resources.items() if need.spill_bytes or need.stack_bytes] == []
