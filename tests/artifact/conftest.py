"""A small artifact that uses every feature of the directory, and helpers to write and reframe it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ninfer.artifact import codec
from ninfer.artifact.directory import (
    ActivationPolicy,
    Component,
    Directory,
    Part,
    PartsBinding,
    Proposal,
    ProposalDomain,
    Use,
    WholeBinding,
)
from ninfer.artifact.formats import Format
from ninfer.artifact.layouts import geometry
from ninfer.artifact.planning import place_objects, resource_object, tensor_object
from ninfer.artifact.writer import ArtifactWriter

RESOURCES = {"tokenizer": b'{"model": {}}' * 500, "template": b"{{ messages }}"}


@dataclass(frozen=True)
class Sample:
    """A directory without files, and the bytes of each of its objects."""

    directory: Directory
    data: dict[str, NDArray[np.uint8]]

    def write(self, path: Path, limit: int = 10**9, overwrite: bool = False) -> Path:
        with ArtifactWriter(path, self.directory, shard_limit=limit, overwrite=overwrite) as writer:
            for object_id, data in self.data.items():
                writer.write_object(object_id, data)
            writer.commit()
        return path


def build_sample() -> Sample:
    rng = np.random.default_rng(7)
    data: dict[str, NDArray[np.uint8]] = {}
    for fmt in (Format.Q4, Format.Q5, Format.Q6, Format.Q8, Format.FP8_ROW):
        data[fmt.value] = codec.encode(rng.standard_normal((21, 200)).astype(np.float32), fmt)
    codes, scales = rng.integers(-1, 2, (21, 200), np.int8), rng.integers(1, 0x7C00, (21, 2), np.uint16)
    data["t2_g128_fp16"] = codec.assemble(geometry(Format.T2, (21, 200)), codec.pack_grouped(codes, scales, Format.T2))
    data["nvfp4"] = codec.pack_nvfp4(
        rng.integers(0, 16, (128, 64), np.uint8), rng.integers(1, 0x7F, (128, 4), np.uint8), 2688.0
    )
    data["norm"] = codec.encode(rng.standard_normal(64).astype(np.float32), Format.BF16)
    data["signs"] = codec.encode(rng.choice(np.array([-1, 1], np.float32), 1024), Format.BF16)
    data["divisor"] = codec.encode(np.array(3.5, np.float32), Format.FP32)
    data["ids"] = codec.encode(np.arange(9, dtype=np.int32), Format.INT32)
    shapes = {"nvfp4": (128, 64), "norm": (64,), "signs": (1024,), "divisor": (), "ids": (9,)}
    formats = {"norm": Format.BF16, "signs": Format.BF16, "divisor": Format.FP32, "ids": Format.INT32}
    tensors = [tensor_object(name, formats.get(name) or Format(name), shapes.get(name, (21, 200))) for name in data]
    resources = [resource_object(name, len(content)) for name, content in RESOURCES.items()]
    data |= {name: np.frombuffer(content, np.uint8) for name, content in RESOURCES.items()}
    q4, q5 = "q4_g64_fp16", "q5_g64_fp16"
    directory = Directory(
        components={
            "text": Component(
                {"hidden_size": 64, "rope_theta": 1e6},
                resources={"tokenizer": "tokenizer", "chat_template": "template"},
                proposal=Proposal(ProposalDomain.INDEXED, 9),
            ),
            "mtp": Component({"num_layers": 1}, target="text"),
        },
        objects=place_objects([*tensors, *resources]),
        bindings={
            "text/q": PartsBinding((Part(q4, 0, 2000), Part(q5, 1000, 4200))),
            "text/k": PartsBinding((Part(q4, 2000, 4200),)),
            "text/v": WholeBinding("q6_g64_fp16"),
            "text/gate": WholeBinding("q8_g32_fp16"),
            "text/up": WholeBinding("fp8_e4m3fn_row_bf16"),
            "text/down": WholeBinding("t2_g128_fp16"),
            "text/o": WholeBinding("nvfp4"),
            "text/norm": WholeBinding("norm"),
            "mtp/norm": WholeBinding("norm"),
            "proposal/ids": WholeBinding("ids"),
        },
        uses=(
            Use("text/o", "hidden", ActivationPolicy.ALLOW_A4, {"activation_input_divisor": WholeBinding("divisor")}),
            Use("text/v", "hidden", ActivationPolicy.ALLOW_A8, {"hadamard_signs": WholeBinding("signs")}),
            Use("text/v", "mtp_hidden"),
        ),
        metadata={"name": "sample-✓"},
        provenance={"source": ["a", {"b": None}]},
    )
    return Sample(directory, data)


@pytest.fixture(scope="session")
def sample() -> Sample:
    return build_sample()


@pytest.fixture
def artifact(sample: Sample, tmp_path: Path) -> Path:
    return sample.write(tmp_path / "m.ninfer")
