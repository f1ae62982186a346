"""Verifies a whole artifact: every code and scale of every tensor, every binding, every auxiliary.

Tensors stream through in row blocks, so memory stays bounded whatever their size. Problems are collected,
not raised, so that one report names them all. Source: artifact v3, sections 2 to 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ninfer.artifact.directory import (
    RAW_BYTES,
    Binding,
    Directory,
    StoredObject,
    TensorObject,
    Use,
)
from ninfer.artifact.formats import Format
from ninfer.artifact.layouts import Geometry, Layout
from ninfer.artifact.reader import ArtifactReader
from ninfer.artifact.validate import validate_gaps, validate_rows
from ninfer.errors import ArtifactError

ACTIVATION_INPUT_DIVISOR = "activation_input_divisor"
HADAMARD_SIGNS = "hadamard_signs"
HADAMARD_BLOCK = 1024
_BLOCK_BYTES = 8 << 20

Progress = Callable[[int, int], None]
"""Called as `progress(bytes_checked, bytes_total)` after each block."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` found. `unbound` lists tensors that no binding or auxiliary uses; they are no problem."""

    tensors: int
    resources: int
    bytes_checked: int
    problems: tuple[str, ...]
    unbound: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(reader: ArtifactReader, progress: Progress | None = None) -> VerifyReport:
    """Read every object of `reader` and check all that the formats, layouts and bindings require.

    Never raises for damaged content: missing parts, unknown formats, illegal codes and wrong auxiliaries
    are `problems` of the report, each naming its object or parameter.
    """
    directory = reader.directory
    total = sum(stored.bytes for stored in directory.objects)
    problems: list[str] = []
    done = 0
    for stored in directory.objects:
        try:
            for position in _check_object(reader, stored):
                if progress is not None:
                    progress(done + position, total)
        except ArtifactError as error:
            problems.append(str(error))
        done += stored.bytes
        if progress is not None:
            progress(done, total)
    problems += _auxiliary_problems(reader)
    tensors = [stored for stored in directory.objects if isinstance(stored, TensorObject)]
    bound = _bound_objects(directory)
    return VerifyReport(
        tensors=len(tensors),
        resources=len(directory.objects) - len(tensors),
        bytes_checked=done,
        problems=tuple(dict.fromkeys(problems)),  # a missing part is one problem, however many objects lie in it
        unbound=tuple(tensor.id for tensor in tensors if tensor.id not in bound),
    )


def _check_object(reader: ArtifactReader, stored: StoredObject) -> Iterator[int]:
    """Check one object block by block; yields the bytes checked so far."""
    if isinstance(stored, TensorObject):
        geometry = reader.geometry(stored.id)
        validate_gaps(reader.source(stored.id), geometry, _where(reader, stored))
        yield from _check_rows(reader, stored, geometry)
    else:
        if stored.encoding != RAW_BYTES:
            raise ArtifactError(
                f"{_where(reader, stored)}: this release does not know the encoding {stored.encoding!r}"
            )
        reader.read_range(stored.id, stored.bytes - 1, stored.bytes)


def _check_rows(reader: ArtifactReader, stored: TensorObject, geometry: Geometry) -> Iterator[int]:
    read = reader.source(stored.id)
    if geometry.layout is Layout.CONTIGUOUS:  # every word is legal; reading proves that the files are there
        for begin in range(0, stored.bytes, _BLOCK_BYTES):
            yield begin + read(begin, min(begin + _BLOCK_BYTES, stored.bytes)).size
        return
    step = max(1, _BLOCK_BYTES // geometry.padded_columns)
    for row in range(0, geometry.rows, step):
        stop = min(row + step, geometry.rows)
        validate_rows(read, geometry, row, stop, _where(reader, stored))
        yield stored.bytes * stop // geometry.rows


def _where(reader: ArtifactReader, stored: StoredObject) -> str:
    return f"{reader.path}: object {stored.id!r}"


def _auxiliary_problems(reader: ArtifactReader) -> list[str]:
    problems = []
    for use in reader.directory.uses:
        for role, binding in use.auxiliaries.items():
            try:
                check_auxiliary(reader, use, role, binding)
            except ArtifactError as error:
                problems.append(str(error))
    return problems


def check_auxiliary(reader: ArtifactReader, use: Use, role: str, binding: Binding) -> None:
    """Check the values of a known auxiliary; unknown roles pass.

    Raises:
        ArtifactError: names the parameter, the role and the rule.
    """
    where = f"{reader.path}: use of {use.parameter!r} with input {use.input!r}: auxiliary {role!r}"
    if role == ACTIVATION_INPUT_DIVISOR:
        _require(reader, binding, Format.FP32, 1, f"{where} must be an fp32 scalar")
        value = float(reader.decode_binding(binding, (1,), where)[0])
        if not (math.isfinite(value) and value > 0):
            raise ArtifactError(f"{where} must be positive and finite, got {value}")
    if role == HADAMARD_SIGNS:
        _require(reader, binding, Format.BF16, HADAMARD_BLOCK, f"{where} must be bf16 [K], K a multiple of 1024")
        if not (np.abs(reader.decode_binding(binding, None, where)) == 1).all():
            raise ArtifactError(f"{where} must hold only +1 and -1")


def _require(reader: ArtifactReader, binding: Binding, fmt: Format, multiple: int, message: str) -> None:
    directory = reader.directory
    formats = {directory.tensor(part.object).format for part in directory.parts(binding)}
    elements = directory.elements(binding)
    scalar_expected = multiple == 1
    if formats != {fmt.value} or elements % multiple or (scalar_expected and elements != 1):
        raise ArtifactError(message)


def _bound_objects(directory: Directory) -> set[str]:
    auxiliaries = [binding for use in directory.uses for binding in use.auxiliaries.values()]
    every = [*directory.bindings.values(), *auxiliaries]
    return {part.object for binding in every for part in directory.parts(binding)}
