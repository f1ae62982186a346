"""The team of threads that runs compiled kernels, and tapes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ninfer.kernels.native import BuildError, Kernel, Tape, bodies, record
from tests.kernels import native_probe as probe

HERE = bodies(probe.SOURCE)
pytestmark = pytest.mark.skipif(not HERE, reason="no C++ compiler here")


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets torch's number of threads; the test leaves it as it was."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize(("elements", "grain"), [(0, 1), (1, 1), (7, 3), (1000, 1), (1001, 64), (5, 100)])
def test_every_element_is_computed_once(threads: Callable[[int], None], size: int, elements: int, grain: int) -> None:
    threads(size)
    visits, sizes = torch.zeros(elements, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    probe.count(HERE[0], visits, sizes, grain)
    assert (visits == 1).all()
    assert sizes.item() == size


@pytest.mark.parametrize(("size", "rounds"), [(2, 4000), (5, 400)])
def test_barriers_hold_over_thousands_of_rounds(threads: Callable[[int], None], size: int, rounds: int) -> None:
    threads(size)
    values = torch.zeros(2, 97, dtype=torch.int64)
    probe.wave(HERE[0], values, 4, rounds)
    assert (values[0] == rounds).all()


def test_the_number_of_threads_may_change_between_launches(threads: Callable[[int], None]) -> None:
    for size in (1, 4, 2, 8, 1, 3, 8, 2):
        threads(size)
        visits, sizes = torch.zeros(301, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
        for _ in range(20):
            probe.count(HERE[0], visits, sizes, 3)
        assert (visits == 20).all()
        assert sizes.item() == size


@pytest.mark.parametrize("size", [1, 2, 4])
def test_scratch_is_aligned_and_apart(threads: Callable[[int], None], size: int) -> None:
    threads(size)
    faults = torch.zeros(1, dtype=torch.int64)
    for own, shared in ((0, 0), (1, 1), (100, 3), (100000, 5000), (64, 64), (300000, 100), (300000, 50000)):
        for _ in range(3):
            probe.scratch(HERE[0], faults, own, shared)
    assert faults.item() == 0


def test_two_python_threads_may_launch_at_once(threads: Callable[[int], None]) -> None:
    threads(2)
    tensors = [torch.zeros(2, 64, dtype=torch.int64) for _ in range(2)]

    def launch(values: torch.Tensor) -> None:
        for _ in range(100):
            values.zero_()
            probe.wave(HERE[0], values, 3, 10)
            assert (values[0] == 10).all()

    started = [threading.Thread(target=launch, args=(values,)) for values in tensors]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert all((values[0] == 10).all() for values in tensors)


FORKED = """
    import os, torch
    from tests.kernels import native_probe as probe
    from ninfer.kernels.native import body_for
    torch.set_num_threads(2)
    body = body_for(probe.SOURCE)
    def works():
        values = torch.zeros(2, 64, dtype=torch.int64)
        probe.wave(body, values, 3, 10)
        return values[0].tolist() == [10] * 64
    assert works()
    child = os.fork()
    if child == 0:
        os._exit(0 if works() and works() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert works()
    print("done")
"""


def test_a_forked_child_has_a_team_of_its_own() -> None:
    done = probe.fresh_process(FORKED)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


FEW_THREADS = """
    import resource, torch
    from tests.kernels import native_probe as probe
    from ninfer.kernels.native import body_for
    body = body_for(probe.SOURCE)
    torch.set_num_threads(1)
    visits, sizes = torch.zeros(301, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    probe.count(body, visits, sizes, 3)
    torch.set_num_threads(8)
    resource.setrlimit(resource.RLIMIT_AS, (1, resource.getrlimit(resource.RLIMIT_AS)[1]))
    probe.count(body, visits, sizes, 3)
    assert (visits == 2).all()
    print(sizes.item())
"""


def test_a_system_without_room_for_threads_computes_with_fewer() -> None:
    done = probe.fresh_process(FEW_THREADS)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_a_tape_reads_its_memory_when_it_runs(threads: Callable[[int], None]) -> None:
    values = torch.zeros(2, 50, dtype=torch.int64)
    with record() as tape:
        probe.wave(HERE[0], values, 3, 2)
        probe.wave(HERE[0], values, 5, 4)
    assert len(tape) == 2
    assert (values == 0).all()
    for size, start in ((1, 0), (2, 100), (4, -3)):
        threads(size)
        values[0] = start
        tape.run()
        assert (values[0] == start + 6).all()


def test_a_tape_keeps_its_memory_alive() -> None:
    with record() as tape:
        values = torch.zeros(2, 1 << 16, dtype=torch.int64)
        probe.wave(HERE[0], values, 1000, 2)
    view = values.view(-1)
    address = values.data_ptr()
    del values, view
    others = [torch.zeros(2, 1 << 16, dtype=torch.int64) for _ in range(3)]
    assert address not in {other.data_ptr() for other in others}
    tape.run()
    assert all((other == 0).all() for other in others)


def test_a_long_tape(threads: Callable[[int], None]) -> None:
    threads(2)
    values = torch.zeros(2, 20, dtype=torch.int64)
    with record() as tape:
        for _ in range(3000):
            probe.wave(HERE[0], values, 2, 2)
    tape.run()
    assert (values[0] == 6000).all()


def test_an_empty_tape_runs() -> None:
    Tape().run()


def test_an_error_while_recording_ends_the_recording(tmp_path: Path) -> None:
    broken = tmp_path / "broken.cpp"
    broken.write_text("#error no\n")
    values = torch.zeros(2, 10, dtype=torch.int64)
    with pytest.raises(BuildError), record():
        Kernel(broken, "wave", probe.WaveArgs).launch(HERE[0], probe.WaveArgs())
    probe.wave(HERE[0], values, 3, 2)
    assert (values[0] == 2).all()


def test_recording_is_a_threads_own() -> None:
    values = torch.zeros(2, 10, dtype=torch.int64)
    with record() as tape:
        other = threading.Thread(target=probe.wave, args=(HERE[0], values, 3, 2))
        other.start()
        other.join()
    assert len(tape) == 0
    assert (values[0] == 2).all()


def test_arguments_that_differ_from_the_declaration_are_refused() -> None:
    with pytest.raises(AssertionError, match="scratch: Args have 24 bytes"):
        Kernel(probe.SOURCE, "scratch", probe.WaveArgs).launch(HERE[0], probe.WaveArgs())
