"""`ninfer bench`: modes, reports, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ninfer.errors import RequestError, RequestErrorKind
from ninfer.types import EngineOptions
from tests.cli.conftest import Invoke
from tests.cli.fakes import FakeEngine


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    records = [
        {"timestamp": 0, "messages": [{"role": "user", "content": "Hi"}], "output_length": 4, "session": "s"},
        {"timestamp": 1, "input_length": 30, "output_length": 4},
        {"timestamp": 2, "input_length": 600, "output_length": 4},
        {"timestamp": 3, "input_length": 40, "output_length": 4, "hash_ids": [3]},
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def options_of(engine: FakeEngine) -> EngineOptions:
    assert engine.opened is not None
    return engine.opened[1]


def test_a_trace_is_replayed_and_reported(
    invoke: Invoke, model: Path, engine: FakeEngine, trace: Path, tmp_path: Path
) -> None:
    out, plot = tmp_path / "r.json", tmp_path / "r.png"
    result = invoke("bench", "-m", model, "--trace", trace, "--json", out, "--plot", plot, "--slo-ttft-ms", "5000")
    assert result.exit_code == 0, result.stderr
    assert "skipped 1 requests beyond the context of 512 tokens" in result.stderr
    for word in ("time to first token", "p99", "goodput", "KV occupancy", "25.0%"):
        assert word in result.stdout
    report = json.loads(out.read_text())
    assert report["mode"] == "trace"
    assert report["settings"]["form"] == "mooncake"
    assert report["settings"]["loop"] == "open"
    assert (report["report"]["completed"], report["report"]["skipped"]) == (3, 1)
    assert report["report"]["goodput_ratio"] == 1.0
    assert [item["index"] for item in report["requests"]] == [0, 1, 3]
    assert report["model"]["name"] == "fake"
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert [request.session_key for request in engine.requests] == ["s", None, None]
    assert options_of(engine).max_concurrency == 1


def test_json_on_stdout_replaces_the_tables(invoke: Invoke, model: Path, engine: FakeEngine, trace: Path) -> None:
    result = invoke("bench", "-m", model, "--trace", trace, "--json", "-", "--limit", "2")
    assert json.loads(result.stdout)["report"]["completed"] == 2


@pytest.mark.parametrize(("given", "lanes"), [([], 3), (["--max-concurrency", "2"], 2)])
def test_a_closed_loop_takes_a_lane_per_client_unless_told(
    invoke: Invoke, model: Path, engine: FakeEngine, trace: Path, given: list[str], lanes: int
) -> None:
    result = invoke("bench", "-m", model, "--trace", trace, "--concurrency", "3", "--json", "-", *given)
    settings = json.loads(result.stdout)["settings"]
    assert (settings["loop"], settings["concurrency"]) == ("closed", 3)
    assert options_of(engine).max_concurrency == lanes


def test_refused_requests_are_counted_and_named(invoke: Invoke, model: Path, engine: FakeEngine, trace: Path) -> None:
    engine.script.append(RequestError(RequestErrorKind.OVERLOADED, "64 requests wait already"))
    result = invoke("bench", "-m", model, "--trace", trace, "--json", "-")
    assert json.loads(result.stdout)["report"]["refused"] == 1
    assert "64 requests wait already" in result.stderr


def test_micro_measures_the_standard_points(invoke: Invoke, model: Path, engine: FakeEngine) -> None:
    result = invoke("bench", "-m", model, "--micro", "--repeat", "1", "--json", "-")
    assert result.exit_code == 0, result.stderr
    points = json.loads(result.stdout)["results"]
    assert [point["point"] for point in points] == ["pp64", "pp256", "tg32 B=1", "tg32 B=2", "tg32 B=4", "tg32 B=8"]
    assert all(point["tokens_per_second"]["median"] > 0 for point in points)
    options = options_of(engine)
    assert (options.max_concurrency, options.max_context, options.kv_capacity) == (8, 257, 40)


def test_chosen_points_and_their_table(invoke: Invoke, model: Path, engine: FakeEngine) -> None:
    result = invoke("bench", "-m", model, "--pp", "100", "--tg", "20", "--concurrency", "2", "--repeat", "2")
    assert result.exit_code == 0, result.stderr
    assert "pp100" in result.stdout
    assert "tg20 B=2" in result.stdout
    assert len(engine.requests) == 3 * (1 + 2)


def test_writing_at_a_depth_has_room_to_keep_the_prompts(invoke: Invoke, model: Path, engine: FakeEngine) -> None:
    result = invoke("bench", "-m", model, "--tg", "20", "--depth", "300", "--repeat", "1", "--json", "-")
    assert result.exit_code == 0, result.stderr
    [point] = json.loads(result.stdout)["results"]
    assert (point["point"], point["prompt_tokens"]) == ("tg20 B=1 @ d300", 300)
    assert len(point["tokens_per_second"]["all"]) == 1
    options = options_of(engine)
    assert (options.max_context, options.kv_capacity) == (320, 10)


def test_a_depth_is_one_of_writing(invoke: Invoke, model: Path, engine: FakeEngine) -> None:
    result = invoke("bench", "-m", model, "--pp", "20", "--depth", "300")
    assert result.exit_code == 2
    assert "--depth needs --tg" in result.stderr
    assert engine.opened is None


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--concurrency", "2", "--speed", "2"], 2, "--speed"),
        (["--plot", "/nosuch/p.png"], 1, "does not exist"),
        (["--json", "/nosuch/r.json"], 1, "does not exist"),
        (["--speed", "0"], 2, "--speed"),
    ],
)
def test_impossible_requests_are_refused_before_loading(
    invoke: Invoke, model: Path, engine: FakeEngine, trace: Path, arguments: list[str], code: int, said: str
) -> None:
    result = invoke("bench", "-m", model, "--trace", trace, *arguments)
    assert result.exit_code == code
    assert said in result.stderr
    assert engine.opened is None


def test_a_bad_trace_is_named(invoke: Invoke, model: Path, engine: FakeEngine, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    for path, said in ((bad, "line 1"), (tmp_path / "no.jsonl", "no.jsonl"), (tmp_path, "directory")):
        result = invoke("bench", "-m", model, "--trace", path)
        assert result.exit_code == 1
        assert said in result.stderr
    assert engine.opened is None
