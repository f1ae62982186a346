"""ninfer against llama.cpp on this machine's CPU: the same random model, the same bits, the same threads, in turns.

The model has the geometry of the 0.8B family member (24 layers, vocabulary of 248320) and random weights. Both programs
run every work in a process of its own, one directly after the other, the first of a pair alternating. Tokens per second
mean the same for both: prefill reads a prompt, decode writes tokens with nothing else in the time. Per pair the ratio
ninfer / llama.cpp is taken; the table has the medians. It also has the bytes per second that decoding cannot do without
(weights, keys and values, recurrent states read and written), and their share of the read bandwidth of memory, which
this script measures itself before and after every pair.

    python benchmarks/cpu_vs_llamacpp.py --llama-cpp BUILD [--threads N] [--formats q4,q8,bf16:decode0]
        [--works prefill512,...] [--pairs 5] [--json FILE] [--keep DIR] [--peer-args=...]

A format with works of its own, as bf16:decode0+prefill512, is measured at those instead of `--works`.
BUILD is a llama.cpp build folder with bin/llama-bench, bin/llama-batched-bench and bin/llama-quantize. Without it the
package `llama-cpp-python` stands in, which has no parallel works. Writing GGUF files needs the package `gguf`, or the
sources of the build. Ctrl-C and SIGTERM end the run with the table of what was measured until then. One format takes
about twenty minutes on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from convert_speed import text_config, write_checkpoint
from peer.gguf_file import import_gguf, write_gguf
from peer.machine import ReadBandwidth, describe_machine, warm_page_cache
from peer.programs import MeasurementFailed, Ninfer, Peer, Program, choose_peer
from peer.results import Pair, Row, Weights, summarise, table, write_json
from peer.works import BITS, WORKS, Bits, Series, StateBytes, Work, read_series, state_bytes

from ninfer.convert import convert
from ninfer.runtime.options import physical_cores

DEMO = Path(__file__).resolve().parents[1] / "examples" / "demo"
FRONTEND = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
QUIET_LOAD = 0.5


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The same weights at the same bits, once for each program, and what is measured with them."""

    series: Series
    ours: Path
    peer: Path

    @property
    def bits(self) -> Bits:
        return self.series.bits

    @property
    def weights(self) -> Weights:
        return Weights(self.ours.stat().st_size, self.peer.stat().st_size)


class Workshop:
    """Makes files in `folder`, and only those that are not there yet. A file has its name once it is complete."""

    def __init__(self, folder: Path, layers: int, peer: Peer) -> None:
        self._folder, self._layers, self._peer = folder, layers, peer

    def files(self, series: Series) -> ModelFiles:
        bits = series.bits
        source = self._made(f"source-{self._layers}", self._write_source)
        whole = self._made(f"bf16-{self._layers}.gguf", lambda path: self._write_gguf(source, path))
        ours = self._made(
            f"{bits.recipe}-{self._layers}.ninfer", lambda path: convert(source, path, recipe=bits.recipe)
        )
        if bits.name == "bf16":
            return ModelFiles(series, ours, whole)
        name = f"{bits.gguf_type}-{self._layers}.gguf"
        return ModelFiles(series, ours, self._made(name, lambda path: self._peer.quantise(whole, path, bits)))

    def _made(self, name: str, make: Callable[[Path], Any]) -> Path:
        path = self._folder / name
        if path.exists():
            say(f"reusing {path}")
            return path
        say(f"writing {path}")
        unfinished = path.with_name(f"unfinished-{name}")
        _remove(unfinished)
        make(unfinished)
        return unfinished.rename(path)

    def _write_source(self, path: Path) -> None:
        path.mkdir()
        write_checkpoint(path, self._layers)
        for name in FRONTEND:
            shutil.copy(DEMO / name, path / name)

    def _write_gguf(self, source: Path, path: Path) -> None:
        write_gguf(import_gguf(self._peer.sources), source, path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


@dataclass(slots=True)
class Comparison:
    """The run: what was asked, and what is known so far."""

    ours: Program
    peer: Peer
    files: Sequence[ModelFiles]
    pairs_wanted: int
    state: StateBytes
    bandwidth: ReadBandwidth
    report: Callable[[Comparison], None]
    pairs: list[Pair] = field(default_factory=list)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)

    def run(self) -> None:
        """Round by round through all formats and works, so that a run that is cut short has something of each."""
        runs = (work.runs(self.pairs_wanted) for files in self.files for work in files.series.works)
        for turn in range(max(runs, default=0)):
            for files in self.files:
                works = [work for work in files.series.works if turn < work.runs(self.pairs_wanted)]
                if works:
                    warm_page_cache(files.ours, files.peer)
                for work in works:
                    if (files.bits.name, work.name) not in self.failures:
                        self._measure(turn, files, work)
                        self.report(self)

    def _measure(self, turn: int, files: ModelFiles, work: Work) -> None:
        before = self.bandwidth.measure()
        try:
            ours, peer = self._both(turn, files, work)
        except MeasurementFailed as failure:
            self.failures[files.bits.name, work.name] = str(failure)
            say(f"{files.bits.name} {work.name}: {failure}")
            return
        read = (before + self.bandwidth.measure()) / 2
        self.pairs += [Pair(files.bits.name, work.name, *rates, read) for rates in zip(ours, peer, strict=True)]
        for pair in self.pairs[-len(ours) :]:
            say(
                f"[{turn + 1}/{work.runs(self.pairs_wanted)}] {pair.bits:<5}{pair.work:<12} {self.ours.name} "
                f"{pair.ours:8.1f}  {self.peer.name} {pair.peer:8.1f} tokens/s  ratio {pair.ratio:5.2f}  "
                f"(memory {pair.read / 1e9:.1f} GB/s)"
            )

    def _both(self, turn: int, files: ModelFiles, work: Work) -> tuple[list[float], list[float]]:
        if turn % 2:
            peer = self.peer.measure(files.peer, work)
            return self.ours.measure(files.ours, work), peer
        ours = self.ours.measure(files.ours, work)
        return ours, self.peer.measure(files.peer, work)

    def rows(self) -> list[Row]:
        """Medians of what is known so far, in the order of the formats and works."""
        rows = []
        for files in self.files:
            for work in files.series.works:
                pairs = [pair for pair in self.pairs if (pair.bits, pair.work) == (files.bits.name, work.name)]
                rows += [summarise(work, pairs, files.weights, self.state)] if pairs else []
        return rows


def say(line: str) -> None:
    """Progress goes to stderr at once; stdout has only the results."""
    print(line, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", type=Path, metavar="BUILD", help="a llama.cpp build folder")
    parser.add_argument("--threads", type=int, default=physical_cores(), help="of both programs; physical cores")
    parser.add_argument("--formats", default="q4", help=f"of {','.join(BITS)}, also with works: bf16:decode0; q4")
    parser.add_argument("--works", default=",".join(WORKS), help="all of %(default)s; parallel8 alone, for example")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of figures per work, at least; 5")
    parser.add_argument("--layers", type=int, default=24, help="fewer make a trial run short; 24")
    parser.add_argument("--json", type=Path, metavar="FILE", help="results, rewritten after every pair")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="models are kept there, and taken from there")
    parser.add_argument("--peer-args", default="", help="further arguments of llama.cpp's programs, such as '-fa off'")
    options = parser.parse_args()
    try:
        options.series = read_series(options.formats, options.works)
    except ValueError as error:
        parser.error(str(error))
    return options


@contextlib.contextmanager
def model_folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    else:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep


def possible(series: Series, peer: Peer) -> Series:
    """Without the works that the peer cannot do; those are named."""
    impossible = [work.name for work in series.works if not peer.can(work)]
    if impossible:
        say(f"{peer.name} cannot do {', '.join(impossible)}; --llama-cpp BUILD can")
    return Series(series.bits, [work for work in series.works if peer.can(work)])


def describe(options: argparse.Namespace, peer: Peer, bandwidth: ReadBandwidth) -> dict[str, Any]:
    """What the figures depend on, for the head of the report."""
    threads = sorted({1, options.threads})
    return {
        "machine": asdict(describe_machine()),
        "peer": {"name": peer.name, "version": peer.version, "arguments": options.peer_args},
        "settings": {"threads": options.threads, "pairs": options.pairs, "layers": options.layers},
        "read_bytes_per_s": {f"{count}": bandwidth.measure(count) for count in threads},
    }


def print_header(header: dict[str, Any]) -> None:
    machine = header["machine"]
    print(f"{machine['cpu']}, {' '.join(machine['isa'])}, {header['settings']['threads']} threads of {os.cpu_count()}")
    print(f"{header['peer']['name']}: {header['peer']['version']} {header['peer']['arguments']}")
    for threads, speed in header["read_bytes_per_s"].items():
        print(f"memory read by {threads} threads: {speed / 1e9:.1f} GB/s", flush=True)
    if machine["load"] > QUIET_LOAD:
        say(f"load average {machine['load']:.1f}: other programs are running, the figures will be noisy")


def main() -> int:
    options = parse()
    peer = choose_peer(options.llama_cpp, options.threads, tuple(shlex.split(options.peer_args)))
    series = [possible(each, peer) for each in options.series]
    bandwidth = ReadBandwidth(options.threads)
    header = describe(options, peer, bandwidth)
    print_header(header)
    started = time.monotonic()

    def report(comparison: Comparison) -> None:
        failures = [{"bits": key[0], "work": key[1], "error": error} for key, error in comparison.failures.items()]
        seconds = {"seconds": round(time.monotonic() - started)}
        if options.json:
            write_json(options.json, header | seconds | {"failures": failures}, comparison.pairs, comparison.rows())

    with model_folder(options.keep) as folder:
        workshop = Workshop(folder, options.layers, peer)
        files = [workshop.files(each) for each in series]
        for each in files:
            ours, theirs = each.weights.ours / 1e6, each.weights.peer / 1e6
            print(f"{each.bits.name}: ninfer {ours:.0f} MB, {peer.name} {theirs:.0f} MB", flush=True)
        started = time.monotonic()
        state = state_bytes(text_config(options.layers))
        ninfer = Ninfer(options.threads)
        comparison = Comparison(ninfer, peer, files, options.pairs, state, bandwidth, report)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            comparison.run()
        print(table(comparison.rows(), ninfer.name, peer.name))
    return 1 if comparison.failures else 0


if __name__ == "__main__":
    sys.exit(main())
