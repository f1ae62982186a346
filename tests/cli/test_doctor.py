"""`ninfer doctor`: facts, checked against independent sources where there are any."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from ninfer.cli import machine
from ninfer.kernels import native
from tests.cli.conftest import Invoke


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are not tried out: this process keeps the compiler that it finds first."""
    none = machine.CompiledKernels(None, None, None, "not tried")
    monkeypatch.setattr(machine.factories, "compiled_kernels", lambda: none)


def test_json_is_one_object_of_facts(invoke: Invoke) -> None:
    report = json.loads(invoke("doctor", "--json").stdout)
    assert report["python"] == platform.python_version()
    assert report["libraries"]["torch"] == version("torch")
    assert report["libraries"]["numpy"] == version("numpy")
    assert report["cpu"]["logical_cores"] == os.cpu_count()
    assert 1 <= report["cpu"]["physical_cores"] <= report["cpu"]["logical_cores"]
    assert [device["name"] for device in report["devices"]] == ["cpu", "cuda"]
    assert report["devices"][0]["usable"] is True


def test_tables_show_the_same(invoke: Invoke) -> None:
    shown = invoke("doctor").stdout
    for word in ("processor", "C++ compiler", "torch", "numpy", "cuda", platform.python_version()):
        assert word in shown


def test_compiled_kernels_are_tried_out(invoke: Invoke) -> None:
    if not native.bodies(native.sources()[0]):
        pytest.skip("no C++ compiler here")
    found = json.loads(invoke("doctor", "--json").stdout)["kernels"]
    assert found["body"] == native.best_body().value
    assert found["compiler"] == native.compiler()[0]
    assert list(Path(found["cache"]).glob(f"team-{found['body']}-*.so"))
    assert found["reason"] is None
    assert found["cache"] in " ".join(invoke("doctor").stdout.split())


def test_a_machine_without_a_compiler_is_told_what_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ninfer", "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PATH": str(tmp_path), "CXX": ""},
    )
    report = json.loads(done.stdout)
    remedy = "a C++ compiler is not installed; install g++ or clang++, or set CXX"
    assert report["kernels"] == {"body": None, "compiler": None, "cache": None, "reason": remedy}
    assert report["devices"][0] == {"name": "cpu", "usable": True, "reason": "torch routes, which are slower"}
    assert done.stderr == ""


def test_what_cuda_lacks_is_named_with_its_remedy(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    there, lacking = machine.CudaPart("driver", "for CUDA 13.0", None), machine.CudaPart("CuPy", None, "pip install it")
    monkeypatch.setattr(machine.factories, "cuda_parts", lambda: (there, lacking))
    report = json.loads(invoke("doctor", "--json").stdout)
    assert report["cuda"][1] == {"name": "CuPy", "found": None, "remedy": "pip install it"}
    assert report["devices"][1] == {"name": "cuda", "usable": False, "reason": "see CuPy under CUDA"}
    shown = invoke("doctor").stdout
    assert "for CUDA 13.0" in shown
    assert "pip install it" in shown


def test_a_gpu_with_every_part_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = (machine.CudaPart("driver", "for CUDA 13.0", None), machine.CudaPart("GPU", "NVIDIA H200", None))
    monkeypatch.setattr(machine.factories, "cuda_parts", lambda: parts)
    assert machine.examine().devices[1] == machine.Device("cuda", True, "NVIDIA H200")


def test_looking_for_cuda_loads_no_cupy() -> None:
    script = "import sys; from ninfer.cli.factories import cuda_parts; cuda_parts(); print([*sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert "torch" in done.stdout
    assert "cupy" not in done.stdout


def test_memory_agrees_with_the_operating_system() -> None:
    found = machine.read_memory()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert found is not None
    assert found.total_bytes == pytest.approx(pages, rel=0.02)
    assert 0 < found.available_bytes <= found.total_bytes


@pytest.mark.usefixtures("no_kernels")
def test_gpus_and_compilers_come_from_their_own_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, output in (("nvidia-smi", "NVIDIA H200, 580.1, 143771 MiB"), ("c++", "c++ 99.1")):
        tool = tmp_path / name
        tool.write_text(f"#!/bin/sh\necho '{output}'\n")
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = machine.examine()
    assert found.gpus == ("NVIDIA H200, 580.1, 143771 MiB",)
    assert found.compiler == "c++ 99.1"


@pytest.mark.usefixtures("no_kernels")
def test_a_bare_machine_is_reported_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = machine.examine()
    assert found.gpus == ()
    assert found.compiler is None


def test_missing_libraries_have_no_version() -> None:
    assert machine.installed("no-such-distribution") is None


def test_the_processor_name_comes_from_cpuinfo() -> None:
    assert machine.cpu_model("processor\t: 0\nmodel name\t: Fast CPU @ 3 GHz\nflags\t: avx2\n") == "Fast CPU @ 3 GHz"
