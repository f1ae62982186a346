"""Writes an artifact: bytes stream to temporary files by range, then the set is published at once.

The temporary files stand beside the target, so publishing is a rename. Parts are published first and the
entry last; whatever fails before that leaves the folder as it was. Source: artifact v3, section 1.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact import framing
from ninfer.artifact.codec import EncodedRows
from ninfer.artifact.coverage import Coverage
from ninfer.artifact.directory import Directory, StoredObject, TensorObject, tensor_geometry
from ninfer.artifact.directory_json import parse_directory
from ninfer.artifact.formats import known_format
from ninfer.artifact.layouts import known_layout
from ninfer.artifact.planning import DEFAULT_FILE_LIMIT, FilePlan, plan_files
from ninfer.errors import ArtifactError

Progress = Callable[[int, int], None]
"""Called as `progress(bytes_written, bytes_total)` after each write; gaps between planes do not count."""

Buffer = bytes | bytearray | memoryview | NDArray[Any]


class ArtifactWriter:
    """Streams one artifact. Use as a context manager: leaving it without `commit` removes every trace.

    Writes may come in any order and from several threads; each byte is written exactly once. Bytes between
    the planes of a tensor are zero without being written.
    """

    def __init__(
        self,
        path: Path | str,
        directory: Directory,
        shard_limit: int = DEFAULT_FILE_LIMIT,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """Check everything, then create the temporary files.

        Args:
            path: the entry file to publish, NAME.ninfer.
            directory: complete but for `files`, which is computed here (see `planning.place_objects`).
            shard_limit: bytes per file, headers included.
            overwrite: replace an artifact that is already at `path`, with its parts.

        Raises:
            ArtifactError: the target exists, the directory is inconsistent, the limit is too small, or the
                disk has too little room. Nothing has been written then.
        """
        self.path = Path(path)
        self._overwrite = overwrite
        self._progress = progress
        self._refuse_folder()
        self.plan = plan_files(directory, self.path, shard_limit)
        self.directory = parse_directory(self.plan.json, self.path)
        self._gaps = {stored.id: _gaps(stored) for stored in self.directory.objects}
        self._coverage = {stored.id: _coverage(stored, self._gaps[stored.id]) for stored in self.directory.objects}
        self._total = sum(coverage.missing for coverage in self._coverage.values())
        self._done = 0
        self._lock = Lock()
        self._targets = [self.path.with_name(file.path or self.path.name) for file in self.directory.files]
        self._refuse_existing()
        check_disk_space(self.path.parent, self.plan.total_bytes)
        self.artifact_id = uuid.uuid4().bytes
        tag = self.artifact_id.hex()[:12]
        self._temporary = [target.with_name(f".{target.name}.{tag}.tmp") for target in self._targets]
        self._discard = weakref.finalize(self, _remove, tuple(self._temporary))
        self._starts = _file_starts(self.plan)
        try:
            self._create_files()
        except BaseException:
            self.abort()
            raise

    def __enter__(self) -> ArtifactWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def write(self, object_id: str, offset: int, data: Buffer) -> None:
        """Write `data` at byte `offset` of an object.

        Raises:
            ArtifactError: no such object, bytes outside it or written before, or a failing disk.
        """
        view = _flat_bytes(data).data
        stored = self.directory.object(object_id)
        self._refuse_finished()
        with self._lock:
            self._coverage[object_id].add(offset, offset + view.nbytes)
        try:
            self._write_payload(stored.offset + offset, view)
        except BaseException:
            self.abort()  # the bytes count as written, but may not be
            raise
        with self._lock:
            self._done += view.nbytes
            if self._progress is not None:
                self._progress(self._done, self._total)

    def write_rows(self, object_id: str, row_begin: int, rows: EncodedRows) -> None:
        """Write encoded rows of a tensor, plane by plane, starting at row `row_begin`. Raises like `write`."""
        geometry = tensor_geometry(self.directory.tensor(object_id))
        for offset, data in rows.place(geometry, row_begin):
            self.write(object_id, offset, data)

    def write_object(self, object_id: str, data: Buffer) -> None:
        """Write all bytes of an object at once, gaps included. Raises like `write`."""
        stored = self.directory.object(object_id)
        flat = _flat_bytes(data)
        if flat.size != stored.bytes:
            raise ArtifactError(f"object {object_id!r} takes {stored.bytes} bytes, got {flat.size}")
        begin = 0
        for gap_begin, gap_end in (*self._gaps[object_id], (stored.bytes, stored.bytes)):
            if flat[gap_begin:gap_end].any():
                raise ArtifactError(f"object {object_id!r}: bytes [{gap_begin}, {gap_end}) between planes must be zero")
            self.write(object_id, begin, flat[begin:gap_begin])
            begin = gap_end

    def commit(self) -> None:
        """Publish the set: parts first, the entry last.

        Raises:
            ArtifactError: some object is incomplete, the target appeared meanwhile, or the disk fails. The
                folder is then as it was before the writer started.
        """
        self._refuse_finished()
        for object_id, coverage in self._coverage.items():
            if coverage.missing:
                self.abort()
                begin, end = next(coverage.holes())
                raise ArtifactError(f"object {object_id!r} is incomplete: bytes [{begin}, {end}) were never written")
        try:
            self._refuse_existing()
            with _disk_errors(self.path):
                for temporary in self._temporary:
                    _flush(temporary)
                _publish(self._temporary, self._targets, _old_set(self.path) if self._overwrite else [])
        finally:
            self.abort()

    def abort(self) -> None:
        """Remove the temporary files. Harmless when repeated or after `commit`."""
        self._discard()

    def _refuse_finished(self) -> None:
        if not self._discard.alive:
            raise ArtifactError(f"{self.path}: this writer is finished; start a new one")

    def _refuse_folder(self) -> None:
        if self.path.is_dir() or not self.path.name:
            raise ArtifactError(f"{self.path}: this is a folder; give the name of the entry file to write")

    def _refuse_existing(self) -> None:
        present = [target for target in self._targets if os.path.lexists(target)]
        if present and not self._overwrite:
            raise ArtifactError(f"{present[0]}: the file exists; choose another name or allow overwriting")

    def _create_files(self) -> None:
        for index, temporary in enumerate(self._temporary):
            if index:
                header = framing.part_header(index, self.artifact_id)
            else:
                header = framing.entry_header(len(self.plan.json), self.artifact_id) + self.plan.json
            with _disk_errors(temporary), temporary.open("xb") as handle:
                handle.write(header)
                handle.truncate(self.plan.file_bytes(index))

    def _write_payload(self, begin: int, data: memoryview) -> None:
        """Write `data` at logical payload byte `begin`, across files where it straddles them."""
        for index, (logical, physical) in enumerate(self._starts):
            end = logical + self.directory.files[index].payload_bytes
            low, high = max(begin, logical), min(begin + data.nbytes, end)
            if low < high:
                piece = data[low - begin : high - begin]
                _write_at(self._temporary[index], low - logical + physical, piece)


def check_disk_space(folder: Path, needed: int) -> None:
    """Refuse to start what cannot end. Raises ArtifactError when `folder` is missing or its disk too full."""
    with _disk_errors(folder):
        free = shutil.disk_usage(folder).free
    if free < needed:
        raise ArtifactError(f"{folder}: {needed:,} bytes are needed, {free:,} are free; make room or write elsewhere")


def _gaps(stored: StoredObject) -> tuple[tuple[int, int], ...]:
    """Bytes between planes, zero without being written; none where the format is unknown."""
    if isinstance(stored, TensorObject) and known_format(stored.format) and known_layout(stored.layout):
        return tuple(tensor_geometry(stored).gaps())
    return ()


def _coverage(stored: StoredObject, gaps: tuple[tuple[int, int], ...]) -> Coverage:
    written = Coverage(stored.id, stored.bytes)
    for begin, end in gaps:
        written.add(begin, end)
    return written


def _flat_bytes(data: Buffer) -> NDArray[np.uint8]:
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return np.frombuffer(data, np.uint8)


def _file_starts(plan: FilePlan) -> list[tuple[int, int]]:
    """(first logical payload byte, its position in the file) of each file."""
    starts, logical = [], 0
    for index, file in enumerate(plan.directory.files):
        starts.append((logical, framing.PAYLOAD_ALIGNMENT if index else plan.payload_start))
        logical += file.payload_bytes
    return starts


def _write_at(path: Path, offset: int, data: memoryview) -> None:
    with _disk_errors(path):
        descriptor = os.open(path, os.O_WRONLY)
        try:
            while data:
                written = os.pwrite(descriptor, data[: 1 << 30], offset)
                data, offset = data[written:], offset + written
        finally:
            os.close(descriptor)


def _flush(path: Path) -> None:
    """Bring a file or folder to the disk, and what was written of a file out of memory.

    Pages that writes left in memory are small and stay so; those that a reader's map brings back are huge where the
    system can (`reader`), and weights in huge pages are read faster for as long as they stay.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):  # advice; not every file system takes it, and a folder never does
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _old_set(entry: Path) -> list[Path]:
    """The entry to be replaced and every part named after it, stale ones of earlier sets included."""
    pattern = re.compile(re.escape(entry.name) + r"\.part-\d{4,}")
    parts = sorted(path for path in entry.parent.iterdir() if pattern.fullmatch(path.name))
    return [entry, *parts] if os.path.lexists(entry) else parts


def _publish(temporary: list[Path], targets: list[Path], old: list[Path]) -> None:
    """Rename the new set into place, parts first; put the old set back if anything fails."""
    moved: list[tuple[Path, Path]] = []
    try:
        for path in old:  # entry first: a reader never meets an old entry with new parts
            backup = path.with_name(f"{temporary[0].name}.old-{len(moved)}")
            moved.append((path, backup))
            os.replace(path, backup)
        for source, target in reversed(list(zip(temporary, targets, strict=True))):
            moved.append((source, target))
            os.replace(source, target)
        _flush(targets[0].parent)
    except BaseException:
        for source, target in reversed(moved):
            if os.path.lexists(target) and not os.path.lexists(source):
                os.replace(target, source)
        raise
    _remove(tuple(backup for _, backup in moved[: len(old)]))


def _remove(paths: tuple[Path, ...]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArtifactError(f"{error.filename or path}: {error.strerror or error}") from error
