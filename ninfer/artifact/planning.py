"""Plans an artifact before its bytes exist: offsets of objects, sizes of files, the final directory.

Object sizes follow from formats and shapes, so the directory is complete before the first byte is encoded.
Source: artifact v3, sections 1 and 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ninfer.artifact import framing
from ninfer.artifact.directory import (
    TENSOR_ALIGNMENT,
    ActivationPolicy,
    Directory,
    FileEntry,
    ResourceObject,
    StoredObject,
    TensorObject,
)
from ninfer.artifact.directory_json import directory_to_json
from ninfer.artifact.formats import Format
from ninfer.artifact.layouts import align_up, geometry
from ninfer.errors import ArtifactError

DEFAULT_FILE_LIMIT = 32_000_000_000


@dataclass(frozen=True, slots=True)
class FilePlan:
    """The directory as it will be written, its JSON (padded with spaces), and the entry's payload start."""

    directory: Directory
    json: bytes
    payload_start: int

    def file_bytes(self, index: int) -> int:
        """Size of file `index`, everything counted."""
        start = framing.PAYLOAD_ALIGNMENT if index else self.payload_start
        return start + self.directory.files[index].payload_bytes

    @property
    def total_bytes(self) -> int:
        """Size of the whole set."""
        return sum(self.file_bytes(index) for index in range(len(self.directory.files)))


def tensor_object(object_id: str, fmt: Format, shape: tuple[int, ...]) -> TensorObject:
    """A tensor still without an offset. Raises ArtifactError for a shape the format cannot store."""
    stored = geometry(fmt, shape)
    return TensorObject(object_id, shape, fmt.value, stored.layout.value, 0, stored.total_bytes)


def resource_object(object_id: str, size: int) -> ResourceObject:
    """A resource of `size` bytes still without an offset."""
    return ResourceObject(object_id, 0, size)


def place_objects(objects: Iterable[StoredObject]) -> tuple[StoredObject, ...]:
    """The objects with offsets assigned in the order given; tensors start at multiples of 256."""
    placed: list[StoredObject] = []
    end = 0
    for stored in objects:
        offset = align_up(end, TENSOR_ALIGNMENT) if isinstance(stored, TensorObject) else end
        placed.append(replace(stored, offset=offset))
        end = offset + stored.bytes
    return tuple(placed)


def plan_files(directory: Directory, entry: Path, limit: int = DEFAULT_FILE_LIMIT) -> FilePlan:
    """Divide the payload into files of at most `limit` bytes and complete the directory.

    `files` is replaced; Uses without an activation policy get the default, A16Only.

    Args:
        entry: the path of the entry file; parts are named after it.
        limit: bytes per file, headers and directory included.

    Raises:
        ArtifactError: `limit` leaves no room for payload, or JSON cannot hold a value of the directory.
    """
    uses = tuple(
        replace(use, activation_policy=use.activation_policy or ActivationPolicy.A16_ONLY) for use in directory.uses
    )
    complete = replace(directory, uses=uses)
    start = framing.PAYLOAD_ALIGNMENT
    while True:
        files = _divide(complete.payload_bytes, start, entry.name, limit)
        planned = replace(complete, files=files)
        text = directory_to_json(planned)
        needed = framing.entry_payload_start(len(text))
        if needed <= start:
            # The files table was made for `start`; spaces keep the payload there when less would do.
            room = start - framing.PAYLOAD_ALIGNMENT - framing.HEADER_BYTES + 1
            return FilePlan(planned, text.ljust(room), start)
        start = needed


def _divide(payload: int, entry_start: int, entry_name: str, limit: int) -> tuple[FileEntry, ...]:
    if payload == 0:
        raise ArtifactError("an artifact needs at least one object")
    if entry_start + payload <= limit:
        return (FileEntry(None, payload),)
    first, further = _capacity(limit, entry_start), _capacity(limit, framing.PAYLOAD_ALIGNMENT)
    if first <= 0 or further <= 0:
        least = entry_start + framing.PAYLOAD_ALIGNMENT
        raise ArtifactError(
            f"a limit of {limit} bytes per file leaves no room for payload; at least {least} are needed"
        )
    files = [FileEntry(None, min(first, payload))]
    for begin in range(first, payload, further):
        name = f"{entry_name}.part-{len(files):04d}"
        files.append(FileEntry(name, min(further, payload - begin)))
    return tuple(files)


def _capacity(limit: int, payload_start: int) -> int:
    """Payload bytes of a file that is not the last: whole pages within the limit."""
    return (limit - payload_start) // framing.PAYLOAD_ALIGNMENT * framing.PAYLOAD_ALIGNMENT
