"""The reader: ranges, parts opened lazily, bindings decoded, and clear refusals of every broken file set."""

from __future__ import annotations

import os
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ninfer.artifact import codec
from ninfer.artifact.directory import Component, Directory, FileEntry, Part, PartsBinding, TensorObject
from ninfer.artifact.directory_json import directory_to_json
from ninfer.artifact.formats import Format
from ninfer.artifact.planning import place_objects, plan_files, tensor_object
from ninfer.artifact.reader import ArtifactReader
from ninfer.errors import ArtifactError
from tests.artifact.conftest import RESOURCES, Sample


def reframe(path: Path, text: bytes, payload: bytes) -> Path:
    """A single-file artifact around any JSON text."""
    start = -(-(32 + len(text)) // 4096) * 4096
    header = b"NINFER\0\3" + struct.pack("<Q", len(text)) + bytes(range(16))
    path.write_bytes((header + text).ljust(start, b"\0") + payload)
    return path


@pytest.mark.parametrize("limit", [10**9, 20_480, 12_288])
def test_objects_read_back_whole_and_by_range(sample: Sample, tmp_path: Path, limit: int) -> None:
    rng = np.random.default_rng(1)
    with ArtifactReader.open(sample.write(tmp_path / "m.ninfer", limit)) as reader:
        for object_id, data in sample.data.items():
            assert (reader.read_object(object_id) == data).all()
            for _ in range(10):
                begin, end = sorted(rng.integers(0, data.size + 1, 2).tolist())
                assert (reader.read_range(object_id, begin, end) == data[begin:end]).all()
        for role, content in (("tokenizer", "tokenizer"), ("chat_template", "template")):
            assert reader.resource(role) == RESOURCES[content]


def test_an_object_may_straddle_files_inside_a_plane(sample: Sample, tmp_path: Path) -> None:
    with ArtifactReader.open(sample.write(tmp_path / "m.ninfer", 12_288)) as reader:
        edges = np.cumsum([file.payload_bytes for file in reader.directory.files])[:-1]
        straddling = [
            (stored, edge)
            for stored in reader.directory.objects
            for edge in edges.tolist()
            if stored.offset < edge < stored.offset + stored.bytes
        ]
        assert len(straddling) >= 3
        inside_planes = 0
        for stored, edge in straddling:
            assert (reader.read_object(stored.id) == sample.data[stored.id]).all()
            if isinstance(stored, TensorObject):
                planes = reader.geometry(stored.id).planes
                at = edge - stored.offset
                inside_planes += any(plane.offset < at < plane.offset + plane.size for plane in planes)
                expected = codec.decode(sample.data[stored.id], Format(stored.format), stored.shape)
                assert (reader.decode_tensor(stored.id) == expected).all()
        assert inside_planes >= 2


def test_contiguous_objects_are_read_only_views_of_the_map(artifact: Path) -> None:
    with ArtifactReader.open(artifact) as reader:
        data = reader.read_object("nvfp4")
        assert data.base is not None
        assert not data.flags.writeable
        assert data.ctypes.data % 256 == 0
        before = data.copy()
    assert (data == before).all()  # views outlive the reader


@pytest.mark.parametrize("edge", [12_288, 12_289])
def test_tensors_are_aligned_and_read_only_in_memory_too(sample: Sample, tmp_path: Path, edge: int) -> None:
    """Whether they straddle files or lie in a part that begins anywhere in the payload, as the format permits."""
    reader = ArtifactReader.open(in_two_files(sample, tmp_path / "m.ninfer", edge))
    found = {name: reader.read_object(name) for name in sample.data}
    reader.close()
    for name, data in found.items():
        assert (data == sample.data[name]).all()
        assert not data.flags.writeable
        assert data.ctypes.data % 256 == 0 or name in RESOURCES


def in_two_files(sample: Sample, path: Path, edge: int) -> Path:
    """The sample with `edge` payload bytes in its entry and the rest in a part."""
    with ArtifactReader.open(sample.write(path)) as whole:
        directory, size = whole.directory, whole.directory.payload_bytes
    payload = path.read_bytes()[-size:]
    files = (FileEntry(None, edge), FileEntry("second", size - edge))
    reframe(path, directory_to_json(replace(directory, files=files)), payload[:edge])
    header = b"NINPRT\0\3" + struct.pack("<Q", 1) + bytes(range(16))
    path.with_name("second").write_bytes(header.ljust(4096, b"\0") + payload[edge:])
    return path


def test_parameters_decode_through_their_bindings(sample: Sample, artifact: Path) -> None:
    q4 = codec.decode(sample.data["q4_g64_fp16"], Format.Q4, (21, 200)).reshape(-1)
    q5 = codec.decode(sample.data["q5_g64_fp16"], Format.Q5, (21, 200)).reshape(-1)
    with ArtifactReader.open(artifact) as reader:
        joined = np.concatenate([q4[:2000], q5[1000:4200]])
        assert (reader.decode_parameter("text/q", (26, 200)) == joined.reshape(26, 200)).all()
        assert reader.decode_parameter("text/q").shape == (5200,)
        assert (reader.decode_parameter("text/k", (11, 200)) == q4[2000:].reshape(11, 200)).all()
        assert reader.decode_parameter("text/o").shape == (128, 64)
        assert reader.decode_parameter("proposal/ids").dtype == np.int32
        with pytest.raises(ArtifactError, match=r"m\.ninfer: parameter 'text/q' holds 5200 elements"):
            reader.decode_parameter("text/q", (26, 201))
        with pytest.raises(ArtifactError, match="binds no parameter 'text/gone'"):
            reader.decode_parameter("text/gone")


def test_parts_of_mixed_kinds_are_refused(tmp_path: Path) -> None:
    objects = place_objects([tensor_object("f", Format.FP32, (4,)), tensor_object("i", Format.INT32, (4,))])
    binding = PartsBinding((Part("f", 0, 2), Part("i", 0, 2)))
    plan = plan_files(Directory({"text": Component({})}, objects, {"w": binding}), tmp_path / "m.ninfer")
    path = reframe(tmp_path / "m.ninfer", plan.json, bytes(272))
    with ArtifactReader.open(path) as reader, pytest.raises(ArtifactError, match="joins int32"):
        reader.decode_parameter("w")


def test_lookups_name_the_file_and_the_thing(artifact: Path) -> None:
    with ArtifactReader.open(artifact) as reader:
        for call in (reader.read_object, reader.tensor, reader.decode_tensor):
            with pytest.raises(ArtifactError, match=r"m\.ninfer.*'gone'"):
                call("gone")
        with pytest.raises(ArtifactError, match="'text' has no resource 'vocab'"):
            reader.resource("vocab")
        with pytest.raises(ArtifactError, match="'vision' has no resource"):
            reader.resource("preprocessor", "vision")
        for begin, end in ((-1, 5), (5, 4), (0, 129)):
            with pytest.raises(ArtifactError, match="outside its 128 bytes"):
                reader.read_range("norm", begin, end)


def test_objects_of_the_future_are_refused_only_when_decoded(sample: Sample, artifact: Path) -> None:
    raw = artifact.read_bytes().replace(b'"q5_g64_fp16","layout"', b'"q5_g96_fp16","layout"')
    artifact.write_bytes(raw.replace(b'"raw_bytes_v1"', b'"raw_bytes_v2"'))
    with ArtifactReader.open(artifact) as reader:
        assert (reader.decode_tensor("q4_g64_fp16") != 0).any()
        assert (reader.read_object("q5_g64_fp16") == sample.data["q5_g64_fp16"]).all()
        with pytest.raises(ArtifactError, match=r"m\.ninfer: object 'q5_g64_fp16'.*does not know the format"):
            reader.decode_tensor("q5_g64_fp16")
        with pytest.raises(ArtifactError, match=r"m\.ninfer: .*encoding"):
            reader.resource("tokenizer")


def test_a_wrong_encoded_size_is_refused_when_read(artifact: Path) -> None:
    artifact.write_bytes(artifact.read_bytes().replace(b'"shape":[128,64]', b'"shape":[256,64]'))
    with ArtifactReader.open(artifact) as reader:
        for call in (reader.read_object, reader.decode_tensor):
            with pytest.raises(ArtifactError, match=r"object 'nvfp4'.*takes 9220 bytes.*says 4612"):
                call("nvfp4")


# Framing of the entry.


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"NINF", "not a .ninfer artifact"),
        (b"NINFER\0\2" + bytes(40), "this is a v2 artifact.*convert the checkpoint again"),
        (b"NINFER\0\4" + bytes(40), "this is a v4 artifact.*update ninfer"),
        (b"NINPRT\0\3" + bytes(40), "a part of an artifact; open its entry"),
        (b"GGUF" + bytes(40), "GGUF file"),
        (struct.pack("<Q", 64) + b'{"__metadata__": {}}', "safetensors file.*ninfer convert"),
        (b"NINFER\0\3" + bytes(10), "entry header takes 32 bytes"),
        (b"NINFER\0\3" + struct.pack("<Q", 0) + bytes(5000), "json_bytes must be positive"),
        (b"NINFER\0\3" + struct.pack("<Q", 2**64 - 1) + bytes(5000), "truncated: the header announces"),
        (b"NINFER\0\3" + struct.pack("<Q", 4985) + bytes(5000), "truncated: the header announces"),
        (b"NINFER\0\3" + struct.pack("<Q", 4984) + bytes(5000), "not valid JSON"),
    ],
)
def test_files_that_are_no_v3_entry_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "m.ninfer"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=message) as caught:
        ArtifactReader.open(path)
    assert str(path) in str(caught.value)


def test_paths_that_are_no_file_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.ninfer")
    for path, message in (
        (tmp_path / "missing.ninfer", "No such file"),
        (tmp_path, "this is a folder.*ninfer convert"),
        (tmp_path / "pipe.ninfer", "not a regular file"),
        (Path("a\0b"), "cannot open"),
        (tmp_path / ("x" * 300), "cannot open"),
    ):
        with pytest.raises(ArtifactError, match=message):
            ArtifactReader.open(path)


@pytest.mark.parametrize("change", [-1, 1, -4096])
def test_an_entry_of_the_wrong_size_is_refused(artifact: Path, change: int) -> None:
    raw = artifact.read_bytes()
    artifact.write_bytes(raw[:change] if change < 0 else raw + b"x")
    with pytest.raises(ArtifactError, match=f"expected {len(raw)} bytes, the file has {len(raw) + change}"):
        ArtifactReader.open(artifact)


def test_the_gap_after_the_directory_must_be_zero(artifact: Path) -> None:
    raw = bytearray(artifact.read_bytes())
    raw[32 + struct.unpack("<Q", raw[8:16])[0]] = 1
    artifact.write_bytes(raw)
    with pytest.raises(ArtifactError, match=r"gap .* must be zero"):
        ArtifactReader.open(artifact)


def test_trailing_white_space_counts_as_directory(sample: Sample, tmp_path: Path) -> None:
    plan = plan_files(sample.directory, tmp_path / "m.ninfer")
    for padding in (0, 1, 4064 - len(plan.json) % 4096, 9000):
        text = directory_to_json(plan.directory) + b" " * padding
        payload = bytes(plan.directory.files[0].payload_bytes)
        with ArtifactReader.open(reframe(tmp_path / "m.ninfer", text, payload)) as reader:
            assert reader.directory == plan.directory


# Parts.


@pytest.fixture
def parts(sample: Sample, tmp_path: Path) -> Path:
    return sample.write(tmp_path / "m.ninfer", limit=12_288)


def _read_everything(path: Path) -> None:
    with ArtifactReader.open(path) as reader:
        for stored in reader.directory.objects:
            reader.read_object(stored.id)


def test_parts_are_opened_only_for_the_objects_that_need_them(sample: Sample, parts: Path) -> None:
    for index in range(1, 5):
        parts.with_name(f"m.ninfer.part-000{index}").unlink()
    with ArtifactReader.open(parts) as reader:
        first = reader.directory.objects[0]
        assert (reader.read_object(first.id) == sample.data[first.id]).all()
        with pytest.raises(ArtifactError, match=r"m\.ninfer\.part-000\d: cannot open: No such file"):
            reader.resource("chat_template")


def test_parts_are_found_by_the_stored_path(sample: Sample, parts: Path) -> None:
    renamed = parts.read_bytes().replace(b"m.ninfer.part-0002", b"other.name.of.part")
    parts.write_bytes(renamed)
    parts.with_name("m.ninfer.part-0002").rename(parts.with_name("other.name.of.part"))
    parts.rename(parts.with_name("entry.ninfer"))
    with ArtifactReader.open(parts.with_name("entry.ninfer")) as reader:
        assert all((reader.read_object(i) == data).all() for i, data in sample.data.items())


def test_a_foreign_part_is_refused(sample: Sample, parts: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    sample.write(tmp_path / "other" / "m.ninfer", limit=12_288)
    shutil.copy(tmp_path / "other" / "m.ninfer.part-0002", tmp_path)
    with pytest.raises(ArtifactError, match=r"part-0002: this part belongs to another artifact"):
        _read_everything(parts)


def test_swapped_parts_are_refused(parts: Path) -> None:
    shutil.copy(parts.with_name("m.ninfer.part-0001"), parts.with_name("m.ninfer.part-0002"))
    with pytest.raises(ArtifactError, match=r"part-0002: expected part 2, but the header says part 1"):
        _read_everything(parts)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda raw: raw[:-1], "expected 12288 bytes, the file has 12287"),
        (lambda raw: raw + b"x", "expected 12288 bytes, the file has 12289"),
        (lambda raw: b"", "no v3 part header"),
        (lambda raw: raw[:20], "no v3 part header"),
        (lambda raw: b"NINPRT\0\2" + raw[8:], "no v3 part header"),
        (lambda raw: raw[:40] + b"\1" + raw[41:], "must be zero"),
    ],
)
def test_damaged_parts_are_refused(parts: Path, edit: object, message: str) -> None:
    part = parts.with_name("m.ninfer.part-0001")
    assert callable(edit)
    part.write_bytes(edit(part.read_bytes()))
    with pytest.raises(ArtifactError, match=f"part-0001.*{message}"):
        _read_everything(parts)


def test_a_part_that_is_a_pipe_does_not_block(parts: Path) -> None:
    part = parts.with_name("m.ninfer.part-0001")
    part.unlink()
    os.mkfifo(part)
    with pytest.raises(ArtifactError, match="not a regular file"):
        _read_everything(parts)


def test_a_closed_reader_says_so(parts: Path) -> None:
    reader = ArtifactReader.open(parts)
    reader.close()
    with pytest.raises(ArtifactError, match="closed"):
        reader.resource("chat_template")


def test_sizes_of_the_directory_are_never_allocated_unchecked(sample: Sample, tmp_path: Path) -> None:
    plan = plan_files(sample.directory, tmp_path / "m.ninfer")
    huge = directory_to_json(plan.directory)
    huge = huge.replace(
        b'"files":[', b'"files":[{"path":null,"payload_bytes":4096},{"path":"p","payload_bytes":%d},' % 2**62
    )
    text = (
        huge[: huge.index(b"},", huge.index(b'"path":"p"')) + 1]
        + b"]"
        + huge[huge.index(b"]", huge.index(b'"p"')) + 1 :]
    )
    path = reframe(tmp_path / "m.ninfer", text, bytes(4096))
    (tmp_path / "p").write_bytes(b"NINPRT\0\3" + struct.pack("<Q", 1) + bytes(range(16)) + bytes(8000))
    with ArtifactReader.open(path) as reader, pytest.raises(ArtifactError, match="expected 46116860184"):
        reader.read_object(reader.directory.objects[-1].id)
