"""Verification of whole artifacts, and the summary that `inspect` shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ninfer.artifact import codec
from ninfer.artifact.directory import Component, Directory, Part, PartsBinding, Use, WholeBinding
from ninfer.artifact.formats import Format
from ninfer.artifact.planning import place_objects, resource_object, tensor_object
from ninfer.artifact.reader import ArtifactReader
from ninfer.artifact.summary import RESOURCE, UNBOUND, owning_components, summarise
from ninfer.artifact.verify import VerifyReport, verify
from ninfer.artifact.writer import ArtifactWriter
from ninfer.errors import ArtifactError
from tests.artifact.conftest import Sample


def report(path: Path) -> VerifyReport:
    with ArtifactReader.open(path) as reader:
        return verify(reader)


@pytest.mark.parametrize("limit", [10**9, 12_288])
def test_a_sound_artifact_passes(sample: Sample, tmp_path: Path, limit: int) -> None:
    steps: list[tuple[int, int]] = []
    with ArtifactReader.open(sample.write(tmp_path / "m.ninfer", limit)) as reader:
        found = verify(reader, lambda done, total: steps.append((done, total)))
    total = sum(stored.bytes for stored in sample.directory.objects)
    assert found.ok
    assert (found.tensors, found.resources, found.bytes_checked) == (11, 2, total)
    assert found.unbound == ()
    assert steps[-1] == (total, total)
    assert steps == sorted(steps)


def test_every_damaged_tensor_is_reported(sample: Sample, artifact: Path) -> None:
    raw = bytearray(artifact.read_bytes())
    start = len(raw) - sample.directory.payload_bytes
    damaged = ("q8_g32_fp16", "fp8_e4m3fn_row_bf16", "nvfp4")
    for object_id in damaged:
        stored = sample.directory.object(object_id)
        raw[start + stored.offset + stored.bytes - 1] = 0xFF  # the last scale, or the divisor
    artifact.write_bytes(raw)
    problems = report(artifact).problems
    assert len(problems) == 3
    assert all(any(object_id in problem for problem in problems) for object_id in damaged)


def test_missing_parts_and_unknown_formats_are_reported(sample: Sample, tmp_path: Path) -> None:
    path = sample.write(tmp_path / "m.ninfer", 12_288)
    path.with_name("m.ninfer.part-0004").unlink()
    path.write_bytes(path.read_bytes().replace(b'"q4_g64_fp16","layout"', b'"q4_g96_fp16","layout"'))
    problems = report(path).problems
    assert sum("part-0004: cannot open" in problem for problem in problems) == 1
    assert any("does not know the format 'q4_g96_fp16'" in problem for problem in problems)


def write_auxiliary(path: Path, fmt: Format, values: list[float], role: str) -> Path:
    array = np.array(values, np.float32) if values[1:] else np.array(values[0], np.float32)
    weight, aux = np.ones((2, 128), np.float32), codec.encode(array, fmt)
    objects = place_objects([tensor_object("w", Format.Q4, (2, 128)), tensor_object("aux", fmt, array.shape)])
    use = Use("text/w", "x", auxiliaries={role: WholeBinding("aux")})
    directory = Directory({"text": Component({})}, objects, {"text/w": WholeBinding("w")}, (use,))
    with ArtifactWriter(path, directory) as out:
        out.write_object("w", codec.encode(weight, Format.Q4))
        out.write_object("aux", aux)
        out.commit()
    return path


@pytest.mark.parametrize(
    ("fmt", "values", "role", "message"),
    [
        (Format.FP32, [2.5], "activation_input_divisor", None),
        (Format.FP32, [0.0], "activation_input_divisor", "positive and finite"),
        (Format.FP32, [-1.0], "activation_input_divisor", "positive and finite"),
        (Format.FP32, [float("inf")], "activation_input_divisor", "positive and finite"),
        (Format.FP32, [float("nan")], "activation_input_divisor", "positive and finite"),
        (Format.FP32, [1.0, 2.0], "activation_input_divisor", "fp32 scalar"),
        (Format.BF16, [1.0], "activation_input_divisor", "fp32 scalar"),
        (Format.BF16, [1.0, -1.0] * 512, "hadamard_signs", None),
        (Format.BF16, [1.0, -1.0] * 511 + [1.0, 0.5], "hadamard_signs", "only \\+1 and -1"),
        (Format.BF16, [1.0] * 512, "hadamard_signs", "multiple of 1024"),
        (Format.FP32, [1.0] * 1024, "hadamard_signs", "bf16"),
        (Format.FP32, [0.0], "role_of_the_future", None),
    ],
)
def test_auxiliaries(tmp_path: Path, fmt: Format, values: list[float], role: str, message: str | None) -> None:
    found = report(write_auxiliary(tmp_path / "m.ninfer", fmt, values, role))
    if message is None:
        assert found.ok
    else:
        with pytest.raises(ArtifactError, match=message):
            raise ArtifactError("\n".join(found.problems))
        assert "use of 'text/w' with input 'x'" in found.problems[0]


def test_summary_attributes_objects_to_components() -> None:
    objects = place_objects(
        [
            tensor_object("embed", Format.Q4, (256, 128)),
            tensor_object("mtp_norm", Format.BF16, (128,)),
            tensor_object("shared_spec", Format.BF16, (64,)),
            tensor_object("patch", Format.FP32, (8, 8)),
            tensor_object("stray", Format.FP32, (2,)),
            resource_object("tokenizer", 1000),
            resource_object("image", 30),
        ]
    )
    bindings = {
        "text/embed": WholeBinding("embed"),
        "mtp/embed": WholeBinding("embed"),
        "mtp/norm": PartsBinding((Part("mtp_norm", 0, 64), Part("mtp_norm", 64, 128))),
        "mtp/x": WholeBinding("shared_spec"),
        "dflash/x": WholeBinding("shared_spec"),
        "vision/patch": WholeBinding("patch"),
    }
    components = {
        "text": Component({}, resources={"tokenizer": "tokenizer"}),
        "vision": Component({}, "text", {"preprocessor": "image"}),
    }
    summary = summarise(Directory(components, objects, bindings, metadata={"name": "m"}))
    assert [part.total.name for part in summary.components] == ["text", "dflash", "mtp", "vision", UNBOUND]
    sizes = {part.total.name: (part.total.bytes, part.total.elements) for part in summary.components}
    embed = 256 * 64 + 256 * 2 * 2
    assert sizes == {
        "text": (embed + 1000, 256 * 128),
        "dflash": (128, 64),
        "mtp": (256, 128),
        "vision": (256 + 30, 64),
        UNBOUND: (8, 2),
    }
    assert summary.total.bytes == sum(size for size, _ in sizes.values())
    text = next(part for part in summary.components if part.total.name == "text")
    assert [(share.name, share.bytes, share.bits_per_weight) for share in text.formats] == [
        ("q4_g64_fp16", embed, 4.25),
        (RESOURCE, 1000, None),
    ]
    assert summary.name == "m"
    assert summary.parameters == 6


def test_summary_counts_auxiliaries_with_their_parameter(sample: Sample) -> None:
    owners = owning_components(sample.directory)
    assert owners["divisor"] == owners["signs"] == owners["norm"] == owners["tokenizer"] == "text"
    assert owners["ids"] == "proposal"


def test_summary_works_on_formats_of_the_future(sample: Sample) -> None:
    objects = tuple(
        replace(stored, format="q3_g64_fp16") if stored.id == "q4_g64_fp16" else stored
        for stored in sample.directory.objects
    )
    summary = summarise(replace(sample.directory, objects=objects))
    assert "q3_g64_fp16" in [share.name for share in summary.formats]
    assert summary.total == summarise(sample.directory).total
