"""The emulated device: sound kernels run in every mode and order, and planted mistakes are found and named."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ninfer.errors import CudaError
from ninfer.kernels.jit import CudaSource, Launch, record, using
from tests.kernels.emulator import Emulator, EmulatorError, guarded, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "nothing is missing")

_FOLDER = Path(__file__).with_name("emulator")
_MODES: tuple[dict[str, Any], ...] = (
    {"mode": "check"},
    {"mode": "check", "cp_async": "eager", "order": "sticky"},
    *({"order": order} for order in ("fifo", "lifo", "random", "sticky")),
    {"order": "lifo", "cp_async": "eager"},
    {"order": "sticky", "cp_async": "eager", "seed": 5},
)


class _Args(ctypes.Structure):
    _fields_ = (("x", ctypes.c_void_p), ("out", ctypes.c_void_p), ("counter", ctypes.c_void_p), ("n", ctypes.c_int64))


class _Call:
    """One launch of a source here: x, out and counter, and the shapes."""

    def __init__(self, source: str, x: torch.Tensor, outputs: int = 64, blocks: Sequence[int] = (1, 1, 1)) -> None:
        self.source = CudaSource(_FOLDER / source, {"planted": _Args})
        self.x, self.n = x, x.numel()
        self.out, self.counter = torch.full((outputs,), -1.0), torch.zeros(4, dtype=torch.int32)
        self.grid, self.block, self.shared = tuple(blocks), (64, 1, 1), 0

    def __call__(self, device: Emulator | None = None) -> torch.Tensor:
        how = Launch(self.grid, self.block, self.shared)  # type: ignore[arg-type]
        args = _Args(self.x.data_ptr(), self.out.data_ptr(), self.counter.data_ptr(), self.n)
        with using(device or Emulator(mode="check")):
            self.source.launch("planted", how, args, {"x": self.x}, (self.out, [self.counter]))
        return self.out


def _gemm(source: str) -> tuple[_Call, torch.Tensor]:
    rows = torch.randn(40, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    call = _Call(source, rows.view(torch.float32), outputs=256)
    call.n, call.shared = 128, 2 * 40 * 16 * 2
    return call, (rows[:32].double() @ rows[32:].double().T).float().flatten()


@pytest.mark.parametrize("mode", _MODES, ids=str)
class TestSound:
    def test_block_sum(self, mode: dict[str, Any]) -> None:
        call = _Call("sound/block_sum.cu", torch.arange(300.0), outputs=3, blocks=(3, 1, 1))
        call.n = 100
        assert call(Emulator(**mode)).tolist() == [4950.0, 14950.0, 24950.0]

    def test_two_stage_gemm(self, mode: dict[str, Any]) -> None:
        call, wanted = _gemm("sound/gemm.cu")
        torch.testing.assert_close(call(Emulator(**mode)), wanted, rtol=1e-4, atol=1e-4)

    def test_last_block_merges(self, mode: dict[str, Any]) -> None:
        call = _Call("sound/merge.cu", torch.arange(20.0), outputs=21, blocks=(20, 1, 1))
        for _ in range(2):  # the counter is ready for the next launch
            assert call(Emulator(**mode)).tolist() == [190.0, *range(20)]

    def test_warps_alone(self, mode: dict[str, Any]) -> None:
        x = torch.arange(64.0)
        assert torch.equal(_Call("sound/warps_alone.cu", x)(Emulator(**mode)), x.view(32, 2).flip(1).flatten())

    def test_half_warps(self, mode: dict[str, Any]) -> None:
        x = torch.arange(64.0)
        assert torch.equal(_Call("sound/half_warps.cu", x)(Emulator(**mode)), x.view(16, 2, 2).flip(1).flatten())

    def test_atomics(self, mode: dict[str, Any]) -> None:
        x = torch.rand(400, generator=torch.Generator().manual_seed(2))
        call = _Call("sound/counts.cu", x, blocks=(4, 1, 1))
        call.n = 100
        call(Emulator(**mode))
        assert call.counter.tolist() == torch.bincount((x * 4).long(), minlength=4).tolist()

    def test_three_dimensions(self, mode: dict[str, Any]) -> None:
        call = _Call("sound/shapes.cu", torch.zeros(1), outputs=12 * 24, blocks=(2, 3, 2))
        call.block = (4, 3, 2)
        assert call(Emulator(**mode)).tolist() == [b * 1000 + t + 12 for b in range(12) for t in range(24)]


_PLANTED = {
    "no_barrier": r"race: reads 4 bytes at byte \d of static.*thread \(32, 0, 0\) wrote.*no_barrier.cu:6; thread \(0, 0, 0\)"
    r".*at no_barrier.cu:7|uninitialised.*no_barrier.cu:7",
    "no_barrier_before_reuse": r"race: writes 4 bytes.*read.*at no_barrier_before_reuse.cu:\d",
    "no_syncwarp": "race: reads 4 bytes.*no_syncwarp.cu:8|uninitialised.*no_syncwarp.cu:8",
    "divergent_barrier": r"divergent barrier: .*32 threads wait at __syncthreads in divergent_barrier.cu:5",
    "exited_thread": "divergent barrier: .*exited",
    "half_warp": r"deadlock: 16 threads \(first 0\) wait at .* in half_warp.cu:5",
    "mask_lacks_source": "takes the value of lane 16, which is not in its mask.*mask_lacks_source.cu:5",
    "mask_lacks_caller": "mask 0x0000ffff lacks the lane that calls.*mask_lacks_caller.cu:3",
    "two_places": "different places.*two_places.cu:6.*at two_places.cu:8",
    "deadlock": r"deadlock: .*__syncthreads in deadlock.cu:4; 31 threads \(first 1\) wait at __syncwarp in deadlock.cu:5",
    "reads_past_end": r"out of bounds: reads 4 bytes at byte 256 of a tensor of 256 bytes; thread \(63, 0, 0\)",
    "reads_before_begin": r"out of bounds: reads 4 bytes at byte -4 of a tensor of 256 bytes; thread \(0, 0, 0\)",
    "writes_past_end": r"out of bounds: writes 4 bytes at byte 256 .* at writes_past_end.cu:3",
    "copies_past_end": "out of bounds: reads 16 bytes.*copies_past_end.cu:5",
    "shared_past_end": r"out of bounds: writes 4 bytes at byte 256 of 256 bytes of dynamic.*shared_past_end.cu:5",
    "static_past_end": "an index outside its array.*static_past_end.cu:7",
    "uninitialised": r"uninitialised: reads 4 bytes at byte 252 of 256 .*thread \(63, 0, 0\).*uninitialised.cu:7",
    "no_wait": "cp.async: reads 16 bytes.*where a copy has not been waited for in .*gemm.cuh:15",
    "no_trailing_barrier": "race: copies 16 bytes.*read.*gemm.cuh:15",
    "blocks_write_one_place": "race: writes 4 bytes.*which another block wrote.*blocks_write_one_place.cu:4",
    "blocks_read_partials": "race: reads 4 bytes.*which another block wrote.*blocks_read_partials.cu:5",
    "no_fence": "race: reads 4 bytes.*which another block wrote.*merge.cuh:11",
    "endless_loop": "time limit.*endless_loop.cu:5",
    "waits_for_a_block": "time limit.*waits_for_a_block.cu:4",
    "misaligned": "not aligned.*misaligned.cu:3",
    "local_of_another": "another thread's local memory: reads 4 bytes.*local_of_another.cu:8",
    "stack_exhausted": "local memory exhausted.*stack_exhausted.cu:5",
    "shared_in_template": "out of bounds: writes.*shared_in_template.cu:10",
}


def _planted(name: str) -> _Call:
    if name in ("no_wait", "no_trailing_barrier"):
        return _gemm(f"planted/{name}.cu")[0]
    call = _Call(f"planted/{name}.cu", torch.arange(64.0), outputs=64)
    call.shared = 64 * 4 * (4 if name == "copies_past_end" else 1)
    call.n = 63 if name == "exited_thread" else 64
    if "block" in name or name == "no_fence":
        call.grid = (3, 1, 1)
    return call


@pytest.mark.parametrize("cp_async", ["late", "eager"])
@pytest.mark.parametrize("name", _PLANTED)
def test_check_mode_finds(name: str, cp_async: Any) -> None:
    with pytest.raises(EmulatorError, match=f"planted: .*(?:{_PLANTED[name]})"):
        _planted(name)(Emulator(mode="check", cp_async=cp_async, seconds=0.3))


def test_every_planted_source_is_tried() -> None:
    assert {path.stem for path in (_FOLDER / "planted").glob("*.cu")} == set(_PLANTED)
