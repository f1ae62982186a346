"""The pure parts of the comparison with llama.cpp: byte counts, commands, parsing, medians, reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.convert_speed import text_config
from benchmarks.peer.gguf_file import gguf_name
from benchmarks.peer.machine import isa_flags
from benchmarks.peer.programs import LlamaCpp, LlamaCppPython, Ninfer, json_lines
from benchmarks.peer.results import Pair, Weights, summarise, table, write_json
from benchmarks.peer.works import (
    BITS,
    WORKS,
    StateBytes,
    Work,
    bytes_per_second,
    read_series,
    state_bytes,
    step_bytes,
)
from ninfer.models.qwen3_5.config import ModelConfig
from ninfer.models.qwen3_5.inventory import inventory

MODEL = Path("m.file")
[PREFILL] = WORKS["prefill2048"]
[DEEP] = WORKS["decode4096"]
PARALLEL = WORKS["parallel"][2]
STATE = StateBytes(per_token=10, recurrent=1000)


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A llama.cpp build folder with the two benchmarks, which nobody runs."""
    (tmp_path / "bin").mkdir()
    for name in ("llama-bench", "llama-batched-bench"):
        (tmp_path / "bin" / name).touch()
    return tmp_path


def test_state_of_the_full_geometry() -> None:
    state = state_bytes(text_config(24))
    # 6 attention layers: keys and values of 2 heads of 256 in two bytes each.
    assert state.per_token == 6 * 2 * 2 * 256 * 2
    # 18 GDN layers in fp32: 16 heads of 128 x 128, and 3 columns of 6144 channels.
    assert state.recurrent == 18 * 4 * (16 * 128 * 128 + 3 * 6144)


def test_a_step_reads_weights_once_and_the_state_of_every_request() -> None:
    assert step_bytes(Work("w", new=8), 5000, STATE) == 5000 + (16 + 4) * 10 + 2000
    assert step_bytes(Work("w", new=8, batch=3, depth=100), 5000, STATE) == 5000 + 3 * (104 * 10 + 2000)


def test_bytes_per_second_count_steps_not_tokens() -> None:
    work = Work("w", new=8, batch=4)
    assert bytes_per_second(work, 20.0, 5000, STATE) == 5 * step_bytes(work, 5000, STATE)
    assert bytes_per_second(PREFILL, 20.0, 5000, STATE) is None


@pytest.mark.parametrize(("repeats", "pairs", "runs"), [(1, 5, 5), (3, 5, 2), (3, 6, 2), (3, 7, 3)])
def test_there_are_as_many_runs_as_the_pairs_need(repeats: int, pairs: int, runs: int) -> None:
    assert Work("w", repeats=repeats).runs(pairs) == runs


def test_every_tensor_of_a_checkpoint_has_a_name_of_its_own() -> None:
    model = ModelConfig.from_artifact({"text": text_config(4)}, "test")
    sources = {spec.source.tensor for spec in inventory(model) if spec.source}
    names = [gguf_name(f"model.{tensor}") for tensor in sources]
    assert len(set(names)) == len(names)
    assert {"token_embd.weight", "output_norm.weight", "blk.0.ssm_a", "blk.3.attn_q.weight"} < set(names)


def test_both_programs_are_asked_for_the_same_decoding_at_a_depth(build: Path) -> None:
    ours = " ".join(Ninfer(2).command(MODEL, DEEP))
    peer = " ".join(LlamaCpp(build, 2).command(MODEL, DEEP))
    assert "--tg 128 --concurrency 1 --depth 4096 --threads 2 --repeat 3" in ours
    assert peer.endswith("llama-bench -m m.file -t 2 -p 0 -n 128 -d 4096 -r 3 -o jsonl")


def test_both_programs_are_asked_for_the_same_prefill(build: Path) -> None:
    assert "--pp 2048 --threads 2 --repeat 1" in " ".join(Ninfer(2).command(MODEL, PREFILL))
    peer = " ".join(LlamaCpp(build, 2, ("-fa", "off")).command(MODEL, PREFILL))
    assert "llama-bench -m m.file -t 2 -fa off -p 128,2048 -n 0 --no-warmup -r 1" in peer


def test_both_programs_are_asked_for_the_same_parallel_decoding(build: Path) -> None:
    assert "--tg 32 --concurrency 4 --depth 0" in " ".join(Ninfer(2).command(MODEL, PARALLEL))
    peer = " ".join(LlamaCpp(build, 2).command(MODEL, PARALLEL))
    assert "llama-batched-bench -m m.file -t 2 -npp 16 -ntg 32 -npl 4 -c 1024" in peer


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="llama-quantize is missing"):
        LlamaCpp(tmp_path, 2).quantise(MODEL, MODEL, BITS["q4"])


def test_sources_are_those_of_the_build(tmp_path: Path) -> None:
    assert LlamaCpp(tmp_path, 2).sources is None
    (tmp_path / "CMakeCache.txt").write_text("A:STRING=b\nCMAKE_HOME_DIRECTORY:INTERNAL=/src/llama.cpp\n")
    assert LlamaCpp(tmp_path, 2).sources == Path("/src/llama.cpp")


def test_the_bindings_have_no_parallel_works() -> None:
    works = [work for group in WORKS.values() for work in group]
    assert [work.name for work in works if not LlamaCppPython(2).can(work)] == [f"parallel{n}" for n in (1, 2, 4, 8)]


def test_figures_are_found_among_other_lines() -> None:
    assert json_lines('loading\n{"a": 1}\n\n{"a": 2}\nbye {') == [{"a": 1}, {"a": 2}]


def test_flags_are_those_that_matter_to_kernels() -> None:
    assert isa_flags("model name\t: X\nflags\t\t: fpu avx avx2 fma sse\nflags\t\t: other\n") == ("avx2", "fma")
    assert isa_flags("Features\t: fp asimddp i8mm\n") == ("asimddp", "i8mm")
    assert isa_flags("") == ()


def test_the_ratio_is_the_median_of_the_ratios() -> None:
    work = Work("w", new=8)
    pairs = [Pair("q4", "w", ours, peer, 1e6) for ours, peer in ((10, 10), (30, 20), (40, 80))]
    row = summarise(work, pairs, Weights(5000, 6000), STATE)
    assert (row.ours, row.peer, row.ratio) == (30, 20, 1.0)
    assert (row.lowest_ratio, row.highest_ratio, row.pairs) == (0.5, 1.5, 3)
    assert row.ours_share == pytest.approx(30 * step_bytes(work, 5000, STATE) / 1e6)
    assert row.peer_share == pytest.approx(20 * step_bytes(work, 6000, STATE) / 1e6)


def test_reports_hold_every_row_and_pair(tmp_path: Path) -> None:
    pair = Pair("q4", "prefill2048", 30.0, 20.0, 1e9)
    row = summarise(PREFILL, [pair], Weights(1, 1), STATE)
    assert table([row], "ninfer", "llama.cpp").splitlines()[2] == (
        "| q4 | prefill2048 | 1 | 30.0 | 20.0 | 1.50 | 1.50–1.50 | – | – |"
    )
    decoding = summarise(Work("w", new=8), [pair], Weights(10**9, 10**9), STATE)
    assert "30.0 (3000%)" in table([decoding], "ninfer", "llama.cpp")
    target = tmp_path / "r.json"
    write_json(target, {"threads": 2}, [pair], [row])
    result = json.loads(target.read_text())
    assert (result["threads"], result["pairs"][0]["ours"], result["summary"][0]["ratio"]) == (2, 30.0, 1.5)
    assert [path.name for path in tmp_path.glob("r.json*")] == ["r.json"]


def test_a_format_may_name_works_of_its_own() -> None:
    asked = read_series("q4,bf16:decode0+parallel8", "prefill512,parallel")
    assert [(each.bits.name, [work.name for work in each.works]) for each in asked] == [
        ("q4", ["prefill512", "parallel1", "parallel2", "parallel4", "parallel8"]),
        ("bf16", ["decode0", "parallel8"]),
    ]


@pytest.mark.parametrize(
    ("formats", "works", "named"), [("q9", "decode0", "q9"), ("q4", "decode9", "decode9"), ("q4:x", "decode0", "x")]
)
def test_unknown_formats_and_works_are_named(formats: str, works: str, named: str) -> None:
    with pytest.raises(ValueError, match=f"unknown (format|work): {named}; known: "):
        read_series(formats, works)
