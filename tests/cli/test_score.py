"""`ninfer score`: reports, token lines, refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ninfer.cli import factories
from ninfer.errors import ConfigError
from tests.cli.conftest import Invoke


@pytest.fixture
def corpus(tmp_path: Path) -> list[Path]:
    names = {"a.txt": "abcd", "b.txt": "xy"}
    for name, text in names.items():
        (tmp_path / name).write_text(text)
    return [tmp_path / name for name in names]


@pytest.mark.usefixtures("scorer")
def test_report_on_stdout_and_in_a_file(invoke: Invoke, model: Path, corpus: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "report.json"
    result = invoke("score", *corpus, "-m", model, "--context", "10", "--output", output, "--json")
    report = json.loads(result.stdout)
    assert report == json.loads(output.read_text())
    assert report["streams"] == [
        {"stream": str(corpus[0]), "tokens": 4, "scored_tokens": 3, "mean_nll": 1.0, "perplexity": math.e},
        {"stream": str(corpus[1]), "tokens": 2, "scored_tokens": 1, "mean_nll": 1.0, "perplexity": math.e},
    ]
    assert report["overall"] == {"tokens": 6, "scored_tokens": 4, "mean_nll": 1.0, "perplexity": math.e}
    assert report["settings"]["context"] == 10
    assert report["settings"]["stride"] == 5
    assert report["settings"]["model"] == str(model)


@pytest.mark.usefixtures("scorer")
def test_the_table_names_every_file(
    invoke: Invoke, model: Path, corpus: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(corpus[0].parent)
    result = invoke("score", *(path.name for path in corpus), "-m", model)
    assert result.exit_code == 0
    for word in ("a.txt", "b.txt", "overall", "2.7183"):
        assert word in result.stdout


@pytest.mark.usefixtures("scorer")
def test_token_lines(invoke: Invoke, model: Path, corpus: list[Path], tmp_path: Path) -> None:
    lines = tmp_path / "tokens.jsonl"
    invoke("score", corpus[0], "-m", model, "--token-logprobs", lines)
    assert [json.loads(line) for line in lines.read_text().splitlines()] == [
        {"stream": str(corpus[0]), "index": index, "token_id": ord("abcd"[index]), "logprob": -1.0}
        for index in (1, 2, 3)
    ]


@pytest.mark.usefixtures("scorer")
def test_a_stream_with_nothing_to_score_has_null_figures(invoke: Invoke, model: Path, corpus: list[Path]) -> None:
    result = invoke("score", "-", corpus[0], "-m", model, "--json", stdin="x")
    first = json.loads(result.stdout)["streams"][0]
    assert first == {"stream": "-", "tokens": 1, "scored_tokens": 0, "mean_nll": None, "perplexity": None}


def test_a_failure_leaves_no_file(
    invoke: Invoke, model: Path, corpus: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ConfigError("--context must be at most 5")

    monkeypatch.setattr(factories, "open_scorer", broken)
    before = sorted(tmp_path.iterdir())
    options = ("--output", tmp_path / "r.json", "--token-logprobs", tmp_path / "t.jsonl")
    result = invoke("score", *corpus, "-m", model, *options)
    assert result.exit_code == 1
    assert "--context" in result.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_bad_corpora_are_named(invoke: Invoke, model: Path, tmp_path: Path) -> None:
    empty, latin = tmp_path / "empty.txt", tmp_path / "latin.txt"
    empty.write_bytes(b"")
    latin.write_bytes("naïve".encode("latin-1"))
    cases = {empty: "empty", latin: "0xef at offset 2", tmp_path / "no.txt": "no such file", tmp_path: "directory"}
    for path, said in cases.items():
        result = invoke("score", path, "-m", model)
        assert result.exit_code == 1
        assert said in result.stderr
        assert path.name in result.stderr


@pytest.mark.parametrize("flag", ["--output", "--token-logprobs"])
def test_impossible_outputs_are_refused_at_once(
    invoke: Invoke, model: Path, corpus: list[Path], tmp_path: Path, flag: str
) -> None:
    for path, said in ((tmp_path, "directory"), (tmp_path / "no" / "file", "does not exist")):
        result = invoke("score", *corpus, "-m", model, flag, path)
        assert result.exit_code == 1
        assert said in result.stderr
