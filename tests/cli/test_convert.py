"""`ninfer convert`: options become settings, the report is shown, real checkpoints are converted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ninfer.cli import factories
from ninfer.cli.commands.convert import DEFAULT_PROPOSAL_ROWS
from ninfer.convert import ConvertPhase, ConvertProgress, ConvertReport, ObjectReport
from ninfer.errors import ConfigError
from tests.checkpoints import dense_checkpoint
from tests.cli.conftest import Invoke

REPORT = ConvertReport(
    path=Path("out.ninfer"),
    recipe="q8",
    components=("text", "mtp"),
    files=((Path("out.ninfer"), 300),),
    objects=(ObjectReport("text/a", "q8_g32_fp16", "absmax", (2, 128), 512, 300),),
    ignored_fields=("dtype",),
    unused_tensors=tuple(f"t{i}" for i in range(10)),
    source_bytes=512,
    artifact_bytes=300,
    seconds=0.5,
    peak_bytes=1 << 20,
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, Path, Mapping[str, Any]]]:
    """What the converter was asked; it always answers REPORT."""
    asked = []

    def convert(
        source: Path, out: Path, progress: Callable[[ConvertProgress], None], settings: Mapping[str, Any]
    ) -> ConvertReport:
        progress(ConvertProgress(ConvertPhase.ENCODING, 1, 2))
        asked.append((source, out, settings))
        return REPORT

    monkeypatch.setattr(factories, "convert", convert)
    return asked


def test_every_option_reaches_the_converter(invoke: Invoke, calls: list[tuple[Path, Path, Mapping[str, Any]]]) -> None:
    options = (
        "--recipe r.py:f --override o.py --override p.py:g --components text,mtp --source dflash=d --source mtp=m"
        " --resource tokenizer.json=t.json --proposal 99 --proposal-ranking rank.txt --name Demo"
        " --shard-limit 100000 --overwrite"
    )
    assert invoke("convert", "hf", "out.ninfer", *options.split()).exit_code == 0
    [(source, out, settings)] = calls
    assert (source, out) == (Path("hf"), Path("out.ninfer"))
    assert settings == {
        "recipe": "r.py:f",
        "overrides": ("o.py", "p.py:g"),
        "components": ("text", "mtp"),
        "sources": {"dflash": Path("d"), "mtp": Path("m")},
        "resources": {"tokenizer.json": Path("t.json")},
        "proposal": 99,
        "proposal_ranking": Path("rank.txt"),
        "name": "Demo",
        "shard_limit": 100000,
        "overwrite": True,
    }


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        ([], None),
        (["--proposal"], DEFAULT_PROPOSAL_ROWS),
        (["--proposal", "500"], 500),
        (["--proposal", "--overwrite"], DEFAULT_PROPOSAL_ROWS),
    ],
)
def test_the_rows_of_the_proposal_are_optional(
    invoke: Invoke, calls: list[tuple[Path, Path, Mapping[str, Any]]], arguments: list[str], rows: int | None
) -> None:
    assert invoke("convert", "hf", "out.ninfer", *arguments).exit_code == 0
    assert calls[0][2]["proposal"] == rows


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--source", "nopath"], "NAME=PATH"),
        (["--source", "a=1", "--source", "a=2"], "twice"),
        (["--resource", "=x"], "NAME=PATH"),
        (["--components", "text,,mtp"], "empty name"),
        (["--proposal", "-3"], "--proposal"),
        (["--shard-limit", "0"], "--shard-limit"),
    ],
)
def test_malformed_options_exit_2(
    invoke: Invoke, calls: list[tuple[Path, Path, Mapping[str, Any]]], arguments: list[str], said: str
) -> None:
    result = invoke("convert", "hf", "out.ninfer", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert calls == []


@pytest.mark.usefixtures("calls")
def test_the_report_is_a_table_or_one_object(invoke: Invoke) -> None:
    shown = invoke("convert", "hf", "out.ninfer")
    for word in ("q8_g32_fp16", "absmax", "text, mtp", "0.586"):
        assert word in shown.stdout
    assert "10 source tensors not used: t0, t1, t2, t3, t4, t5, t6, t7, … 2 more" in shown.stderr
    report = json.loads(invoke("convert", "hf", "out.ninfer", "--json").stdout)
    assert report["files"] == [{"path": "out.ninfer", "bytes": 300}]
    assert report["objects"][0]["shape"] == [2, 128]


def test_a_refusal_is_one_line(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ConfigError("hf/config.json: text_config.hidden_act: expected 'silu', got 'relu'")

    monkeypatch.setattr(factories, "convert", refuse)
    result = invoke("convert", "hf", "out.ninfer")
    assert result.exit_code == 1
    assert result.stderr == "error: hf/config.json: text_config.hidden_act: expected 'silu', got 'relu'\n"


def test_a_tiny_checkpoint_is_converted_and_inspected(invoke: Invoke, tmp_path: Path) -> None:
    source, out = tmp_path / "hf", tmp_path / "tiny.ninfer"
    dense_checkpoint(source)
    report = json.loads(invoke("convert", source, out, "--recipe", "q8", "--json").stdout)
    assert report["path"] == str(out)
    assert report["artifact_bytes"] == out.stat().st_size
    again = invoke("convert", source, out, "--recipe", "q8")
    assert again.exit_code == 1
    assert "--overwrite" in again.stderr
    assert invoke("inspect", out, "--verify").exit_code == 0


def test_a_missing_checkpoint_leaves_nothing(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("convert", tmp_path / "absent", tmp_path / "out.ninfer")
    assert result.exit_code == 1
    assert "absent" in result.stderr
    assert list(tmp_path.iterdir()) == []
