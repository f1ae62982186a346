"""A Hugging Face checkpoint directory: config.json, an optional shard index, safetensors files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ninfer.convert.sources.tensor_file import TensorEntry, read_header
from ninfer.errors import ConfigError

INDEX_NAME = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checked directory: every listed tensor exists once, and its file is long enough.

    Attributes:
        name: what the recipe calls this source (`base` for the main one).
        config: config.json.
        tensors: tensor name -> where it lies.
        config_sha256: hex digest of config.json, for provenance.
    """

    name: str
    path: Path
    config: Mapping[str, object]
    tensors: Mapping[str, TensorEntry]
    config_sha256: str

    def tensor(self, name: str) -> TensorEntry:
        """The tensor called `name`. Raises `ConfigError` naming it and the directory."""
        entry = self.tensors.get(name)
        if entry is None:
            raise ConfigError(f"{self.path}: tensor {name!r} is missing")
        return entry

    @property
    def data_bytes(self) -> int:
        return sum(entry.nbytes for entry in self.tensors.values())


def open_checkpoint(path: Path, name: str) -> Checkpoint:
    """Read and check the headers of a checkpoint directory; no tensor data is read.

    Raises:
        ConfigError: names the file at fault: no directory, no config.json, no tensors, a shard that the index
            names but that is absent, a file shorter than its header, a tensor in two files, an index that
            disagrees with its shards.
    """
    if not path.is_dir():
        raise ConfigError(f"{path}: not a directory; give the folder of a Hugging Face checkpoint")
    config_path = path / "config.json"
    config = read_json(config_path)
    index = path / INDEX_NAME
    tensors = _indexed(path, index) if index.exists() else _unindexed(path)
    return Checkpoint(name, path, config, tensors, hashlib.sha256(config_path.read_bytes()).hexdigest())


def read_json(path: Path) -> dict[str, object]:
    """A JSON object from a file. Raises `ConfigError` naming the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: file is missing") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected a JSON object")
    return value


def _unindexed(path: Path) -> dict[str, TensorEntry]:
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{path}: holds no *.safetensors file and no {INDEX_NAME}")
    return _collect(files)


def _indexed(path: Path, index: Path) -> dict[str, TensorEntry]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{index}: weight_map must be a non-empty object")
    files = _shards(path, index, weight_map)
    tensors = _collect(files)
    for name, file in weight_map.items():
        if name not in tensors or tensors[name].path.name != file:
            raise ConfigError(f"{index}: tensor {name!r} is not in {file!r} where the index puts it")
    surplus = sorted(set(tensors) - set(weight_map))
    if surplus:
        where = tensors[surplus[0]].path
        raise ConfigError(f"{index}: does not list tensor {surplus[0]!r} of {where} ({len(surplus)} such tensors)")
    return tensors


def _shards(path: Path, index: Path, weight_map: Mapping[str, object]) -> list[Path]:
    names = sorted({str(file) for file in weight_map.values()})
    for name in names:
        if name != Path(name).name or name in ("", ".", ".."):
            raise ConfigError(f"{index}: shard name {name!r} is not a plain file name")
        if not (path / name).is_file():
            raise ConfigError(f"{path / name}: named in {INDEX_NAME} but absent; fetch the missing shard")
    return [path / name for name in names]


def _collect(files: list[Path]) -> dict[str, TensorEntry]:
    tensors: dict[str, TensorEntry] = {}
    for file in files:
        for entry in read_header(file):
            other = tensors.setdefault(entry.name, entry)
            if other is not entry:
                raise ConfigError(f"tensor {entry.name!r} is in two files, {other.path} and {file}; remove one")
    return tensors
