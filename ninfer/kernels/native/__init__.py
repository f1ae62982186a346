"""Compiled C++ kernels: built on first use, called on a team of threads, and recorded into tapes.

A kernel's source lies in its op's folder. Each source is one shared library per *body* (`BODIES`): the same text for
AVX-512, AVX2 or any machine. An op's route module declares its kernels and launches them:

    _KERNEL = Kernel(Path(__file__).with_name("rmsnorm.cpp"), "rmsnorm", _Args)

    def rmsnorm(body: Route, x, weight, eps, offset, out):
        _KERNEL.launch(body, _Args(x.data_ptr(), ..., out.data_ptr()), x, weight, out)

A launch runs at once on as many threads as torch is set to use, or, inside `record`, becomes the next step of a tape.
A tape runs all its steps, with the addresses that they were recorded with, in one call.

Where a source cannot be compiled, `body_for` says so, once in a process, as a `CompiledKernelsWarning`, and the op's
torch route serves.
"""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType

import torch

from ninfer.errors import CompiledKernelsWarning
from ninfer.kernels.native.build import CACHE_VARIABLE, KERNELS, BuildError, build, cache_dir, compiler
from ninfer.kernels.routes import Route

__all__ = [
    "BODIES",
    "BuildError",
    "Kernel",
    "Tape",
    "best_body",
    "bodies",
    "body_for",
    "cache_dir",
    "compiled_routes",
    "compiler",
    "exported",
    "prepare",
    "record",
    "sources",
]

BODIES = (Route.CPU_AVX512, Route.CPU_AVX2, Route.CPU_PORTABLE)
"""The bodies that a plan may choose, best first."""

_NEEDED_FEATURES: Mapping[Route, int] = MappingProxyType(
    {Route.CPU_AVX512: 2, Route.CPU_AVX2: 1, Route.CPU_PORTABLE: 0, Route.CPU_AVX512_PLAIN: 0}
)
_TEAM = Path(__file__).with_name("team.cpp")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One function of a C++ source: `void name(const Args&, Worker&)`, exported by NINFER_KERNEL.

    Attributes:
        source: the file that defines it.
        name: its name there.
        args: the ctypes mirror of its Args.
    """

    source: Path
    name: str
    args: type[ctypes.Structure]

    def launch(self, body: Route, args: ctypes.Structure, *keep: object) -> None:
        """Run the kernel, or record it.

        Args:
            keep: the owners of all memory that `args` points to, which a tape must keep alive.

        Raises:
            BuildError: the source cannot be compiled for this body.
        """
        function = _function(self, body)
        if _recording.tape is not None:
            _recording.tape.add(function, args, keep)
            return
        step = _Step(function, ctypes.addressof(args))
        _team().ninfer_run(ctypes.addressof(step), 1, torch.get_num_threads())


class Tape:
    """Kernels in order, with fixed arguments. Their memory is kept alive, and read when the tape runs."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, ctypes.Structure]] = []
        self._keep: list[object] = []
        self._array: ctypes.Array[_Step] | None = None

    def add(self, function: int, args: ctypes.Structure, keep: Sequence[object]) -> None:
        """Append one kernel."""
        self._steps.append((function, args))
        self._keep.extend(keep)
        self._array = None

    def __len__(self) -> int:
        return len(self._steps)

    def run(self) -> None:
        """Run all steps on as many threads as torch is set to use."""
        if self._array is None:
            steps = [_Step(function, ctypes.addressof(args)) for function, args in self._steps]
            self._array = (_Step * len(steps))(*steps)
        _team().ninfer_run(ctypes.addressof(self._array), len(self._steps), torch.get_num_threads())


@contextmanager
def record() -> Iterator[Tape]:
    """Launches of this thread inside the block become steps of the tape and are not run.

    The caller sees to it that everything in the block is a launch: what torch computes is not recorded.
    """
    assert _recording.tape is None, "a tape is being recorded already"
    _recording.tape = tape = Tape()
    try:
        yield tape
    finally:
        _recording.tape = None


def bodies(source: Path) -> tuple[Route, ...]:
    """The bodies of `source` that this machine can compile and run, best first; may be empty."""
    best = body_for(source)
    return () if best is None else BODIES[BODIES.index(best) :]


@cache
def body_for(source: Path) -> Route | None:
    """The best body of `source` on this machine; None, said once as a warning, where it cannot be compiled."""
    try:
        return best_body(source)
    except BuildError as error:
        _say_once(str(error))
        return None


def best_body(source: Path | None = None) -> Route:
    """The best body that this machine can run and compile: of `source`, or of the team when None.

    Raises:
        BuildError: why there is none.
    """
    features = _team().ninfer_cpu_features()
    able = [body for body in BODIES if features & _NEEDED_FEATURES[body] == _NEEDED_FEATURES[body]]
    for body in able[:-1]:
        with suppress(BuildError):  # an old compiler may not know the newest instructions
            _library(source or _TEAM, body)
            return body
    _library(source or _TEAM, able[-1])
    return able[-1]


def sources() -> tuple[Path, ...]:
    """The C++ sources of all ops."""
    return tuple(path for path in sorted(KERNELS.glob("*/*.cpp")) if path != _TEAM)


def prepare(progress: Callable[[int, int], None] | None = None) -> bool:
    """Compile what is missing, several sources at a time; True if every op has its compiled kernels.

    Args:
        progress: called with (done, total) sources.
    """
    report, total = progress or (lambda done, total: None), len(sources())
    complete = True
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for done, body in enumerate(pool.map(body_for, sources()), start=1):
            complete = complete and body is not None
            report(done, total)
    return complete


def compiled_routes(function: Callable[..., None]) -> dict[Route, Callable[..., None]]:
    """An op's compiled routes: `function` with each body as its first argument."""
    return {body: partial(function, body) for body in (*BODIES, Route.CPU_AVX512_PLAIN)}


class _Step(ctypes.Structure):
    _fields_ = (("kernel", ctypes.c_void_p), ("args", ctypes.c_void_p))


@dataclass(slots=True)
class _Recording(threading.local):
    tape: Tape | None = field(default=None)


_recording = _Recording()


_starting = threading.Lock()
_said = threading.Event()


def _team() -> ctypes.CDLL:
    found = _team_or_reason()
    if isinstance(found, BuildError):
        raise found
    return found


@cache
def _team_or_reason() -> ctypes.CDLL | BuildError:
    with _starting:  # two copies of the library would be two teams
        return _started_team()


@cache
def _started_team() -> ctypes.CDLL | BuildError:
    try:
        library = _library(_TEAM, Route.CPU_PORTABLE)
    except BuildError as error:
        return error
    library.ninfer_run.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
    library.ninfer_run.restype = None
    os.register_at_fork(after_in_child=library.ninfer_after_fork)
    return library


@cache
def _library(source: Path, body: Route) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(build(source, body)))
    except OSError:
        path = build(source, body, fresh=True)  # the cached one may be another machine's
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise BuildError(
            f"what {compiler()[0]} makes cannot be loaded ({error}); set CXX to a compiler that works, "
            f"or {CACHE_VARIABLE} to a folder that may hold programs"
        ) from error


@cache
def exported(source: Path, name: str, body: Route) -> int:
    """The address of a function that a source exports for kernels of other sources.

    Raises:
        BuildError: the source cannot be compiled for this body.
    """
    address = ctypes.cast(getattr(_library(source, body), name), ctypes.c_void_p).value
    assert address is not None
    return address


@cache
def _function(kernel: Kernel, body: Route) -> int:
    library = _library(kernel.source, body)
    size = ctypes.c_uint64.in_dll(library, f"ninfer_{kernel.name}_args").value
    assert size == ctypes.sizeof(kernel.args), f"{kernel.name}: Args have {size} bytes in C++, not as declared here"
    return exported(kernel.source, f"ninfer_{kernel.name}", body)


def _say_once(reason: str) -> None:
    with _starting:
        if _said.is_set():
            return
        _said.set()
    said = f"compiled kernels are not available, slower ones serve: {reason}"
    warnings.warn(said, CompiledKernelsWarning, stacklevel=4)
