"""Headers and bytes of safetensors files, read by range.

Data is read with `pread` into fresh arrays and never memory-mapped, so a conversion's resident memory
is what it holds on purpose. The format: u64 header length, JSON header, data; offsets count from the
end of the header.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from ninfer.artifact.floats import U8
from ninfer.errors import ConfigError

_ITEM_BYTES: dict[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("BF16", "F16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 1),
}
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file: safetensors dtype name, shape, and absolute byte range."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    nbytes: int

    @property
    def item_bytes(self) -> int:
        return _ITEM_BYTES[self.dtype]


def read_header(path: Path) -> tuple[TensorEntry, ...]:
    """The tensors of a safetensors file.

    Raises:
        ConfigError: names the file; header malformed, or the file is shorter than its header says.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            raise ConfigError(
                f"{path}: {size} bytes cannot hold a safetensors header of {length} bytes; fetch it again"
            )
        header = _parse(path, file.read(length))
    begin = 8 + length
    entries = tuple(_entry(path, name, value, begin) for name, value in header.items() if name != "__metadata__")
    end = max((entry.offset + entry.nbytes for entry in entries), default=begin)
    if end > size:
        raise ConfigError(f"{path}: has {size} bytes, its header describes {end}; fetch the file again")
    return entries


class TensorReader:
    """Reads byte ranges of any number of files; files stay open until `close`. Safe from many threads."""

    def __init__(self) -> None:
        self._descriptors: dict[Path, int] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def read_into(self, entry: TensorEntry, begin: int, out: U8) -> None:
        """Fill `out` (flat uint8) with the tensor's bytes from `begin`.

        Raises:
            ConfigError: the file ends early (it was cut after its header was read).
        """
        assert begin >= 0
        assert begin + out.size <= entry.nbytes
        descriptor, offset, view = self._descriptor(entry.path), entry.offset + begin, out.data
        while view:
            count = os.preadv(descriptor, [view], offset)
            if count == 0:
                raise ConfigError(f"{entry.path}: ends inside tensor {entry.name!r}; fetch the file again")
            offset, view = offset + count, view[count:]

    def _descriptor(self, path: Path) -> int:
        with self._lock:
            if path not in self._descriptors:
                self._descriptors[path] = os.open(path, os.O_RDONLY)
            return self._descriptors[path]

    def read(self, entry: TensorEntry, begin: int, end: int) -> U8:
        """Bytes `[begin, end)` of the tensor."""
        out = np.empty(end - begin, np.uint8)
        self.read_into(entry, begin, out)
        return out


def _parse(path: Path, text: bytes) -> Mapping[str, object]:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        value = dict(pairs)
        if len(value) != len(pairs):
            twice = sorted({name for name, _ in pairs if sum(other == name for other, _ in pairs) > 1})
            raise ConfigError(f"{path}: header lists {twice} twice")
        return value

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path}: not a safetensors file: {error}") from error
    if not isinstance(header, dict):
        raise ConfigError(f"{path}: not a safetensors file: its header is no JSON object")
    return header


def _entry(path: Path, name: str, value: object, begin: int) -> TensorEntry:
    members = value if isinstance(value, dict) else {}
    dtype, shape, offsets = (
        members.get("dtype"),
        _integers(members.get("shape")),
        _integers(members.get("data_offsets")),
    )
    if not isinstance(dtype, str) or shape is None or offsets is None or len(offsets) != 2:
        raise ConfigError(f"{path}: header entry of tensor {name!r} is malformed")
    if dtype not in _ITEM_BYTES:
        raise ConfigError(f"{path}: tensor {name!r} has the unknown dtype {dtype!r}")
    first, last = offsets
    wanted = math.prod(shape) * _ITEM_BYTES[dtype]
    if last - first != wanted:
        raise ConfigError(f"{path}: tensor {name!r}: {dtype} {list(shape)} takes {wanted} bytes, not {last - first}")
    return TensorEntry(name, dtype, shape, path, begin + first, wanted)


def _integers(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        return None
    return tuple(value)
