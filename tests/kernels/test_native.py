"""The loader of compiled kernels: machines without a compiler, the cache of libraries."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from ninfer.errors import CompiledKernelsWarning
from ninfer.kernels import native
from ninfer.kernels.native import BODIES, BuildError, bodies, body_for
from ninfer.kernels.routes import Route
from tests.kernels import native_probe as probe

building = import_module("ninfer.kernels.native.build")  # its package has a function of that name
HERE = bodies(probe.SOURCE)
compiled = pytest.mark.skipif(not HERE, reason="no C++ compiler here")
every_source = pytest.mark.parametrize("source", native.sources(), ids=lambda source: source.stem)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv(building.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


class _SmallArgs(ctypes.Structure):
    _fields_ = (("out", ctypes.c_void_p),)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small source that nothing was loaded from yet, with a header beside it."""
    (tmp_path / "beside.hpp").write_text("#define ANSWER 42\n")
    path = tmp_path / "small.cpp"
    path.write_text(
        """
#include "beside.hpp"
#include "team.hpp"
struct Args { int64_t* out; };
static void small(const Args& a, ninfer::Worker& worker) { if (worker.rank == 0) *a.out = ANSWER; }
NINFER_KERNEL(small, Args)
"""
    )
    return path


def answer(source: Path) -> int:
    """What the small source's kernel computes."""
    out, body = torch.zeros(1, dtype=torch.int64), body_for(source)
    assert body is not None
    native.Kernel(source, "small", _SmallArgs).launch(body, _SmallArgs(out.data_ptr()), out)
    return int(out)


def script(tmp_path: Path, name: str, *lines: str) -> str:
    """An executable shell script; its path."""
    path = tmp_path / name
    path.write_text("#!/bin/sh\n" + "\n".join(lines) + "\n")
    path.chmod(0o755)
    return str(path)


# ---- machines that cannot compile ----------------------------------------------------------------------

OPS_WITHOUT_KERNELS = """
    import warnings, torch
    from ninfer.kernels import native, rmsnorm
    from ninfer.kernels.rmsnorm import compiled_cpu
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = {native.body_for(source) for source in native.sources()}
        assert not native.prepare()
        out = torch.empty(1, 4)
        rmsnorm(torch.ones(1, 4), torch.ones(4), 1e-6, False, out)
    assert found == {None}, found
    assert native.bodies(compiled_cpu.SOURCE) == ()
    assert out.allclose(torch.ones(1, 4))
    for warning in caught:
        print(warning.category.__name__, warning.message, sep=": ")
"""


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"CXX": "/nosuch/g++"}, "/nosuch/g++ is not installed; install g++ or clang++, or set CXX"),
        ({"CXX": "", "PATH": ""}, "a C++ compiler is not installed; install g++ or clang++, or set CXX"),
        ({"CXX": "/bin/false"}, "/bin/false failed: exit status 1; set CXX to a compiler that works"),
        ({"CXX": "/bin/true"}, "what /bin/true makes cannot be loaded"),
    ],
    ids=["no such", "none", "fails", "makes nothing"],
)
def test_without_a_compiler_torch_serves_and_one_warning_says_why(
    tmp_path: Path, environment: dict[str, str], said: str
) -> None:
    done = probe.fresh_process(OPS_WITHOUT_KERNELS, **{building.CACHE_VARIABLE: str(tmp_path), **environment})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        f"{CompiledKernelsWarning.__name__}: compiled kernels are not available, slower ones serve: {said}"
    )
    assert done.stdout.count("\n") == 1
    assert not list(tmp_path.iterdir())


def compile_with(monkeypatch: pytest.MonkeyPatch, *command: str) -> None:
    monkeypatch.setattr(building, "compiler", lambda: command)


def test_garbage_from_a_compiler_becomes_one_short_line(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = script(tmp_path, "noisy", "head -c 5000 /dev/urandom >&2", "head -c 5000 /dev/zero >&2", "exit 3")
    compile_with(monkeypatch, noisy)
    with pytest.raises(BuildError) as caught:
        building.build(probe.SOURCE, Route.CPU_PORTABLE)
    assert str(caught.value).startswith(f"{noisy} failed: ")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500
    assert not list(cache.iterdir())


@compiled
@pytest.mark.usefixtures("cache")
def test_the_line_that_names_the_error_is_shown(tmp_path: Path) -> None:
    broken = tmp_path / "broken.cpp"
    broken.write_text("#warning not this\nint x = y;\n")
    with pytest.raises(BuildError, match=r"broken\.cpp:2:.*error.*y"):
        building.build(broken, Route.CPU_PORTABLE)


@pytest.mark.parametrize("inside", [False, True])
def test_a_file_where_the_cache_should_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    compile_with(monkeypatch, "/bin/true")
    monkeypatch.setenv(building.CACHE_VARIABLE, str(taken / "deeper" if inside else taken))
    with pytest.raises(BuildError, match=f"cannot be written .*set {building.CACHE_VARIABLE}"):
        building.build(probe.SOURCE, Route.CPU_PORTABLE)


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in (building.CACHE_VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(BuildError, match=f"set {building.CACHE_VARIABLE}"):
        building.cache_dir()


def test_the_cache_is_where_the_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setenv(building.CACHE_VARIABLE, "")
    assert building.cache_dir() == Path("/x/ninfer")
    monkeypatch.setenv(building.CACHE_VARIABLE, ".")
    assert building.cache_dir() == Path.cwd()


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("env g++ -m64", ("env", "g++", "-m64")), ("'/no such/g++'", None), ("unbalanced '", None)],
)
def test_cxx_is_a_command(monkeypatch: pytest.MonkeyPatch, value: str, wanted: tuple[str, ...] | None) -> None:
    monkeypatch.setenv("CXX", value)
    if wanted is None:
        with pytest.raises(BuildError, match="CXX"):
            building.compiler.__wrapped__()
    else:
        program, *options = building.compiler.__wrapped__()
        assert (Path(program).is_absolute(), Path(program).name, *options) == (True, *wanted)


@compiled
def test_an_old_compiler_gives_a_lesser_body(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if HERE[0] is Route.CPU_PORTABLE:
        pytest.skip("this machine has one body")
    real = building.compiler()
    program = f'case "$*" in *{building._BODY_FLAGS[HERE[0]][-1]}*) echo error: too new >&2; exit 1;; esac; exec "$@"'
    compile_with(monkeypatch, script(cache.parent, "old", program), *real)
    assert body_for(source) is HERE[1]


# ---- the cache -----------------------------------------------------------------------------------------


@compiled
def test_a_library_is_built_once(source: Path, cache: Path) -> None:
    first = building.build(source, Route.CPU_PORTABLE)
    stamp = first.stat().st_mtime_ns
    assert building.build(source, Route.CPU_PORTABLE) == first
    assert first.stat().st_mtime_ns == stamp
    assert list(cache.iterdir()) == [first]


@compiled
def test_every_header_counts(source: Path, cache: Path) -> None:
    names = {building.build(source, Route.CPU_PORTABLE)}
    (source.parent / "beside.hpp").write_text('#include "deeper.hpp"\n')
    (source.parent / "deeper.hpp").write_text("#define ANSWER 1\n")
    names.add(building.build(source, Route.CPU_PORTABLE))
    (source.parent / "deeper.hpp").write_text("#define ANSWER 2\n")
    names.add(building.build(source, Route.CPU_PORTABLE))
    names.add(building.build(source, Route.CPU_AVX512_PLAIN))
    assert answer(source) == 2
    assert len(names) == 4
    assert len({building._key(source, (*building.compiler(), flag)) for flag in ("-O2", "-O3", "-I/elsewhere")}) == 3
    assert {path.name for path in building._files(source)} == {
        "small.cpp",
        "beside.hpp",
        "deeper.hpp",
        "team.hpp",
    }


@compiled
@pytest.mark.parametrize("damage", ["truncated", "changed", "emptied"])
def test_a_damaged_library_is_made_anew(source: Path, cache: Path, damage: str) -> None:
    path = building.build(source, Route.CPU_PORTABLE)
    whole = path.read_bytes()
    other = bytes([whole[5000] ^ 1])
    path.write_bytes(
        {"truncated": whole[:9000], "changed": whole[:5000] + other + whole[5001:], "emptied": b""}[damage]
    )
    assert building.build(source, Route.CPU_PORTABLE).read_bytes() == whole
    path.write_bytes(whole[:9000])
    assert answer(source) == 42


@compiled
def test_a_library_of_another_machine_is_made_anew(source: Path, cache: Path) -> None:
    path = building.build(source, HERE[0])
    foreign = b"\x7fELF of another kind"
    path.unlink()
    name = path.stem.rpartition("-")[0]
    (cache / f"{name}-{building._digest(foreign)}.so").write_bytes(foreign)
    assert answer(source) == 42


@compiled
def test_two_processes_build_at_once(cache: Path) -> None:
    command = [sys.executable, "-c", "from ninfer.kernels import native; print(native.best_body().value)"]
    environment = {**os.environ, building.CACHE_VARIABLE: str(cache)}
    root = Path(__file__).parents[2]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=root) for _ in range(2)
    ]
    assert [process.communicate(timeout=240)[0] for process in started] == [f"{HERE[0].value}\n"] * 2
    assert {path.suffix for path in cache.iterdir()} == {".so"}


@compiled
@every_source
@pytest.mark.parametrize("body", [*BODIES, Route.CPU_AVX512_PLAIN], ids=lambda body: body.value)
def test_every_source_compiles_for_every_body(source: Path, body: Route) -> None:
    if body in (Route.CPU_AVX512, Route.CPU_AVX2) and os.uname().machine not in ("x86_64", "AMD64"):
        pytest.skip("the compiler of this machine does not know x86 instructions")
    assert building.build(source, body).stat().st_size > 0
