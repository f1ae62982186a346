"""What every device shares: workspaces, recordings, the catalogue, and that a CPU needs none of it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from ninfer.errors import CudaError
from ninfer.kernels import jit
from ninfer.kernels.jit import CudaSource, DeviceFacts, Launch, catalogue, device, on_device, record, using, workspace
from ninfer.kernels.jit.recording import RecordingDevice


class _Args(ctypes.Structure):
    _fields_ = (("value", ctypes.c_int),)


SOURCE = CudaSource(Path("none.cu"), {"add": _Args})
ONE = Launch(grid=(1, 1, 1), block=(32, 1, 1))


class Adder(RecordingDevice):
    """A device whose only kernel adds its argument to a tensor that it was told to keep."""

    def __init__(self) -> None:
        self.facts = DeviceFacts(arch=80, multiprocessors=1, shared_bytes=1024)
        self.prepared: list[tuple[CudaSource, Mapping[str, int]]] = []

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu"

    def prepare(self, source: CudaSource, macros: Mapping[str, int]) -> None:
        self.prepared.append((source, macros))

    def run_launch(
        self, source: CudaSource, kernel: str, how: Launch, args: ctypes.Structure, keep: tuple[object, ...]
    ) -> None:
        assert isinstance(args, _Args)
        assert isinstance(keep[0], torch.Tensor)
        keep[0].add_(args.value)


def test_a_recording_runs_its_launches_again_with_the_arguments_of_the_time() -> None:
    total, args = torch.zeros(1), _Args(2)

    def work() -> None:
        SOURCE.launch("add", ONE, args, total)

    with using(Adder()):
        again = record(work)
        assert total.item() == 2  # once for real; what was recorded did not run
        args.value = 100
        again.run()
        again.run()
    assert total.item() == 6


def test_a_recording_that_fails_leaves_the_device_as_it_was() -> None:
    total, calls = torch.zeros(1), 0

    def work() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise CudaError("no")

    with using(Adder()):
        with pytest.raises(CudaError, match="no"):
            record(work)
        assert not device().recording
        SOURCE.launch("add", ONE, _Args(1), total)
    assert total.item() == 1


def test_an_empty_grid_runs_nothing() -> None:
    total = torch.zeros(1)
    with using(Adder()):
        SOURCE.launch("add", Launch(grid=(0, 1, 1), block=(32, 1, 1)), _Args(1), total)
    assert total.item() == 0


def test_a_workspace_keeps_its_address_until_it_has_to_grow() -> None:
    like = torch.zeros(1)
    with using(Adder()):
        first = workspace("scan", 1000, like=like)
        assert (first.dtype, first.shape) == (torch.uint8, (1000,))
        assert workspace("scan", 10, like=like).data_ptr() == first.data_ptr()
        assert workspace("scan", 1000, like=like).data_ptr() == first.data_ptr()
        assert workspace("sort", 1000, like=like).data_ptr() != first.data_ptr()
        grown = workspace("scan", 5000, like=like)
        assert workspace("scan", 1000, like=like).data_ptr() == grown.data_ptr() != first.data_ptr()


def test_a_workspace_does_not_grow_in_a_recording() -> None:
    like, sizes = torch.zeros(1), iter((1000, 2000))
    with using(Adder()), pytest.raises(CudaError, match="run the same work once before"):
        record(lambda: workspace("scan", next(sizes), like=like))


def test_each_device_in_use_has_its_own_workspaces() -> None:
    like = torch.zeros(1)
    with using(Adder()):
        outer = workspace("scan", 1000, like=like)
        with using(Adder()):
            assert workspace("scan", 1000, like=like).data_ptr() != outer.data_ptr()
        assert workspace("scan", 1000, like=like).data_ptr() == outer.data_ptr()


def test_only_the_device_in_use_holds_cpu_tensors() -> None:
    assert not on_device(torch.zeros(1))
    with using(Adder()):
        assert on_device(torch.zeros(1))
    assert not on_device(torch.zeros(1))


def test_warming_up_prepares_the_whole_catalogue() -> None:
    chosen, told = Adder(), []
    with using(chosen):
        jit.warm(lambda done, total: told.append((done, total)))
    count = len(catalogue.warm())
    assert count
    assert told == [(done, count) for done in range(1, count + 1)]
    named = {(source.path, frozenset(macros.items())) for source, macros in chosen.prepared}
    assert len(named) == len(chosen.prepared) == count


def test_a_cpu_needs_no_cupy() -> None:
    """With CuPy and the CUDA wheels out of reach, ninfer is imported, computes, and says what is missing."""
    script = """
import sys
for name in ("cupy", "cupy_backends", "nvidia"):
    sys.modules[name] = None
import torch
import ninfer
from ninfer.errors import CudaError
from ninfer.kernels.jit import device
from ninfer.kernels.rmsnorm import rmsnorm

x = torch.ones(1, 4)
rmsnorm(x, torch.ones(4), 1e-6, 0.0, x.clone())
try:
    device()
except CudaError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert done.stdout.startswith("CUDA cannot be used here: ")
