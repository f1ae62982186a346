"""The entry point: help, start-up, exit codes, one-line errors."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ninfer import __version__
from ninfer.cli import factories
from tests.cli.conftest import Invoke
from tests.cli.fakes import Answer, FakeEngine

HEAVY = (
    "torch",
    "numpy",
    "transformers",
    "jinja2",
    "tokenizers",
    "safetensors",
    "rich",
    "matplotlib",
    "cupy",
    "asyncio",
)
COMMANDS = ("convert", "inspect", "run", "chat", "tokenize", "score", "bench", "doctor")


def start(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from ninfer.cli.main import run; run()", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


def test_help_loads_no_heavy_library(capsys: pytest.CaptureFixture[str]) -> None:
    program = (
        "import sys, json\nfrom ninfer.cli.main import run\nsys.argv = ['ninfer', '--help']\n"
        f"try:\n    run()\nfinally:\n    print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    with capsys.disabled():
        print(f"\nninfer --help: {time.perf_counter() - begin:.2f} s on this machine, now")
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_importing_ninfer_loads_no_heavy_library() -> None:
    program = (
        f"import sys, ninfer\nprint([name for name in {HEAVY!r} if name in sys.modules], ninfer.Sampling.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["[]", "Sampling"]


def test_help_names_every_command(invoke: Invoke) -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    listed = [line.split()[0] for line in result.stdout.split("Commands:")[1].splitlines() if line.strip()]
    assert [name for name in listed if name in COMMANDS] == list(COMMANDS)


def test_no_arguments_show_the_help(invoke: Invoke) -> None:
    assert invoke().stdout == invoke("--help").stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_described_options(invoke: Invoke, command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "--debug" in result.stdout
    assert "--json" in result.stdout or command == "chat"


def test_version(invoke: Invoke) -> None:
    assert invoke("--version").stdout == f"ninfer {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nosuch"], "nosuch"),
        (["run", "--nosuch"], "--nosuch"),
        (["run"], "--prompt"),
        (["run", "--prompt", "a", "--prompt-file", "b"], "only one of"),
        (["run", "--prompt", "a", "--top-k", "many"], "--top-k"),
        (["run", "--prompt", "a", "--top-k", "-1"], "--top-k"),
        (["run", "--prompt", "a", "--temperature", "nan"], "--temperature"),
        (["run", "--prompt", "a", "--top-p", "0"], "--top-p"),
        (["run", "--prompt", "a", "--max-new", "0"], "--max-new"),
        (["run", "--prompt", "a", "--device", "tpu"], "--device"),
        (["run", "--prompt", "a", "--prefill-chunk", "200"], "--prefill-chunk"),
        (["run", "--prompt", "a", "--kv-dtype", "fp64"], "--kv-dtype"),
        (["run", "--prompt", "a", "--max-concurrency", "9"], "--max-concurrency"),
        (["run", "--prompt", "a", "--greedy", "--top-p", "0.5"], "--greedy"),
        (["run", "--prompt", "a", "--stop", ""], "--stop"),
        (["run", "--prompt", "a", "--seed", "-1"], "--seed"),
        (["run", "--prompt", "a", "--tools", "t.json"], "--messages"),
        (["run", "x.ninfer", "--model", "y.ninfer", "--prompt", "a"], "twice"),
        (["tokenize"], "--text"),
        (["tokenize", "--text", "a", "--template-arg", "k=1"], "--messages"),
        (["tokenize", "--messages", "m.json", "--template-arg", "novalue"], "NAME=VALUE"),
        (["score"], "corpus"),
        (["score", "a", "--context", "8", "--stride", "8"], "--stride"),
        (["score", "a", "a"], "twice"),
        (["bench"], "--trace"),
        (["bench", "--micro", "--pp", "8"], "one of"),
        (["bench", "--micro", "--plot", "x.png"], "--trace"),
        (["bench", "--micro", "--concurrency", "4"], "--tg"),
        (["bench", "--tg", "8", "--concurrency", "9"], "--concurrency"),
        (["convert"], "hf_dir"),
    ],
)
def test_usage_mistakes_exit_2_and_name_the_flag(invoke: Invoke, arguments: list[str], said: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert said.lower() in result.stderr.lower()
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


MODEL_COMMANDS = [
    ["inspect", "{}"],
    ["run", "{}", "--prompt", "a"],
    ["chat", "{}"],
    ["tokenize", "{}", "--text", "a"],
    ["bench", "-m", "{}", "--micro"],
]


@pytest.mark.parametrize("arguments", MODEL_COMMANDS, ids=lambda arguments: arguments[0])
def test_every_command_refuses_what_is_no_model(invoke: Invoke, tmp_path: Path, arguments: list[str]) -> None:
    text = tmp_path / "text.ninfer"
    text.write_text("not an artifact, but long enough to hold a whole header of one")
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    cases = {
        tmp_path / "absent.ninfer": "no such file",
        tmp_path: "directory",
        checkpoint: "ninfer convert",
        text: "not a .ninfer artifact",
    }
    for path, said in cases.items():
        result = invoke(*(argument.format(path) for argument in arguments))
        assert result.exit_code == 1, result.output
        assert said in result.stderr
        assert str(path) in result.stderr
        assert result.stderr.count("\n") == 1
        assert result.stdout == ""


def test_debug_shows_the_traceback_before_the_line(invoke: Invoke) -> None:
    quiet, loud = invoke("inspect", "/nosuch.ninfer"), invoke("inspect", "/nosuch.ninfer", "--debug")
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr
    assert loud.stderr.endswith(quiet.stderr)
    assert loud.exit_code == 1


def test_an_unexpected_error_is_one_line_and_exit_1(
    invoke: Invoke, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr(factories, "open_engine", broken)
    result = invoke("run", model, "--prompt", "a")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: internal error, ZeroDivisionError: two lines (run again with --debug for the traceback)\n"
    )


def test_an_output_that_takes_no_more_is_no_internal_error(
    invoke: Invoke, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(factories, "open_engine", full)
    result = invoke("run", model, "--prompt", "a")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: No space left on device: check what standard input and output")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_read_as_empty_and_written_nowhere(closed: str, tmp_path: Path) -> None:
    missing = tmp_path / "missing.ninfer"
    program = "import sys; from ninfer.cli.main import run; sys.argv[0] = 'ninfer'; run()"
    command = f'exec "$0" -c "$1" run "$2" --prompt - {closed}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, program, missing], input="hi", capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert done.stdout == ""
    if "2>" not in closed:
        empty = "error: --prompt: the text is empty"
        assert done.stderr.startswith(empty if "<" in closed else f"error: MODEL: no such file: {missing}")


def test_ctrl_c_exits_130_and_leaves_the_request(invoke: Invoke, model: Path, engine: FakeEngine) -> None:
    engine.script.append(Answer(content=("a", "b"), interrupt_after=1))
    result = invoke("run", model, "--prompt", "x")
    assert result.exit_code == 130
    assert engine.handles[0].left
    assert engine.closed


def test_the_model_comes_from_argument_option_variable(
    invoke: Invoke, model: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NINFER_MODEL", "/nosuch")
    assert invoke("run", model, "--prompt", "x").exit_code == 0
    assert invoke("run", "-m", model, "--prompt", "x").exit_code == 0
    monkeypatch.setenv("NINFER_MODEL", str(model))
    assert invoke("run", "--prompt", "x").exit_code == 0
    assert [request.prompt for request in engine.requests] == [engine.requests[0].prompt] * 3
    assert engine.opened is not None
    assert engine.opened[0] == model


def test_the_demo_model_is_the_last_resort_and_said(
    invoke: Invoke, model: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ninfer.cli.models.demo_model", lambda: model)
    result = invoke("run", "--prompt", "x")
    assert result.exit_code == 0
    assert "demo model" in result.stderr
    assert "demo" not in result.stdout


def test_without_any_model_the_remedy_is_named(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ninfer.cli.models.demo_model", lambda: tmp_path / "absent")
    result = invoke("run", "--prompt", "x")
    assert result.exit_code == 1
    assert "NINFER_MODEL" in result.stderr


def test_a_closed_pipe_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", "from ninfer.cli.main import run; run()", "doctor", "--json"],
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=120,
        )
    finally:
        os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 1


def test_output_survives_a_terminal_that_cannot_encode_it(tmp_path: Path) -> None:
    done = start("inspect", str(tmp_path / "é.ninfer"), PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert "\\xe9.ninfer" in done.stderr


def test_missing_kernels_are_one_line_and_other_warnings_are_pythons() -> None:
    program = """
import sys, warnings
from ninfer.cli import main
from ninfer.errors import CompiledKernelsWarning
def body(**_):
    warnings.warn("slower: install g++", CompiledKernelsWarning)
    warnings.warn("something else", RuntimeWarning)
main.app = body
main.run()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    first, *others = done.stderr.splitlines()
    assert first == "warning: slower: install g++"
    assert "RuntimeWarning: something else" in others[0]
