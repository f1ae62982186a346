"""Reads an artifact's directory at once and its objects by range, through memory maps.

Opening touches only the directory; a part is opened, checked and mapped when the first object in it is
read. Every returned array is read-only and stays valid after `close`. Source: artifact v3, sections 1 and 5.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact import codec, framing
from ninfer.artifact.codec import ByteSource, Decoded
from ninfer.artifact.directory import (
    RAW_BYTES,
    TENSOR_ALIGNMENT,
    TEXT,
    Binding,
    Directory,
    Part,
    TensorObject,
    WholeBinding,
    tensor_geometry,
)
from ninfer.artifact.directory_json import parse_directory
from ninfer.artifact.floats import U8
from ninfer.artifact.formats import known_format
from ninfer.artifact.layouts import Geometry, known_layout
from ninfer.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class _File:
    """Where one file of the set lies: its payload covers logical bytes `[begin, begin + payload_bytes)`."""

    index: int
    path: Path
    payload_start: int
    payload_bytes: int


class ArtifactReader:
    """An open artifact. Use as a context manager, or call `close`. Safe for concurrent readers."""

    def __init__(self, path: Path, directory: Directory, artifact_id: bytes, payload_start: int, entry: U8) -> None:
        """Use `ArtifactReader.open`."""
        self.path = path
        self.directory = directory
        self.artifact_id = artifact_id
        self._files = _files(path, directory, payload_start)
        sizes = (file.payload_bytes for file in self._files)
        self._begins = list(accumulate(sizes, initial=0))
        self._maps: dict[int, U8] = {0: entry}
        self._closed = False

    @classmethod
    def open(cls, path: Path | str) -> ArtifactReader:
        """Read and check the header and directory of the entry file `path`.

        Raises:
            ArtifactError: the file is missing, is something else, is truncated, or its directory is wrong.
        """
        entry = Path(path)
        with _open_regular(entry) as handle:
            size = os.fstat(handle.fileno()).st_size
            json_bytes, artifact_id = framing.read_entry_header(handle.read(framing.HEADER_BYTES), entry)
            if json_bytes > size - framing.HEADER_BYTES:
                raise ArtifactError(
                    f"{entry}: truncated: the header announces {json_bytes} directory bytes, the file has {size}"
                )
            text = handle.read(json_bytes)
            start = framing.entry_payload_start(json_bytes)
            gap = handle.read(start - framing.HEADER_BYTES - json_bytes)
            whole = _map(handle)
        directory = parse_directory(text, entry)
        expected = start + directory.files[0].payload_bytes
        if size != expected:
            raise ArtifactError(f"{entry}: expected {expected} bytes, the file has {size}; copy or convert it again")
        if any(gap):
            raise ArtifactError(f"{entry}: the gap between the directory and the payload must be zero")
        return cls(entry, directory, artifact_id, start, whole)

    def __enter__(self) -> ArtifactReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Forget the maps; each is unmapped when the last array that views it is gone."""
        self._closed = True
        self._maps.clear()

    @property
    def paths(self) -> tuple[Path, ...]:
        """Every file of the set, the entry first, whether it exists or not."""
        return tuple(file.path for file in self._files)

    def part_problems(self) -> tuple[str, ...]:
        """What is wrong with each further file of the set, by its size and header: missing, foreign or truncated."""
        problems = []
        for file in self._files[1:]:
            try:
                self._open_part(file)
            except ArtifactError as error:
                problems.append(str(error))
        return tuple(problems)

    def tensor(self, object_id: str) -> TensorObject:
        """The directory's tensor `object_id`. Raises ArtifactError."""
        with self._named():
            return self.directory.tensor(object_id)

    def geometry(self, object_id: str) -> Geometry:
        """The checked byte geometry of a tensor. Raises ArtifactError for a format it does not know."""
        with self._named():
            return tensor_geometry(self.directory.tensor(object_id))

    def read_object(self, object_id: str) -> U8:
        """All bytes of an object, uint8 [bytes]: a view of the map, or a copy where it straddles files.

        A tensor of a known format and layout has been checked to have its encoded size. Tensors start at a multiple of
        256 in memory, as in the payload, whatever sizes their files have.

        Raises:
            ArtifactError: no such object, a wrong size, or a missing, foreign or truncated file.
        """
        with self._named():
            stored = self.directory.object(object_id)
            if isinstance(stored, TensorObject) and _is_known(stored):
                tensor_geometry(stored)
        data = self._payload(stored.offset, stored.offset + stored.bytes)
        misplaced = isinstance(stored, TensorObject) and data.ctypes.data % TENSOR_ALIGNMENT
        return _joined([data]) if misplaced else data

    def read_range(self, object_id: str, begin: int, end: int) -> U8:
        """Bytes `[begin, end)` of an object, like `read_object`.

        Raises:
            ArtifactError: also a range outside the object.
        """
        with self._named():
            stored = self.directory.object(object_id)
        if not 0 <= begin <= end <= stored.bytes:
            raise ArtifactError(
                f"{self.path}: object {object_id!r}: bytes [{begin}, {end}) lie outside its {stored.bytes} bytes"
            )
        return self._payload(stored.offset + begin, stored.offset + end)

    def source(self, object_id: str) -> ByteSource:
        """The codec's `ByteSource` of one object."""
        return lambda begin, end: self.read_range(object_id, begin, end)

    def decode_tensor(self, object_id: str) -> Decoded:
        """A whole tensor object decoded: float32 (int32 for INT32), in the object's shape.

        Raises:
            ArtifactError: like `read_object`, and an unknown format or layout.
        """
        geometry = self.geometry(object_id)
        return codec.decode_elements(self.source(object_id), geometry, 0, geometry.elements).reshape(geometry.shape)

    def decode_parameter(self, name: str, shape: tuple[int, ...] | None = None) -> Decoded:
        """A bound parameter decoded, its parts joined.

        Args:
            name: a key of `bindings`.
            shape: the logical shape. Default: the object's shape, or flat for a binding of parts.

        Raises:
            ArtifactError: no such binding, another number of elements, or like `decode_tensor`.
        """
        with self._named():
            binding = self.directory.binding(name)
        return self.decode_binding(binding, shape, f"parameter {name!r}")

    def decode_binding(self, binding: Binding, shape: tuple[int, ...] | None = None, what: str = "binding") -> Decoded:
        """Like `decode_parameter`, for any binding (an auxiliary, for example); `what` names it in errors."""
        elements = self.directory.elements(binding)
        if shape is None:
            shape = self.tensor(binding.object).shape if isinstance(binding, WholeBinding) else (elements,)
        if math.prod(shape) != elements:
            raise ArtifactError(f"{self.path}: {what} holds {elements} elements, not the {list(shape)} expected")
        flat = [self._decode_part(part) for part in self.directory.parts(binding)]
        if len({part.dtype for part in flat}) > 1:
            raise ArtifactError(f"{self.path}: {what} joins int32 parts with floating-point parts")
        joined: NDArray[Any] = flat[0] if len(flat) == 1 else np.concatenate(flat)
        return joined.reshape(shape)

    def resource(self, role: str, component: str = TEXT) -> bytes:
        """The bytes of a component's resource.

        Raises:
            ArtifactError: the component or role is absent, or the encoding is unknown.
        """
        owner = self.directory.components.get(component)
        if owner is None or role not in owner.resources:
            raise ArtifactError(f"{self.path}: component {component!r} has no resource {role!r}")
        stored = self.directory.object(owner.resources[role])
        if isinstance(stored, TensorObject) or stored.encoding != RAW_BYTES:
            raise ArtifactError(f"{self.path}: resource {stored.id!r} has an encoding this release does not know")
        return self.read_object(stored.id).tobytes()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Put the file's name in front of errors that know only the object."""
        try:
            yield
        except ArtifactError as error:
            raise ArtifactError(f"{self.path}: {error}") from None

    def _decode_part(self, part: Part) -> Decoded:
        return codec.decode_elements(self.source(part.object), self.geometry(part.object), part.begin, part.end)

    def _payload(self, begin: int, end: int) -> U8:
        """Logical payload bytes `[begin, end)`."""
        if begin == end:
            return np.empty(0, np.uint8)
        first, last = bisect_right(self._begins, begin) - 1, bisect_left(self._begins, end) - 1
        pieces = [self._piece(self._files[index], begin, end) for index in range(first, last + 1)]
        return pieces[0] if len(pieces) == 1 else _joined(pieces)

    def _piece(self, file: _File, begin: int, end: int) -> U8:
        data = self._maps.get(file.index)
        if data is None:
            data = self._open_part(file)
        file_begin = self._begins[file.index]
        low, high = max(begin - file_begin, 0), min(end - file_begin, file.payload_bytes)
        return data[file.payload_start + low : file.payload_start + high]

    def _open_part(self, file: _File) -> U8:
        if self._closed:
            raise ArtifactError(f"{self.path}: the reader is closed")
        with _open_regular(file.path) as handle:
            size = os.fstat(handle.fileno()).st_size
            start = handle.read(framing.PAYLOAD_ALIGNMENT)
            framing.check_part_header(start[: framing.HEADER_BYTES], file.path, file.index, self.artifact_id)
            expected = file.payload_start + file.payload_bytes
            if size != expected:
                raise ArtifactError(f"{file.path}: expected {expected} bytes, the file has {size}; copy it again")
            if any(start[framing.HEADER_BYTES :]):
                raise ArtifactError(f"{file.path}: the bytes between the header and the payload must be zero")
            self._maps[file.index] = _map(handle)
        return self._maps[file.index]


def _files(entry: Path, directory: Directory, payload_start: int) -> tuple[_File, ...]:
    files = [_File(0, entry, payload_start, directory.files[0].payload_bytes)]
    for index, part in enumerate(directory.files[1:], start=1):
        assert part.path is not None
        files.append(_File(index, entry.with_name(part.path), framing.PAYLOAD_ALIGNMENT, part.payload_bytes))
    return tuple(files)


def _joined(pieces: Sequence[U8]) -> U8:
    """A read-only copy of all pieces, one after another, aligned like a tensor."""
    size = sum(piece.size for piece in pieces)
    backing = np.empty(size + TENSOR_ALIGNMENT - 1, np.uint8)
    begin = -backing.ctypes.data % TENSOR_ALIGNMENT
    joined = np.concatenate(pieces, out=backing[begin : begin + size])
    joined.flags.writeable = False
    return joined


def _is_known(tensor: TensorObject) -> bool:
    return known_format(tensor.format) is not None and known_layout(tensor.layout) is not None


def _open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; anything else (a folder, a pipe) is refused without blocking on it."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise ArtifactError(
                f"{path}: this is a folder; give the .ninfer entry file"
                " (a checkpoint folder becomes one with `ninfer convert`)"
            )
        if not stat.S_ISREG(mode):
            raise ArtifactError(f"{path}: not a regular file")
        return path.open("rb")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ArtifactError(f"{path}: cannot open: {reason}") from None


def _map(handle: BinaryIO) -> U8:
    """The whole file. Parts that are not in memory yet come in huge pages where the system can do that for files."""
    mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # advice, which a kernel without huge pages refuses
            mapped.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapped, np.uint8)
