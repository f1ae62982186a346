"""Turns parameters with assignments into objects, Bindings and Uses.

A piece is a range of rows of one parameter with one assignment. Pieces of a packing group become one object when
format, method and (NVFP4) divisor agree; a parameter with several assignments becomes several objects.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ninfer.artifact.directory import Binding, Part, PartsBinding, WholeBinding
from ninfer.artifact.formats import Format
from ninfer.artifact.layouts import Geometry, geometry
from ninfer.convert.data import Data, NamedData, Nvfp4Data
from ninfer.convert.methods import Method
from ninfer.errors import ArtifactError, ConfigError
from ninfer.models.qwen3_5.inventory import PackingGroup, ParameterSpec


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows `[begin, end)` of a parameter as one unit of storage."""

    spec: ParameterSpec
    begin: int
    end: int
    format: Format
    method: Method
    source: str
    data: Data

    @property
    def whole(self) -> bool:
        return (self.begin, self.end) == (0, self.spec.shape[0])

    @property
    def key(self) -> tuple[object, ...]:
        """What must agree for two pieces to share an object."""
        divisor = self.data.divisor.tobytes() if isinstance(self.data, Nvfp4Data) else b""
        return (self.format, self.method, self.spec.shape[1:], divisor)


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor object to be written."""

    id: str
    format: Format
    shape: tuple[int, ...]
    method: Method
    source: str
    parts: tuple[NamedData, ...]

    @property
    def geometry(self) -> Geometry:
        return geometry(self.format, self.shape)

    @property
    def source_bytes(self) -> int:
        return sum(part.data.source_bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class Packed:
    """Objects in file order, and the Binding of every parameter that owns data."""

    tensors: tuple[PlannedTensor, ...]
    bindings: Mapping[str, Binding]


def pack(
    pieces: Mapping[str, Sequence[Piece]],
    groups: Sequence[PackingGroup],
    demanded: Collection[tuple[str, ...]] = (),
) -> Packed:
    """Pack the pieces of every parameter (in inventory order) into objects.

    Args:
        demanded: groups that must agree; the others may fall back.

    Raises:
        ConfigError: an object's shape does not fit its format, or a demanded group disagrees; names the parameters.
    """
    for group in groups:
        if group.parameters in demanded and not _agree(pieces, group.parameters):
            raise ConfigError(f"recipe: group: formats or methods of {', '.join(group.parameters)} differ")
    group_of = {name: group for group in _agreeing(pieces, groups) for name in group}
    tensors: list[PlannedTensor] = []
    bindings: dict[str, Binding] = {}
    taken = set(pieces)
    for name, parts in pieces.items():
        if name in bindings:
            continue
        members = group_of.get(name)
        if members is None:
            tensors += (_tensor(_piece_id(piece), (piece,)) for piece in parts)
            bindings[name] = _own_binding(parts)
        else:
            together = [piece for member in members for piece in pieces[member]]
            taken.add(identifier := packed_id(members, taken))
            tensors.append(_tensor(identifier, together))
            bindings.update(_packed_bindings(tensors[-1].id, together))
    return Packed(tuple(tensors), bindings)


def packed_id(names: Sequence[str], taken: Collection[str] = ()) -> str:
    """A readable ID, not among `taken`: the common folder, then the members' own last names."""
    last = dict.fromkeys(name.rsplit("/", 1)[-1] for name in names)
    readable = f"{os.path.commonpath(names)}/{'+'.join(last)}"
    numbered = (f"{readable}#{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain((readable,), numbered) if name not in taken)


def _agreeing(pieces: Mapping[str, Sequence[Piece]], groups: Iterable[PackingGroup]) -> Iterator[tuple[str, ...]]:
    for group in groups:
        for names in ((group.parameters,), group.fallback):
            found = [part for part in names if _agree(pieces, part)]
            yield from found
            if found:
                break


def _agree(pieces: Mapping[str, Sequence[Piece]], names: tuple[str, ...]) -> bool:
    parts = [piece for name in names for piece in pieces.get(name, ())]
    return len(names) > 1 and len(parts) == len(names) and len({piece.key for piece in parts}) == 1


def _tensor(identifier: str, pieces: Sequence[Piece]) -> PlannedTensor:
    first = pieces[0]
    shape = (sum(piece.end - piece.begin for piece in pieces), *first.spec.shape[1:])
    parts = tuple(NamedData(piece.spec.name, piece.data) for piece in pieces)
    sources = "+".join(dict.fromkeys(piece.source for piece in pieces))
    try:
        geometry(first.format, shape)
    except ArtifactError as error:
        raise ConfigError(f"{identifier}: {error}; assign another format") from error
    return PlannedTensor(identifier, first.format, shape, first.method, sources, parts)


def _piece_id(piece: Piece) -> str:
    return piece.spec.name if piece.whole else f"{piece.spec.name}[{piece.begin}:{piece.end}]"


def _own_binding(pieces: Sequence[Piece]) -> Binding:
    if len(pieces) == 1:
        return WholeBinding(_piece_id(pieces[0]))
    width = int(np.prod(pieces[0].spec.shape[1:], dtype=np.int64))
    return PartsBinding(tuple(Part(_piece_id(piece), 0, (piece.end - piece.begin) * width) for piece in pieces))


def _packed_bindings(identifier: str, pieces: Sequence[Piece]) -> dict[str, Binding]:
    bindings: dict[str, Binding] = {}
    begin = 0
    for piece in pieces:
        end = begin + piece.spec.elements
        bindings[piece.spec.name] = PartsBinding((Part(identifier, begin, end),))
        begin = end
    return bindings
