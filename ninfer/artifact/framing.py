"""The fixed-size headers of an artifact's files, and what a file with another header probably is.

Source: artifact v3, section 1.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NoReturn

from ninfer.artifact.layouts import align_up
from ninfer.errors import ArtifactError

ENTRY_MAGIC = b"NINFER\x00\x03"
PART_MAGIC = b"NINPRT\x00\x03"
HEADER_BYTES = 32
PAYLOAD_ALIGNMENT = 4096
_HEADER = struct.Struct("<8sQ16s")


def entry_payload_start(json_bytes: int) -> int:
    """First payload byte of the entry file."""
    return align_up(HEADER_BYTES + json_bytes, PAYLOAD_ALIGNMENT)


def entry_header(json_bytes: int, artifact_id: bytes) -> bytes:
    """The entry's 32 header bytes."""
    return _HEADER.pack(ENTRY_MAGIC, json_bytes, artifact_id)


def part_header(index: int, artifact_id: bytes) -> bytes:
    """The 32 header bytes of part `index` (> 0)."""
    return _HEADER.pack(PART_MAGIC, index, artifact_id)


def read_entry_header(header: bytes, path: Path) -> tuple[int, bytes]:
    """(json_bytes, artifact_id) of an entry header. Raises ArtifactError with a guess at what `path` is."""
    if header[:8] != ENTRY_MAGIC:
        _refuse_entry(header, path)
    if len(header) < HEADER_BYTES:
        raise ArtifactError(f"{path}: the entry header takes {HEADER_BYTES} bytes, the file has {len(header)}")
    _, json_bytes, artifact_id = _HEADER.unpack(header)
    if json_bytes == 0:
        raise ArtifactError(f"{path}: header: json_bytes must be positive, got 0")
    return json_bytes, artifact_id


def check_part_header(header: bytes, path: Path, index: int, artifact_id: bytes) -> None:
    """Refuse a file that is not part `index` of the set `artifact_id`. Raises ArtifactError."""
    if len(header) < HEADER_BYTES or header[:8] != PART_MAGIC:
        raise ArtifactError(f"{path}: expected part {index} of an artifact, but this file has no v3 part header")
    _, found_index, found_id = _HEADER.unpack(header)
    if found_id != artifact_id:
        raise ArtifactError(
            f"{path}: this part belongs to another artifact (id {found_id.hex()}, the entry has"
            f" {artifact_id.hex()}); put the parts written together with this entry beside it"
        )
    if found_index != index:
        raise ArtifactError(f"{path}: expected part {index}, but the header says part {found_index}")


def _refuse_entry(header: bytes, path: Path) -> NoReturn:
    if not header:
        raise ArtifactError(f"{path}: the file is empty; expected a .ninfer v3 entry file")
    if header.startswith(PART_MAGIC):
        raise ArtifactError(f"{path}: this is a part of an artifact; open its entry file NAME.ninfer instead")
    if header.startswith(b"NINFER\x00") and len(header) >= 8:
        version = header[7]
        remedy = "convert the checkpoint again" if version < 3 else "update ninfer"
        raise ArtifactError(f"{path}: this is a v{version} artifact, this release reads v3; {remedy}")
    if header.startswith(b"GGUF"):
        raise ArtifactError(f"{path}: this is a GGUF file; convert the original checkpoint with `ninfer convert`")
    if path.suffix == ".safetensors" or header[8:10] == b'{"':
        raise ArtifactError(f"{path}: this is a safetensors file; convert its folder with `ninfer convert`")
    raise ArtifactError(f"{path}: not a .ninfer artifact: the file starts with {header[:8].hex(' ')}")
