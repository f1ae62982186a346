"""The emulated device: sound kernels run in every mode and order, and planted mistakes are found and named."""

from __future__ import annotations

import ctypes
import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ninfer.errors import CudaError
from ninfer.kernels.jit import CudaSource, Launch, record, using
from tests.kernels.emulator import NEEDS_EMULATOR, Emulator, EmulatorError, guarded
from tests.kernels.emulator.memory import ranges

pytestmark = NEEDS_EMULATOR

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
    "no_barrier": r"race: reads 4 bytes at byte \d of static .* thread \(32, 0, 0\) wrote at no_barrier.cu:6"
    r"|uninitialised: .* at no_barrier.cu:7",
    "no_barrier_before_reuse": r"race: writes 4 bytes .* read at no_barrier_before_reuse.cu:\d+, .* at .*_reuse.cu:9",
    "no_syncwarp": r"(race|uninitialised): reads 4 bytes .* at no_syncwarp.cu:8",
    "no_syncwarp_before_copy": r"race: reads 4 bytes .* wrote at .* from no_syncwarp_before_copy.cu:8, .*copy.cu:12",
    "divergent_barrier": r"divergent barrier: .* at divergent_barrier.cu:\d; 32 threads, .* at divergent_barrier.cu:\d",
    "exited_thread": "divergent barrier: this thread exits; .*; 63 threads, the first 0, wait .* at exited_thread.cu:5",
    "half_warp": "deadlock; .* 32 threads, the first 0, .* lanes 0xffffffff at warp.cuh:.* from half_warp.cu:5",
    "mask_lacks_source": r"takes the value of lane \d+, which is not in its mask; .* at mask_lacks_source.cu:5",
    "mask_lacks_caller": "mask 0x0000ffff lacks the lane that calls; .* at mask_lacks_caller.cu:3",
    "two_places": r"different places.* at two_places.cu:\d; \d+ threads, the first \d+, wait .* at two_places.cu:\d",
    "deadlock": "deadlock; .*; 1 threads, the first 0, wait in __syncthreads at deadlock.cu:4; "
    "31 threads, the first 1, wait in __syncwarp for lanes 0xffffffff at deadlock.cu:5",
    "reads_past_end": r"out of bounds: reads 4 bytes at byte 256 of a tensor of 256 bytes; thread \(63, 0, 0\)",
    "reads_before_begin": r"out of bounds: reads 4 bytes at byte -4 of a tensor of 256 bytes; thread \(0, 0, 0\)",
    "writes_past_end": "out of bounds: writes 4 bytes at byte 256 .* at writes_past_end.cu:3",
    "copies_past_end": "out of bounds: reads 16 bytes at byte 256 .* at memory.cuh:.* from copies_past_end.cu:5",
    "shared_past_end": "out of bounds: writes 4 bytes at byte 256 of 256 bytes of dynamic .* at shared_past_end.cu:5",
    "static_past_end": "an index outside its array.* at static_past_end.cu:7",
    "uninitialised": r"uninitialised: reads 4 bytes at byte 252 of 256 .* thread \(63, 0, 0\) .* at uninitialised.cu:7",
    "no_wait": "cp.async: reads .* where a copy at .* from gemm.cuh:13 has not been waited for; .* from gemm.cuh:20",
    "no_trailing_barrier": "race: copies 16 bytes .* read at memory.cuh:.* from gemm.cuh:20, .* from gemm.cuh:13",
    "blocks_write_one_place": "race: writes 4 bytes .* which another block wrote at .* at blocks_write_one_place.cu:4",
    "blocks_read_partials": r"race: reads 4 bytes .* which another block wrote .* at blocks_read_partials.cu:6",
    "no_fence": r"race: reads 4 bytes .* which another block wrote at merge.cuh:\d+, .* at merge.cuh:18",
    "endless_loop": "time limit.* at endless_loop.cu:5",
    "waits_for_a_block": "time limit.* at waits_for_a_block.cu:4",
    "misaligned": "not aligned.* at memory.cuh:.* from misaligned.cu:3",
    "local_of_another": "another thread's local memory: reads 4 bytes .* at local_of_another.cu:8",
    "stack_exhausted": "local memory exhausted: .* at stack_exhausted.cu:3",
    "shared_in_template": "out of bounds: writes 4 bytes .* at shared_in_template.cu:10",
}
"""Each source in planted/, and what check mode says about it."""


def _planted(name: str) -> _Call:
    if name in ("no_wait", "no_trailing_barrier"):
        return _gemm(f"planted/{name}.cu")[0]
    call = _Call(f"planted/{name}.cu", torch.arange(64.0), outputs=64)
    call.shared = 64 * 4 * (4 if "cop" in name else 1)
    call.n = 63 if name == "exited_thread" else 64
    if name == "deadlock":
        call.block = (32, 1, 1)
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


_FAST = {
    "divergent_barrier": r"divergent barrier: .*; \d+ threads, the first \d+, wait in __syncthreads",
    "exited_thread": r"divergent barrier: .* exit",
    "half_warp": "deadlock; .* from half_warp.cu:5|names lane .*, which has exited; .* from half_warp.cu:5",
    "reads_past_end": "memory out of bounds: no such address.* at reads_past_end.cu:3",
    "writes_past_end": "memory out of bounds: no such address.* at writes_past_end.cu:3",
    "shared_past_end": r"shared memory out of bounds: byte \d+ of 256 .* at shared_past_end.cu:5",
    **{name: _PLANTED[name] for name in ("mask_lacks_source", "mask_lacks_caller", "two_places", "deadlock")},
    **{name: _PLANTED[name] for name in ("endless_loop", "waits_for_a_block", "stack_exhausted")},
}


@pytest.mark.parametrize("order", ["fifo", "lifo", "random", "sticky"])
@pytest.mark.parametrize("name", _FAST)
def test_fast_mode_finds(name: str, order: Any) -> None:
    call = _planted(name)
    call.x, call.out = guarded(call.x), guarded(call.out)
    with pytest.raises(EmulatorError, match=f"planted: .*(?:{_FAST[name]})"):
        call(Emulator(order=order, seconds=0.2))


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("no_wait", {"cp_async": "late"}),
        ("no_trailing_barrier", {"cp_async": "eager", "order": "sticky"}),
        ("no_barrier", {"order": "fifo"}),
        ("no_barrier", {"order": "random"}),
        ("no_barrier_before_reuse", {"order": "sticky"}),
        ("uninitialised", {}),
    ],
)
def test_fast_mode_gives_wrong_results(name: str, mode: Any) -> None:
    wanted = {"no_barrier": torch.tensor(2016.0), "no_barrier_before_reuse": torch.full((64,), 6048.0)}
    wanted["uninitialised"] = torch.arange(64.0)
    for seed in range(4):
        out = _planted(name)(Emulator(**mode, seed=seed))
        right = _gemm(f"planted/{name}.cu")[1] if name in ("no_wait", "no_trailing_barrier") else wanted[name]
        if not torch.allclose(out[0] if name == "no_barrier" else out, right, rtol=1e-3, atol=1e-3):
            return
    pytest.fail(f"{name} came out right in spite of {mode}")


class TestOrders:
    """When threads and blocks run."""

    def _order(self, **mode: Any) -> list[float]:
        return _Call("sound/order.cu", torch.zeros(1), outputs=192, blocks=(3, 1, 1))(Emulator(**mode)).tolist()

    def test_fifo_and_lifo_are_opposite(self) -> None:
        assert self._order(order="fifo") == list(range(192))
        assert self._order(order="lifo") == list(range(191, -1, -1))

    @pytest.mark.parametrize("order", ["random", "sticky"])
    def test_a_seed_gives_the_same_order_again(self, order: str) -> None:
        first, again, other = (self._order(order=order, seed=seed) for seed in (1, 1, 2))
        assert first == again
        assert first != other
        assert sorted(first) == list(range(192))

    def test_sticky_stays_with_a_warp(self) -> None:
        threads = torch.tensor(self._order(order="sticky", seed=3)).view(6, 32)
        assert all(len(set((run / 32).int().tolist())) == 1 for run in threads)


class TestLaunch:
    """What is wrong about a launch rather than a kernel."""

    def test_wrong_size_of_args(self) -> None:
        class Shorter(ctypes.Structure):
            _fields_ = _Args._fields_[:3]

        source = CudaSource(_FOLDER / "sound/warps_alone.cu", {"planted": Shorter})
        with using(Emulator()), pytest.raises(CudaError, match="the arguments of planted differ from the host's"):
            source.launch("planted", Launch((1, 1, 1), (64, 1, 1)), Shorter())

    def test_compile_error(self) -> None:
        with pytest.raises(CudaError, match=r"does_not_compile.cu:3.*an_unknown_name.*not declared"):
            _Call("uncompilable/does_not_compile.cu", torch.zeros(1))()

    def test_too_many_threads(self) -> None:
        call = _Call("sound/warps_alone.cu", torch.zeros(128), outputs=128)
        call.block = (128, 1, 1)
        with pytest.raises(EmulatorError, match=r"planted: .* takes up to 64 threads"):
            call()

    def test_too_much_shared_memory(self) -> None:
        call = _Call("sound/warps_alone.cu", torch.zeros(64))
        call.shared = 100 * 1024 - 255  # the kernel has 256 bytes of static shared memory
        with pytest.raises(EmulatorError, match=r"planted: .* the device has 102400"):
            call()

    def test_a_grid_that_no_gpu_takes(self) -> None:
        with pytest.raises(EmulatorError, match="the largest are"):
            _Call("sound/warps_alone.cu", torch.zeros(64), blocks=(1, 65536, 1))()

    def test_memory_that_the_launch_does_not_keep(self) -> None:
        call = _Call("sound/warps_alone.cu", torch.arange(64.0))
        args = _Args(call.x.data_ptr(), call.out.data_ptr())
        with using(Emulator(mode="check")), pytest.raises(EmulatorError, match="out of bounds: writes 4 bytes"):
            call.source.launch("planted", Launch((1, 1, 1), (64, 1, 1)), args, call.x)

    def test_a_view_ends_where_it_ends(self) -> None:
        call = _Call("sound/warps_alone.cu", torch.arange(64.0))
        call.out = torch.zeros(64)[:63]
        with pytest.raises(EmulatorError, match="writes 4 bytes at byte 252 of a tensor of 252 bytes"):
            call()

    def test_goes_on_after_a_fault(self) -> None:
        for _ in range(3):
            with pytest.raises(EmulatorError):
                _planted("half_warp")()
            assert _Call("sound/warps_alone.cu", torch.ones(64))().tolist() == [1.0] * 64

    def test_recorded_launches_run_later(self) -> None:
        call = _Call("sound/merge.cu", torch.arange(20.0), outputs=21, blocks=(20, 1, 1))
        args = _Args(call.x.data_ptr(), call.out.data_ptr(), call.counter.data_ptr(), 20)
        how = Launch((20, 1, 1), (64, 1, 1))
        with using(Emulator(mode="check")):
            tape = record(lambda: call.source.launch("planted", how, args, call.x, call.out, call.counter))
            call.x += 1
            tape.run()
        assert call.out[0].item() == 210


def test_other_processors_switch_by_ucontext() -> None:
    test = f"{Path(__file__)}::test_check_mode_finds[deadlock-late]"
    code = f"""
import pytest
from tests.kernels.emulator import recipes
recipes._FLAGS += ("-DEMULATOR_UCONTEXT",)
raise SystemExit(pytest.main(["-q", "-p", "no:cacheprovider", {test!r}, {test.replace("deadlock", "no_wait")!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@dataclasses.dataclass(slots=True)
class _Holder:
    tensor: torch.Tensor
    others: tuple[object, ...] = ()


class _Plain:
    __slots__ = ("held",)

    def __init__(self, held: object) -> None:
        self.held = held


def test_ranges_of_everything_that_is_held() -> None:
    a, b, c, d = (torch.zeros(size) for size in (8, 16, 4, 2))
    found = ranges(({"a": a[2:4]}, _Holder(b, (None, 3, "text")), _Plain([c]), a[3:], torch.zeros(0), d[::2]))
    begin = a.data_ptr()
    assert sorted(found) == found
    assert (begin + 8, begin + 32) in found
    assert {end - start for start, end in found} == {24, 64, 16, 4}
