"""The typed directory of an artifact: components, objects, bindings, uses and files.

Format and layout names stay strings, so a directory from a later release can be read and inspected; only
decoding an object refuses what it does not know. `directory_json` parses and serialises this model.
Source: artifact v3, section 2.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ninfer.artifact.formats import known_format
from ninfer.artifact.json_strict import JsonObject
from ninfer.artifact.layouts import Geometry, geometry, known_layout
from ninfer.errors import ArtifactError

RAW_BYTES = "raw_bytes_v1"
TENSOR_ALIGNMENT = 256
TEXT = "text"


class ActivationPolicy(enum.Enum):
    """Permitted activation widths of a Use: permissions, never obligations."""

    A16_ONLY = "A16Only"
    ALLOW_A8 = "AllowA8"
    ALLOW_A4 = "AllowA4"

    @property
    def widths(self) -> frozenset[int]:
        """Activation widths in bits; a fused call takes the intersection over its Uses."""
        return frozenset({"A16Only": (16,), "AllowA8": (16, 8), "AllowA4": (16, 8, 4)}[self.value])


class ProposalDomain(enum.Enum):
    """Which vocabulary rows the draft head proposes: all of them, or an indexed subset."""

    FULL = "full"
    INDEXED = "indexed"


@dataclass(frozen=True, slots=True)
class Proposal:
    """`rows` is the size of the indexed subset, None for the full domain."""

    domain: ProposalDomain
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Component:
    """One component (`text`, `vision`, `mtp`, `dflash`, `dflash2`).

    Attributes:
        config: the architecture's configuration, unchecked here.
        target: the component this one serves; `text` for every optional one.
        resources: role -> ID of a resource object.
        proposal: only on `text`.
    """

    config: JsonObject
    target: str | None = None
    resources: Mapping[str, str] = field(default_factory=dict)
    proposal: Proposal | None = None


@dataclass(frozen=True, slots=True)
class TensorObject:
    """An encoded tensor at payload bytes `[offset, offset + bytes)`; `[]` is a scalar with one element."""

    id: str
    shape: tuple[int, ...]
    format: str
    layout: str
    offset: int
    bytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class ResourceObject:
    """Raw bytes (tokenizer, template, ...) at payload bytes `[offset, offset + bytes)`."""

    id: str
    offset: int
    bytes: int
    encoding: str = RAW_BYTES


StoredObject: TypeAlias = TensorObject | ResourceObject


@dataclass(frozen=True, slots=True)
class Part:
    """Logical C-order elements `[begin, end)` of a tensor object (padding and scales are no elements)."""

    object: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class WholeBinding:
    """A parameter that is one whole object of the same shape."""

    object: str


@dataclass(frozen=True, slots=True)
class PartsBinding:
    """A parameter whose C-order elements are these parts, joined in order."""

    parts: tuple[Part, ...]


Binding: TypeAlias = WholeBinding | PartsBinding


@dataclass(frozen=True, slots=True)
class Use:
    """One mathematical use of a parameter. A policy of None means the directory does not state one."""

    parameter: str
    input: str
    activation_policy: ActivationPolicy | None = ActivationPolicy.A16_ONLY
    auxiliaries: Mapping[str, Binding] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of the set: `path` is None for the entry, a plain file name for parts."""

    path: str | None
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Directory:
    """Everything the JSON directory says. Objects are in order of increasing offset."""

    components: Mapping[str, Component]
    objects: tuple[StoredObject, ...]
    bindings: Mapping[str, Binding]
    uses: tuple[Use, ...] = ()
    files: tuple[FileEntry, ...] = ()
    metadata: JsonObject | None = None
    provenance: JsonObject | None = None
    _by_id: Mapping[str, StoredObject] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", {stored.id: stored for stored in self.objects})

    def object(self, object_id: str) -> StoredObject:
        """The object called `object_id`. Raises ArtifactError when there is none."""
        found = self._by_id.get(object_id)
        if found is None:
            raise ArtifactError(f"the artifact has no object {object_id!r}")
        return found

    def tensor(self, object_id: str) -> TensorObject:
        """The tensor called `object_id`. Raises ArtifactError when it is missing or a resource."""
        found = self.object(object_id)
        if not isinstance(found, TensorObject):
            raise ArtifactError(f"the object {object_id!r} is a resource, not a tensor")
        return found

    def binding(self, parameter: str) -> Binding:
        """The binding of `parameter`. Raises ArtifactError when there is none."""
        found = self.bindings.get(parameter)
        if found is None:
            raise ArtifactError(f"the artifact binds no parameter {parameter!r}")
        return found

    def parts(self, binding: Binding) -> tuple[Part, ...]:
        """The parts of a binding; a whole object is the single part of all its elements."""
        if isinstance(binding, PartsBinding):
            return binding.parts
        return (Part(binding.object, 0, self.tensor(binding.object).elements),)

    def elements(self, binding: Binding) -> int:
        """Number of logical elements of a binding."""
        return sum(part.end - part.begin for part in self.parts(binding))

    @property
    def payload_bytes(self) -> int:
        """End of the last object: the least logical payload that holds them all."""
        return max((stored.offset + stored.bytes for stored in self.objects), default=0)

    @property
    def name(self) -> str | None:
        """`metadata.name`, the public model name, when the artifact states one."""
        name = (self.metadata or {}).get("name")
        return name if isinstance(name, str) else None


def tensor_geometry(tensor: TensorObject) -> Geometry:
    """The byte geometry of a tensor, after checking that this release knows it and its size agrees.

    Raises:
        ArtifactError: unknown format or layout, a shape they cannot store, or a wrong `bytes`.
    """
    fmt, layout = known_format(tensor.format), known_layout(tensor.layout)
    if fmt is None or layout is None:
        unknown = f"format {tensor.format!r}" if fmt is None else f"layout {tensor.layout!r}"
        raise ArtifactError(f"object {tensor.id!r}: this release does not know the {unknown}; update ninfer")
    try:
        result = geometry(fmt, tensor.shape, layout)
    except ArtifactError as error:
        raise ArtifactError(f"object {tensor.id!r}: {error}") from None
    if result.total_bytes != tensor.bytes:
        raise ArtifactError(
            f"object {tensor.id!r}: {fmt.value} {list(tensor.shape)} takes {result.total_bytes} bytes,"
            f" but the directory says {tensor.bytes}"
        )
    return result
