"""Damaged files end in success or ArtifactError: no other exception, no hang, no unchecked allocation."""

from __future__ import annotations

import contextlib
import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer.artifact.reader import ArtifactReader
from ninfer.artifact.summary import summarise
from ninfer.artifact.verify import verify
from ninfer.errors import ArtifactError
from tests.artifact.conftest import Sample

ALLOWED_ABOVE_FILE = 64 << 20
Damage = Callable[[np.random.Generator, bytes], bytes]
HOSTILE_VALUES: list[Any] = [0, -1, 1, 2**31, 2**63, 2**64, 10**30, 1.5, True, None, "", "x", [], {}, [0, 1], "\0"]


def exercise(path: Path) -> None:
    """Open, summarise, verify, read and decode everything; each step may only raise ArtifactError."""
    try:
        reader = ArtifactReader.open(path)
    except ArtifactError:
        return
    with reader:
        summarise(reader.directory)
        verify(reader)
        for stored in reader.directory.objects:
            with contextlib.suppress(ArtifactError):
                reader.read_object(stored.id)
            with contextlib.suppress(ArtifactError):
                reader.decode_tensor(stored.id)
        for name in reader.directory.bindings:
            with contextlib.suppress(ArtifactError):
                reader.decode_parameter(name)


def flip_bits(rng: np.random.Generator, raw: bytes) -> bytes:
    out = bytearray(raw)
    end = len(out) if rng.random() < 0.5 else 4096
    for _ in range(rng.integers(1, 6)):
        out[rng.integers(0, end)] ^= 1 << rng.integers(0, 8)
    return bytes(out)


def truncate(rng: np.random.Generator, raw: bytes) -> bytes:
    return raw[: rng.integers(0, len(raw))]


def splice(rng: np.random.Generator, raw: bytes) -> bytes:
    begin, end = sorted(rng.integers(0, 5000, 2).tolist())
    return raw[:begin] + rng.bytes(int(rng.integers(0, 64))) + raw[end:]


def edit_json(rng: np.random.Generator, raw: bytes) -> bytes:
    """Change values of the directory and reframe the file around it, so that the edit is reached."""
    (size,) = struct.unpack("<Q", raw[8:16])
    payload = raw[-(-(32 + size) // 4096) * 4096 :]
    root = json.loads(raw[32 : 32 + size])
    for _ in range(rng.integers(1, 3)):
        _edit(rng, root)
    text = json.dumps(root).encode()
    header = raw[:8] + struct.pack("<Q", len(text)) + raw[16:32]
    return (header + text).ljust(-(-(32 + len(text)) // 4096) * 4096, b"\0") + payload


def _edit(rng: np.random.Generator, node: Any) -> None:
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = keys[rng.integers(0, len(keys))]
        child = node[key]
        if not isinstance(child, dict | list) or not child or rng.random() < 0.15:
            break
        node = child
    choice = rng.integers(0, 4)
    if choice == 0:
        del node[key]
    elif choice == 1 and type(child) is int:
        node[key] = child + int(rng.integers(-300, 300))
    elif choice == 2 and isinstance(node, list):
        node.append(child)
    else:
        node[key] = HOSTILE_VALUES[rng.integers(0, len(HOSTILE_VALUES))]


@pytest.mark.parametrize("damage", [flip_bits, truncate, splice, edit_json])
@pytest.mark.parametrize("limit", [10**9, 12_288])
def test_damaged_sets_never_escape_artifact_error(sample: Sample, tmp_path: Path, damage: Damage, limit: int) -> None:
    path = sample.write(tmp_path / "m.ninfer", limit)
    files = sorted(tmp_path.iterdir())
    sound = {file: file.read_bytes() for file in files}
    rng = np.random.default_rng(17)
    total = sum(len(raw) for raw in sound.values())
    tracemalloc.start()
    try:
        for _ in range(30):
            victim = path if damage is edit_json else files[rng.integers(0, len(files))]
            victim.write_bytes(damage(rng, sound[victim]))
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            exercise(path)
            assert tracemalloc.get_traced_memory()[1] - before < total + ALLOWED_ABOVE_FILE
            victim.write_bytes(sound[victim])
    finally:
        tracemalloc.stop()
    with ArtifactReader.open(path) as reader:
        assert verify(reader).ok
