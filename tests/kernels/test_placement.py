"""Where memory comes from, and how bytes get there; a CUDA placement is tried on the host's memory."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ninfer.errors import ConfigError, CudaError
from ninfer.kernels import jit, placement
from ninfer.kernels.arena import Arena
from ninfer.kernels.jit import using
from ninfer.kernels.placement import HOST, Cuda, Host, Placement, choose
from ninfer.kernels.routes import DeviceKind
from tests.kernels.emulator import Emulator

EMULATED = Cuda.at(torch.device("cpu"))
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


@dataclass
class Stored:
    """Bytes in a file, which notes what is read of it."""

    data: NDArray[np.uint8]
    read: list[tuple[int, int]] = field(default_factory=list)

    @property
    def size(self) -> int:
        return self.data.size

    def whole(self) -> NDArray[np.uint8]:
        return self.data

    def part(self, begin: int, end: int) -> NDArray[np.uint8]:
        self.read.append((begin, end))
        return self.data[begin:end]


def stored(size: int) -> Stored:
    return Stored(np.random.default_rng(size).integers(0, 256, size, np.uint8))


def test_a_host_uses_stored_bytes_where_they_are() -> None:
    one = stored(1000)
    with HOST.uploading() as bring:
        brought = bring(one)
    assert brought.data_ptr() == one.data.ctypes.data
    assert one.read == []


def test_a_device_gets_stored_bytes_by_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never more than one buffer's worth at a time, and several objects one after another."""
    monkeypatch.setattr(placement, "STAGE_BYTES", 300)
    objects = [stored(size) for size in (1000, 1, 300, 301)]
    with EMULATED.uploading() as bring:
        brought = [bring(one) for one in objects]
    for one, there in zip(objects, brought, strict=True):
        assert there.numpy().tolist() == one.data.tolist()
        assert not np.shares_memory(there.numpy(), one.data)
        assert [begin for begin, _ in one.read] == list(range(0, one.size, 300))
        assert all(end - begin <= 300 for begin, end in one.read)


@pytest.mark.parametrize("where", [HOST, EMULATED], ids=["host", "device"])
def test_what_is_asked_for_comes(where: Placement) -> None:
    assert where.zeros(2, 3).tolist() == [[0.0] * 3] * 2
    assert where.empty(4, dtype=torch.int64).shape == (4,)
    assert where.pinned(3, 5).shape == (3, 5)
    assert where.pinned(0, 5).numel() == 0
    assert where.upload(torch.arange(3)).tolist() == [0, 1, 2]
    with where.transfers():
        pass
    where.synchronise()


@pytest.mark.parametrize("where", [HOST, EMULATED], ids=["host", "device"])
def test_a_mirror_shows_what_was_pushed(where: Placement) -> None:
    mirror = where.mirror(8)
    mirror.host.fill_(7)
    mirror.push()
    assert mirror.there.tolist() == [7] * 8
    address = mirror.there.data_ptr()
    mirror.host[3] = 9
    assert (mirror.there[3] == 9) == (where is HOST), "the host and its device share memory, or a push is missing"
    mirror.push()
    assert mirror.there[3] == 9
    assert mirror.there.data_ptr() == address


def test_the_device_is_chosen_once() -> None:
    assert choose("cpu") is HOST
    with using(Emulator()):
        for name in ("auto", "cuda", "cuda:0"):
            chosen = choose(name)
            assert chosen.kind is DeviceKind.CUDA
            assert (chosen.name, chosen.free_bytes()) == ("cuda:0", None)
        assert choose("cpu") is HOST


@needs_no_gpu
def test_without_a_gpu_auto_is_the_cpu_and_cuda_says_what_is_missing() -> None:
    assert isinstance(choose("auto"), Host)
    for name in ("cuda", "cuda:1"):
        with pytest.raises(CudaError, match="install"):
            choose(name)


@pytest.mark.parametrize("where", [HOST, EMULATED], ids=["host", "device"])
@pytest.mark.parametrize("reserved", [0, 1 << 20])
def test_an_arena_hands_out_the_same_memory_from_its_second_pass_on(where: Placement, reserved: int) -> None:
    arena = Arena(where, reserved)

    def run() -> list[int]:
        with arena.scope():
            outer = arena.take(3, 5)
            with arena.scope():
                inner = arena.take(100)
            again = arena.take(100)
            assert again.data_ptr() == inner.data_ptr() or arena._backing.numel() == 0
            return [outer.data_ptr(), inner.data_ptr(), again.data_ptr()]

    first, second, third = run(), run(), run()
    assert second == third
    assert (first == second) or not reserved
    assert arena.peak_bytes == 256 + 512


def test_recordings_of_the_emulated_device_are_what_programs_use() -> None:
    with using(Emulator()):
        ran: list[int] = []
        recording = jit.record(lambda: ran.append(1))
        assert len(ran) == 2
        recording.run()
        assert len(ran) == 2, "only launches are run again"


# --- on a GPU, whose driver only notes what it is told --------------------------------------------------------


@dataclass
class Stream:
    """A stream that notes its events."""

    name: str
    log: list[str]
    sent: int = 0

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def record_event(self) -> Event:
        self.sent += 1
        self.log.append(f"sent {self.sent}")
        return Event(self.sent, self.log)


@dataclass
class Event:
    number: int
    log: list[str]

    def synchronize(self) -> None:
        self.log.append(f"wait for {self.number}")


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> tuple[Cuda, list[str]]:
    """A placement with streams, and the log of what is asked of them."""
    log: list[str] = []
    current, side = Stream("current", log), Stream("side", log)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda place: current)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda place: log.append("wait for all"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: _on(stream, log))
    monkeypatch.setattr(placement, "_register", lambda owner, begin, nbytes: log.append(f"pin {nbytes}"))
    return Cuda(torch.device("cpu"), cast(torch.cuda.Stream, side)), log


@contextmanager
def _on(stream: Stream, log: list[str]) -> Iterator[None]:
    log.append(f"on {stream.name}")
    yield
    log.append(f"off {stream.name}")


def test_a_buffer_is_filled_again_only_when_it_was_sent(
    noted: tuple[Cuda, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over two objects: the first of the second one has to wait as well."""
    monkeypatch.setattr(placement, "STAGE_BYTES", 300)
    where, log = noted
    with where.uploading() as bring:
        for size in (700, 500):
            one = stored(size)
            assert bring(one).numpy().tolist() == one.data.tolist()
    sends = ["sent 1", "sent 2", "wait for 1", "sent 3", "wait for 2", "sent 4", "wait for 3", "sent 5"]
    pinned = f"pin {mmap.PAGESIZE}"
    assert log == [pinned, pinned, *sends, "wait for all"]


def test_pinned_memory_has_pages_of_its_own_for_as_long_as_a_tensor_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA may refuse to register a page that another tensor has registered."""
    pages: dict[int, int] = {}
    runtime = SimpleNamespace(
        cudaHostRegister=lambda address, nbytes, flags: pages.update({address: nbytes}),
        cudaHostUnregister=lambda address: pages.pop(address),
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "check_error", lambda error: None)
    where = Cuda(torch.device("cpu"), cast(torch.cuda.Stream, Stream("side", [])))
    tensors = [where.pinned(size) for size in (10, 10, mmap.PAGESIZE + 1)]
    assert [tensor.data_ptr() for tensor in tensors] == list(pages)
    assert list(pages.values()) == [mmap.PAGESIZE, mmap.PAGESIZE, 2 * mmap.PAGESIZE]
    assert not any(address % mmap.PAGESIZE for address in pages)
    part = tensors[2][5:]
    tensors.clear()
    assert len(pages) == 1, "the memory of a part is still pinned"
    del part
    assert not pages


def test_transfers_follow_what_came_before_and_precede_what_comes_after(noted: tuple[Cuda, list[str]]) -> None:
    where, log = noted
    with where.transfers():
        log.append("copy")
    assert log == ["side waits for current", "on side", "copy", "off side", "current waits for side"]


def test_a_device_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"--device cuda:2: CUDA devices here are numbered 0 to 1"):
        choose("cuda:2")


def test_one_process_uses_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are loaded for the one that was opened first."""
    monkeypatch.setattr(jit, "device", lambda: Mock(holds=lambda tensor: tensor == "on cuda:0"))
    monkeypatch.setattr(torch, "empty", lambda size, device="cpu": f"on {device}")
    monkeypatch.setattr(Cuda, "at", lambda place: place)
    for current in range(2):
        monkeypatch.setattr(torch.cuda, "current_device", lambda index=current: index)
        if current == 0:
            assert str(choose("cuda")) == "cuda:0"
        else:
            with pytest.raises(ConfigError, match="already computes on another GPU"):
                choose("cuda")
