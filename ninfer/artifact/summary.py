"""Sizes of an artifact by component and by format, from the directory alone.

An object belongs to the component that heads the names of the parameters bound to it (`text/...`,
`mtp/...`); one bound by several components counts once, under Text when Text is among them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ninfer.artifact.directory import TEXT, Directory, ResourceObject, StoredObject, TensorObject

UNBOUND = "(unbound)"
RESOURCE = "resource"


@dataclass(frozen=True, slots=True)
class Share:
    """Objects of one kind together. `elements` counts logical tensor elements, resources have none."""

    name: str
    objects: int
    elements: int
    bytes: int

    @property
    def bits_per_weight(self) -> float | None:
        """Stored bits per logical element, padding and scales included; None without elements."""
        return self.bytes * 8 / self.elements if self.elements else None


@dataclass(frozen=True, slots=True)
class ComponentSummary:
    """One component: its total, and its share by format (resources under the format `resource`)."""

    total: Share
    formats: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """The whole artifact. `total` covers objects; `file_payload_bytes` also the gaps between them."""

    name: str | None
    total: Share
    formats: tuple[Share, ...]
    components: tuple[ComponentSummary, ...]
    parameters: int
    uses: int
    files: int
    file_payload_bytes: int


def summarise(directory: Directory) -> Summary:
    """Sizes, element counts and bits per weight of `directory`, without reading any object."""
    owners = owning_components(directory)
    members: dict[str, list[StoredObject]] = defaultdict(list)
    for stored in directory.objects:
        members[owners[stored.id]].append(stored)
    order = sorted(members, key=lambda name: (name != TEXT, name == UNBOUND, name))
    return Summary(
        name=directory.name,
        total=_share("total", directory.objects),
        formats=_by_format(directory.objects),
        components=tuple(ComponentSummary(_share(name, members[name]), _by_format(members[name])) for name in order),
        parameters=len(directory.bindings),
        uses=len(directory.uses),
        files=len(directory.files),
        file_payload_bytes=sum(file.payload_bytes for file in directory.files),
    )


def owning_components(directory: Directory) -> dict[str, str]:
    """Object ID -> the component it counts under (`(unbound)` for an object nothing refers to)."""
    claims: dict[str, set[str]] = defaultdict(set)
    for name, binding in directory.bindings.items():
        for part in directory.parts(binding):
            claims[part.object].add(_head(name))
    for use in directory.uses:
        for binding in use.auxiliaries.values():
            for part in directory.parts(binding):
                claims[part.object].add(_head(use.parameter))
    for name, component in directory.components.items():
        for resource_id in component.resources.values():
            claims[resource_id].add(name)
    return {stored.id: _owner(claims[stored.id]) for stored in directory.objects}


def _head(parameter: str) -> str:
    return parameter.split("/", 1)[0]


def _owner(claimants: set[str]) -> str:
    if not claimants:
        return UNBOUND
    return TEXT if TEXT in claimants else min(claimants)


def _by_format(objects: Iterable[StoredObject]) -> tuple[Share, ...]:
    members: dict[str, list[StoredObject]] = defaultdict(list)
    for stored in objects:
        members[RESOURCE if isinstance(stored, ResourceObject) else stored.format].append(stored)
    shares = (_share(name, stored) for name, stored in members.items())
    return tuple(sorted(shares, key=lambda share: (-share.bytes, share.name)))


def _share(name: str, objects: Iterable[StoredObject]) -> Share:
    stored = list(objects)
    elements = sum(item.elements for item in stored if isinstance(item, TensorObject))
    return Share(name, len(stored), elements, sum(item.bytes for item in stored))
