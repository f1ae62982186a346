"""Where frontend resources come from, and which components a conversion takes by default."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ninfer.artifact.reader import ArtifactReader
from ninfer.convert import convert
from ninfer.errors import ConfigError
from tests.checkpoints import CHAT_TEMPLATE, Checkpoint

Copy = Callable[[Checkpoint], Path]


def resource(artifact: Path, role: str) -> bytes:
    with ArtifactReader.open(artifact) as reader:
        return reader.resource(role)


@pytest.mark.parametrize(
    ("file", "value"),
    [
        ("chat_template.json", CHAT_TEMPLATE),
        ("tokenizer_config.json", CHAT_TEMPLATE),
        ("tokenizer_config.json", [{"name": "rag", "template": "x"}, {"name": "default", "template": CHAT_TEMPLATE}]),
    ],
)
def test_a_template_elsewhere(plain: Checkpoint, copied: Copy, tmp_path: Path, file: str, value: object) -> None:
    source = copied(plain)
    (source / "chat_template.jinja").unlink()
    members = json.loads((source / file).read_text()) if (source / file).exists() else {}
    (source / file).write_text(json.dumps({**members, "chat_template": value}))
    convert(source, tmp_path / "m.ninfer", recipe="q8")
    assert resource(tmp_path / "m.ninfer", "chat_template.jinja").decode() == CHAT_TEMPLATE


def test_given_files_win(plain: Checkpoint, tmp_path: Path) -> None:
    mine = tmp_path / "mine.jinja"
    mine.write_text("{{ messages }}")
    convert(plain.path, tmp_path / "m.ninfer", recipe="q8", resources={"chat_template.jinja": mine})
    assert resource(tmp_path / "m.ninfer", "chat_template.jinja") == b"{{ messages }}"


def test_vision_without_its_resources_is_left_out_unless_asked_for(
    dense: Checkpoint, copied: Copy, tmp_path: Path
) -> None:
    source = copied(dense)
    (source / "preprocessor_config.json").rename(tmp_path / "kept.json")
    assert convert(source, tmp_path / "a.ninfer", recipe="q8").components == ("text", "mtp")
    with pytest.raises(ConfigError, match=r"preprocessor_config\.json: file is missing; give it with --resource"):
        convert(source, tmp_path / "b.ninfer", recipe="q8", components=["text", "vision"])
    given = {"preprocessor_config.json": tmp_path / "kept.json"}
    report = convert(source, tmp_path / "c.ninfer", recipe="q8", resources=given)
    assert report.components == ("text", "vision", "mtp")


def test_mtp_that_cannot_be_computed_is_left_out_unless_asked_for(
    dense: Checkpoint, copied: Copy, tmp_path: Path
) -> None:
    source = copied(dense)
    config = json.loads((source / "config.json").read_text())
    config["text_config"]["mtp_num_hidden_layers"] = 2
    (source / "config.json").write_text(json.dumps(config))
    assert convert(source, tmp_path / "a.ninfer", recipe="q8").components == ("text", "vision")
    with pytest.raises(ConfigError, match="only one MTP layer is supported"):
        convert(source, tmp_path / "b.ninfer", recipe="q8", components=["text", "mtp"])
