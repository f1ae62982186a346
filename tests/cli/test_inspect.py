"""`ninfer inspect`, on real artifacts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.artifact.conftest import Sample, build_sample
from tests.cli.conftest import Invoke


@pytest.fixture
def sample() -> Sample:
    return build_sample()


@pytest.fixture
def artifact(sample: Sample, tmp_path: Path) -> Path:
    return sample.write(tmp_path / "sample.ninfer")


def test_tables_name_components_and_formats(invoke: Invoke, artifact: Path, sample: Sample) -> None:
    result = invoke("inspect", artifact)
    assert result.exit_code == 0
    for name in sample.directory.components:
        assert name in result.stdout
    assert "q4_g64_fp16" in result.stdout


def test_json_sizes_add_up(invoke: Invoke, artifact: Path, sample: Sample) -> None:
    report = json.loads(invoke("inspect", artifact, "--json", "--tensors").stdout)
    total = sum(stored.bytes for stored in sample.directory.objects)
    assert report["total"]["bytes"] == total
    assert sum(component["bytes"] for component in report["components"].values()) == total
    assert sum(share["bytes"] for share in report["formats"]) == total
    assert [item["id"] for item in report["objects"]] == [stored.id for stored in sample.directory.objects]
    assert report["path"] == str(artifact)
    assert set(report["configs"]) == set(sample.directory.components)


def test_tensors_lists_every_object(invoke: Invoke, artifact: Path, sample: Sample) -> None:
    shown = invoke("inspect", artifact, "--tensors").stdout
    for stored in sample.directory.objects:
        assert stored.id in shown


def test_verify_passes_an_intact_file(invoke: Invoke, artifact: Path) -> None:
    result = invoke("inspect", artifact, "--verify")
    assert result.exit_code == 0
    assert "verified" in result.stderr
    assert json.loads(invoke("inspect", artifact, "--verify", "--json").stdout)["verify"]["ok"] is True


def test_a_truncated_file_is_refused(invoke: Invoke, artifact: Path) -> None:
    artifact.write_bytes(artifact.read_bytes()[:-1])
    result = invoke("inspect", artifact)
    assert result.exit_code == 1
    assert str(artifact) in result.stderr


@pytest.mark.parametrize(("damage", "message"), [("missing", "cannot open"), ("truncated", "expected")])
def test_a_part_that_is_not_whole_is_named_without_verify(
    invoke: Invoke, sample: Sample, tmp_path: Path, damage: str, message: str
) -> None:
    artifact = sample.write(tmp_path / "sample.ninfer", 12_288)
    assert invoke("inspect", artifact).exit_code == 0
    part = tmp_path / "sample.ninfer.part-0002"
    if damage == "missing":
        part.unlink()
    else:
        part.write_bytes(part.read_bytes()[:-1])
    result = invoke("inspect", artifact)
    assert result.exit_code == 1
    assert f"problem: {part}: {message}" in result.stderr
    assert "1 problem(s)" in result.stderr
    assert set(sample.directory.components) <= set(result.stdout.split())
