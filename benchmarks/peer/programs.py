"""The two programs, each run in a process of its own for every measurement: commands, and what their output says."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .works import DECODE_PROMPT_TOKENS, Bits, Work

BINDINGS = Path(__file__).with_name("bindings.py")
TOOLS = ("llama-bench", "llama-batched-bench", "llama-quantize")
WARM_UP_TOKENS = 128
LONG_PROMPT = 1024
SEQUENCE_PAD = 256
TIMEOUT = 1800.0


class MeasurementFailed(Exception):
    """A program ended with an error, took too long or said nothing; the message has the end of what it said."""


class Program(Protocol):
    """One of the two programs."""

    @property
    def name(self) -> str: ...

    def measure(self, model: Path, work: Work) -> list[float]:
        """Tokens per second of one process run, one figure per repetition. Raises MeasurementFailed."""
        ...


class Peer(Program, Protocol):
    """A program that also makes its own files."""

    @property
    def version(self) -> str: ...

    @property
    def sources(self) -> Path | None:
        """llama.cpp's sources, where they are known."""
        ...

    def can(self, work: Work) -> bool: ...

    def quantise(self, source: Path, target: Path, bits: Bits) -> None: ...


def run(command: Sequence[str | Path]) -> str:
    """Standard output of a command. Raises MeasurementFailed."""
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise MeasurementFailed(f"{command[0]}: took more than {TIMEOUT:.0f} s") from error
    if done.returncode:
        raise MeasurementFailed(f"{command[0]}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Ninfer:
    """This project, by `ninfer bench`."""

    threads: int
    name: str = "ninfer"

    def measure(self, model: Path, work: Work) -> list[float]:
        [point] = json.loads(run(self.command(model, work)))["results"]
        return list(point["tokens_per_second"]["all"])

    def command(self, model: Path, work: Work) -> list[str]:
        what = ["--pp", f"{work.prompt}"]
        if not work.is_prefill:
            what = ["--tg", f"{work.new}", "--concurrency", f"{work.batch}", "--depth", f"{work.depth}"]
        options = ["--threads", f"{self.threads}", "--repeat", f"{work.repeats}", "--json", "-"]
        return [sys.executable, "-m", "ninfer", "bench", "--model", str(model), *what, *options]


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """llama.cpp by its own benchmarks: `llama-bench`, and `llama-batched-bench` for parallel requests."""

    build: Path
    threads: int
    extra: tuple[str, ...] = ()
    name: str = "llama.cpp"

    @property
    def version(self) -> str:
        """What `llama-bench --version` says, on whichever stream; older builds do not know the option."""
        done = subprocess.run([self._tool("llama-bench"), "--version"], capture_output=True, text=True)
        lines = (done.stdout + done.stderr).splitlines()
        return next((line for line in lines if line.startswith("version")), "version unknown")

    @property
    def sources(self) -> Path | None:
        """Where the build says it was configured from."""
        cache = self.build / "CMakeCache.txt"
        lines = cache.read_text().splitlines() if cache.exists() else []
        found = (line.partition("=")[2] for line in lines if line.startswith("CMAKE_HOME_DIRECTORY:"))
        return next(map(Path, found), None)

    def can(self, work: Work) -> bool:
        return True

    def quantise(self, source: Path, target: Path, bits: Bits) -> None:
        head = ["--token-embedding-type", "q6_K"] if bits.gguf_type == "Q4_0" else []
        run([self._tool("llama-quantize"), *head, source, target, bits.gguf_type])

    def measure(self, model: Path, work: Work) -> list[float]:
        rows = json_lines(run(self.command(model, work)))
        if not rows:
            raise MeasurementFailed(f"{self.name}: {work.name}: no figures in its output")
        return [rows[-1]["speed_tg"]] if work.is_parallel else list(rows[-1]["samples_ts"])

    def command(self, model: Path, work: Work) -> list[str]:
        """The last test of a run is the one that counts.

        `llama-bench` warms up by reading the same prompt; where that takes long, a short test stands in for it.
        """
        common = ["-m", str(model), "-t", f"{self.threads}", *self.extra]
        if work.is_parallel:
            context = work.batch * padded(DECODE_PROMPT_TOKENS + work.new)
            shape = ["-npp", f"{DECODE_PROMPT_TOKENS}", "-ntg", f"{work.new}", "-npl", f"{work.batch}"]
            return [self._tool("llama-batched-bench"), *common, *shape, "-c", f"{context}", "--output-format", "jsonl"]
        if work.is_prefill:
            shape = ["-p", f"{work.prompt}", "-n", "0"]
            if work.prompt > LONG_PROMPT:
                shape = ["-p", f"{WARM_UP_TOKENS},{work.prompt}", "-n", "0", "--no-warmup"]
        else:
            shape = ["-p", "0", "-n", f"{work.new}", "-d", f"{work.depth}"]
        return [self._tool("llama-bench"), *common, *shape, "-r", f"{work.repeats}", "-o", "jsonl"]

    def _tool(self, name: str) -> str:
        path = self.build / "bin" / name
        if not path.exists():
            raise SystemExit(f"{path} is missing; llama.cpp's build targets are {', '.join(TOOLS)}")
        return str(path)


@dataclass(frozen=True, slots=True)
class LlamaCppPython:
    """llama.cpp by the bindings in `llama-cpp-python`, one request at a time."""

    threads: int
    name: str = "llama-cpp-python"

    @property
    def version(self) -> str:
        return run(self._child("version")).strip()

    @property
    def sources(self) -> Path | None:
        return None

    def can(self, work: Work) -> bool:
        """The parallel measurement belongs to `llama-batched-bench`, which the package does not contain."""
        return not work.is_parallel

    def quantise(self, source: Path, target: Path, bits: Bits) -> None:
        run(self._child("quantise", str(source), str(target), bits.gguf_type))

    def measure(self, model: Path, work: Work) -> list[float]:
        arguments = ("measure", str(model), *map(str, (self.threads, work.prompt, work.new, work.depth, work.repeats)))
        rates: list[float] = json.loads(run(self._child(*arguments)).splitlines()[-1])
        return rates

    def _child(self, *arguments: str) -> list[str]:
        return [sys.executable, str(BINDINGS), *arguments]


def choose_peer(build: Path | None, threads: int, extra: tuple[str, ...]) -> Peer:
    """llama.cpp from its build folder, else the bindings. Raises SystemExit that says what to install."""
    if build is not None:
        return LlamaCpp(build, threads, extra)
    if importlib.util.find_spec("llama_cpp") is None:
        raise SystemExit("give --llama-cpp BUILD, a built llama.cpp, or `pip install llama-cpp-python`")
    return LlamaCppPython(threads)


def json_lines(output: str) -> list[dict[str, Any]]:
    """The objects among the lines of an output that also has other lines."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def padded(tokens: int) -> int:
    """llama.cpp divides its context among the sequences in multiples of this many tokens."""
    return -(-tokens // SEQUENCE_PAD) * SEQUENCE_PAD
