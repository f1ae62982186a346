"""The GPU script on the tests' emulator: it checks every op, times every family and whole models, and says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ninfer.kernels import CATALOGUE
from tests.kernels.emulator import NEEDS_EMULATOR

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu" / "run.py"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


@NEEDS_EMULATOR
def test_all_of_it_runs_on_the_emulator(tmp_path: Path) -> None:
    done = _run("--emulate", "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["emulated"]
    assert figures["left_out"] == []
    assert all(check["worst"] <= 1 for check in figures["checks"])
    checked = {check["op"] for check in figures["checks"]}
    assert checked >= set(CATALOGUE)
    assert {row["op"] for row in figures["kernels"]} >= {"linear", "paged_attention", "gdn", "sample"}
    works = {(run["model"], run["work"].split(",")[0].split(" ")[0], run["graph"]) for run in figures["models"]}
    for model in ("tiny dense", "tiny moe"):
        assert works >= {(model, "decode", True), (model, "decode", False), (model, "prompt", False)}
    assert all(run["tokens_per_second"] > 0 for run in figures["models"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_is_missing() -> None:
    done = _run()
    assert done.returncode == 2
    assert done.stderr.startswith("CUDA cannot be used here: ")
    assert "install" in done.stderr


def test_unknown_parts_are_named() -> None:
    done = _run("--parts", "checks,nonsense")
    assert done.returncode == 2
    assert "nonsense" in done.stderr
