"""The writer: exact framing, atomic publication, and nothing left behind when it does not commit."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.artifact import codec, writer
from ninfer.artifact.coverage import Coverage
from ninfer.artifact.directory import Component, Directory, Use, WholeBinding
from ninfer.artifact.formats import Format
from ninfer.artifact.planning import place_objects, plan_files, resource_object, tensor_object
from ninfer.artifact.reader import ArtifactReader
from ninfer.artifact.writer import ArtifactWriter, check_disk_space
from ninfer.errors import ArtifactError
from tests.artifact.conftest import Sample


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def small_directory(size: int = 100) -> Directory:
    return Directory({"text": Component({})}, (resource_object("r", size),), {})


def test_entry_framing_is_exact(sample: Sample, tmp_path: Path) -> None:
    path = sample.write(tmp_path / "m.ninfer")
    raw = path.read_bytes()
    magic, json_bytes = struct.unpack("<8sQ", raw[:16])
    assert magic == bytes.fromhex("4e494e4645520003")
    start = -(-(32 + json_bytes) // 4096) * 4096
    assert not any(raw[32 + json_bytes : start])
    for stored in sample.directory.objects:
        at = start + stored.offset
        assert raw[at : at + stored.bytes] == sample.data[stored.id].tobytes()
    assert len(raw) == start + sample.directory.payload_bytes


def test_parts_framing_is_exact(sample: Sample, tmp_path: Path) -> None:
    path = sample.write(tmp_path / "m.ninfer", limit=12_288)
    assert names(tmp_path) == ["m.ninfer", *(f"m.ninfer.part-000{i}" for i in range(1, 5))]
    entry = path.read_bytes()
    start = -(-(32 + struct.unpack("<Q", entry[8:16])[0]) // 4096) * 4096
    payload = entry[start:]
    for index in range(1, 5):
        raw = (tmp_path / f"m.ninfer.part-000{index}").read_bytes()
        assert raw[:8] == bytes.fromhex("4e494e5052540003")
        assert struct.unpack("<Q", raw[8:16]) == (index,)
        assert raw[16:32] == entry[16:32]
        assert not any(raw[32:4096])
        assert len(raw) == 12_288 or index == 4
        payload += raw[4096:]
    for stored in sample.directory.objects:
        assert payload[stored.offset : stored.offset + stored.bytes] == sample.data[stored.id].tobytes()


def test_two_writes_have_different_ids(sample: Sample, tmp_path: Path) -> None:
    first, second = sample.write(tmp_path / "a.ninfer"), sample.write(tmp_path / "b.ninfer")
    assert first.read_bytes()[16:32] != second.read_bytes()[16:32]
    assert first.read_bytes()[32:] == second.read_bytes()[32:]


def test_rows_and_planes_arrive_in_any_order(tmp_path: Path) -> None:
    values = np.random.default_rng(3).standard_normal((20, 300)).astype(np.float32)
    objects = place_objects([tensor_object("w", Format.Q6, values.shape)])
    directory = Directory({"text": Component({})}, objects, {"w": WholeBinding("w")})
    seen: list[tuple[int, int]] = []
    with ArtifactWriter(
        tmp_path / "m.ninfer", directory, shard_limit=8192, progress=lambda *at: seen.append(at)
    ) as out:
        for begin, end in ((13, 20), (0, 4), (4, 13)):
            out.write_rows("w", begin, codec.encode_rows(values[begin:end], Format.Q6))
        out.commit()
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]
    with ArtifactReader.open(tmp_path / "m.ninfer") as reader:
        assert len(reader.paths) > 1
        assert reader.read_object("w").tobytes() == codec.encode(values, Format.Q6).tobytes()


def test_rows_of_another_shape_or_place_are_refused(tmp_path: Path) -> None:
    directory = Directory({"text": Component({})}, place_objects([tensor_object("w", Format.Q4, (4, 128))]), {})
    with ArtifactWriter(tmp_path / "m.ninfer", directory) as out:
        with pytest.raises(ArtifactError, match="not encoded for"):
            out.write_rows("w", 0, codec.encode_rows(np.ones((4, 256), np.float32), Format.Q4))
        with pytest.raises(ArtifactError, match="outside the 4 rows"):
            out.write_rows("w", 1, codec.encode_rows(np.ones((4, 128), np.float32), Format.Q4))


def test_existing_targets_are_refused_before_anything_is_written(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "m.ninfer"
    for name in ("m.ninfer", "m.ninfer.part-0002"):
        (tmp_path / name).write_bytes(b"precious")
        with pytest.raises(ArtifactError, match=r"m\.ninfer.*exists"):
            sample.write(path, limit=12_288)
        assert names(tmp_path) == [name]
        (tmp_path / name).unlink()


def test_a_folder_as_target_is_refused(sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path, Path(), Path("..")):
        with pytest.raises(ArtifactError, match="folder"):
            sample.write(path, overwrite=True)
    with pytest.raises(ArtifactError, match="No such file"):
        sample.write(tmp_path / "missing" / "m.ninfer")
    assert names(tmp_path) == []


def test_a_target_that_appears_meanwhile_is_refused(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "m.ninfer"
    with ArtifactWriter(path, sample.directory) as out:
        for object_id, data in sample.data.items():
            out.write_object(object_id, data)
        path.write_bytes(b"precious")
        with pytest.raises(ArtifactError, match="exists"):
            out.commit()
    assert names(tmp_path) == ["m.ninfer"]
    assert path.read_bytes() == b"precious"


def test_overwriting_removes_stale_parts(sample: Sample, tmp_path: Path) -> None:
    path = sample.write(tmp_path / "m.ninfer", limit=12_288)
    (tmp_path / "m.ninfer.part-note").write_bytes(b"not ours")
    sample.write(path, overwrite=True)
    assert names(tmp_path) == ["m.ninfer", "m.ninfer.part-note"]
    with ArtifactReader.open(path) as reader:
        assert reader.read_object("nvfp4").tobytes() == sample.data["nvfp4"].tobytes()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_leaving_without_commit_leaves_nothing(sample: Sample, tmp_path: Path, error: type[BaseException]) -> None:
    def write_half() -> None:
        with ArtifactWriter(tmp_path / "m.ninfer", sample.directory, shard_limit=12_288) as out:
            out.write_object("nvfp4", sample.data["nvfp4"])
            assert len(names(tmp_path)) == 5
            raise error

    with pytest.raises(error):
        write_half()
    assert names(tmp_path) == []


def test_an_interrupt_while_creating_files_leaves_nothing(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(index: int, artifact_id: bytes) -> bytes:
        if index == 2:
            raise KeyboardInterrupt
        return bytes(32)

    monkeypatch.setattr(writer.framing, "part_header", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ArtifactWriter(tmp_path / "m.ninfer", sample.directory, shard_limit=12_288)
    assert names(tmp_path) == []


def test_a_forgotten_writer_leaves_nothing(sample: Sample, tmp_path: Path) -> None:
    out = ArtifactWriter(tmp_path / "m.ninfer", sample.directory)
    out.write_object("nvfp4", sample.data["nvfp4"])
    del out
    assert names(tmp_path) == []


def test_an_incomplete_object_cannot_be_committed(sample: Sample, tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "m.ninfer", sample.directory) as out:
        for object_id, data in sample.data.items():
            out.write(object_id, 0, data[:200] if object_id == "q5_g64_fp16" else data[:0])
        with pytest.raises(ArtifactError, match="never written"):
            out.commit()
        assert names(tmp_path) == []
        with pytest.raises(ArtifactError, match="finished"):
            out.write("norm", 0, b"x")


def test_bytes_are_written_once_and_inside_the_object(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "m.ninfer", small_directory()) as out:
        out.write("r", 10, b"x" * 10)
        for offset in (5, 10, 15, 19):
            with pytest.raises(ArtifactError, match="overlap"):
                out.write("r", offset, b"y" * 10)
        for offset in (-1, 91, 200):
            with pytest.raises(ArtifactError, match="outside"):
                out.write("r", offset, b"y" * 10)
        with pytest.raises(ArtifactError, match="no object"):
            out.write("other", 0, b"y")
        with pytest.raises(ArtifactError, match="takes 100 bytes"):
            out.write_object("r", b"y")


def test_nonzero_gap_bytes_are_refused(sample: Sample, tmp_path: Path) -> None:
    damaged = sample.data["q5_g64_fp16"].copy()
    begin, end = next(codec.geometry(Format.Q5, (21, 200)).gaps())
    damaged[end - 1] = 1
    assert begin < end
    with (
        ArtifactWriter(tmp_path / "m.ninfer", sample.directory) as out,
        pytest.raises(ArtifactError, match="must be zero"),
    ):
        out.write_object("q5_g64_fp16", damaged)


def _publication_order(monkeypatch: pytest.MonkeyPatch, fail_at: int | None, error: BaseException) -> list[str]:
    moves: list[str] = []
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        moves.append(Path(target).name)
        if len(moves) - 1 == fail_at:
            raise error
        real(source, target)

    monkeypatch.setattr(writer.os, "replace", replace)
    return moves


def test_parts_are_published_before_the_entry(sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moves = _publication_order(monkeypatch, None, OSError())
    sample.write(tmp_path / "m.ninfer", limit=12_288)
    assert moves[-1] == "m.ninfer"
    assert sorted(moves[:-1]) == [f"m.ninfer.part-000{i}" for i in range(1, 5)]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("fail_at", range(5))
def test_a_failure_while_publishing_leaves_nothing(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int, error: BaseException
) -> None:
    _publication_order(monkeypatch, fail_at, error)
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else ArtifactError):
        sample.write(tmp_path / "m.ninfer", limit=12_288)
    assert names(tmp_path) == []


@pytest.mark.parametrize("fail_at", range(10))
def test_a_failure_while_replacing_keeps_the_old_set(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int
) -> None:
    path = sample.write(tmp_path / "m.ninfer", limit=12_288)
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    _publication_order(monkeypatch, fail_at, OSError(5, "Input/output error"))
    with pytest.raises(ArtifactError, match="Input/output error"):
        sample.write(path, limit=12_288, overwrite=True)
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == before


def test_a_failing_disk_ends_the_writer(sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: memoryview, offset: int) -> int:
        raise OSError(28, "No space left on device")

    out = ArtifactWriter(tmp_path / "m.ninfer", sample.directory)
    monkeypatch.setattr(writer.os, "pwrite", full)
    with pytest.raises(ArtifactError, match="No space left"):
        out.write_object("nvfp4", sample.data["nvfp4"])
    assert names(tmp_path) == []


def test_too_little_disk_space_is_refused_before_anything_is_written(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ArtifactError, match="bytes are needed"):
        check_disk_space(tmp_path, 2**62)
    with pytest.raises(ArtifactError, match="missing"):
        check_disk_space(tmp_path / "missing", 1)
    monkeypatch.setattr(writer.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 100})())
    with pytest.raises(ArtifactError, match="100 are free"):
        sample.write(tmp_path / "m.ninfer")
    assert names(tmp_path) == []


@pytest.mark.parametrize("limit", [-1, 0, 4096, 8191])
def test_a_limit_without_room_is_refused(sample: Sample, tmp_path: Path, limit: int) -> None:
    with pytest.raises(ArtifactError, match="leaves no room"):
        sample.write(tmp_path / "m.ninfer", limit=limit)
    assert names(tmp_path) == []


def test_inconsistent_directories_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    tensors = place_objects([tensor_object("w", Format.Q4, (4, 128))])
    broken = Directory({"text": Component({})}, tensors, {"w": WholeBinding("other")})
    with pytest.raises(ArtifactError, match="ID of a tensor"):
        ArtifactWriter(tmp_path / "m.ninfer", broken)
    with pytest.raises(ArtifactError, match="at least one object"):
        ArtifactWriter(tmp_path / "m.ninfer", Directory({"text": Component({})}, (), {}))
    with pytest.raises(ArtifactError, match="JSON"):
        ArtifactWriter(tmp_path / "m.ninfer", Directory({"text": Component({"x": float("nan")})}, tensors, {}))
    assert names(tmp_path) == []


def test_uses_always_carry_a_policy(tmp_path: Path) -> None:
    tensors = place_objects([tensor_object("w", Format.Q4, (4, 128))])
    bare = Directory({"text": Component({})}, tensors, {"w": WholeBinding("w")}, (Use("w", "x", None),))
    assert b'"activation_policy":"A16Only"' in plan_files(bare, tmp_path / "m.ninfer").json


@given(
    st.integers(1, 60_000),
    st.integers(8192, 20_000),
    st.integers(0, 12_000),
)
def test_file_plans_obey_the_capacity_rule(size: int, limit: int, metadata_bytes: int) -> None:
    directory = Directory(
        {"text": Component({})}, (resource_object("r", size),), {}, metadata={"note": "x" * metadata_bytes}
    )
    try:
        plan = plan_files(directory, Path("m.ninfer"), limit)
    except ArtifactError:
        assert metadata_bytes + 4096 > limit - 4096
        return
    files = plan.directory.files
    assert plan.payload_start == -(-(32 + len(plan.json)) // 4096) * 4096
    assert sum(file.payload_bytes for file in files) == size
    assert all(plan.file_bytes(index) <= limit for index in range(len(files)))
    if len(files) > 1:
        assert plan.payload_start + size > limit
        assert files[0].payload_bytes == (limit - plan.payload_start) // 4096 * 4096
        assert {file.payload_bytes for file in files[1:-1]} <= {(limit - 4096) // 4096 * 4096}
    assert [file.path for file in files[1:]] == [f"m.ninfer.part-{i:04d}" for i in range(1, len(files))]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=40))
def test_coverage_agrees_with_a_set_of_bytes(ranges: list[tuple[int, int]]) -> None:
    coverage, model = Coverage("o", 48), set[int]()
    for begin, length in ranges:
        wanted = set(range(begin, begin + length))
        if begin + length > 48 or wanted & model:
            with pytest.raises(ArtifactError):
                coverage.add(begin, begin + length)
        else:
            coverage.add(begin, begin + length)
            model |= wanted
    assert coverage.missing == 48 - len(model)
    holes = [byte for begin, end in coverage.holes() for byte in range(begin, end)]
    assert holes == sorted(set(range(48)) - model)
