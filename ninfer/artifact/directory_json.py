"""The JSON form of the directory: strict parsing into the typed model, and serialisation.

Every refusal names the file and the JSON path and says what was expected. Source: artifact v3, section 2.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import PurePath

from ninfer.artifact import json_strict
from ninfer.artifact.directory import (
    TENSOR_ALIGNMENT,
    TEXT,
    ActivationPolicy,
    Binding,
    Component,
    Directory,
    FileEntry,
    Part,
    PartsBinding,
    Proposal,
    ProposalDomain,
    ResourceObject,
    StoredObject,
    TensorObject,
    Use,
    WholeBinding,
)
from ninfer.artifact.json_strict import JsonObject, Node
from ninfer.artifact.layouts import U64_MAX
from ninfer.errors import ArtifactError

_Objects = Mapping[str, StoredObject]
_POLICIES = tuple(policy.value for policy in ActivationPolicy)


def parse_directory(data: bytes, where: PurePath | str) -> Directory:
    """Parse and check the JSON directory of the entry file `where`.

    Args:
        data: the UTF-8 JSON text (trailing white space allowed).
        where: the entry's path, for messages; its file name must not reappear among the parts.

    Raises:
        ArtifactError: anything the generic reader must refuse (framing and object decode are elsewhere).
    """
    entry = PurePath(where)
    root = json_strict.parse(data, str(entry)).members(
        ("components", "objects", "bindings", "uses", "files"), ("metadata", "provenance")
    )
    files = _files(root["files"], entry.name)
    objects = _objects(root["objects"], sum(file.payload_bytes for file in files))
    by_id: _Objects = {stored.id: stored for stored in objects}
    bindings = {name: _binding(node, by_id) for name, node in root["bindings"].entries().items()}
    return Directory(
        components=_components(root["components"], by_id),
        objects=objects,
        bindings=bindings,
        uses=_uses(root["uses"], bindings, by_id),
        files=files,
        metadata=_metadata(root["metadata"]) if "metadata" in root else None,
        provenance=root["provenance"].open_object() if "provenance" in root else None,
    )


def _files(node: Node, entry_name: str) -> tuple[FileEntry, ...]:
    files: list[FileEntry] = []
    taken = {entry_name}
    for index, item in enumerate(node.items(non_empty=True)):
        members = item.members(("path", "payload_bytes"))
        path = None if index == 0 else _part_name(members["path"], taken)
        if index == 0 and members["path"].value is not None:
            members["path"].fail("null for the entry file")
        files.append(FileEntry(path, members["payload_bytes"].integer(1)))
    if sum(file.payload_bytes for file in files) > U64_MAX:
        node.refuse("the sum of payload_bytes exceeds 2^64-1")
    return tuple(files)


def _part_name(node: Node, taken: set[str]) -> str:
    name = node.identifier()
    if name in (".", "..") or "/" in name or "\\" in name:
        node.fail("a plain file name without '/' or '\\'")
    if name in taken:
        node.refuse(f"the file name {name!a} is used twice")
    taken.add(name)
    return name


def _objects(node: Node, payload_bytes: int) -> tuple[StoredObject, ...]:
    objects: list[StoredObject] = []
    seen: set[str] = set()
    end = 0
    for item in node.items(non_empty=True):
        stored = _object(item)
        if stored.id in seen:
            item.refuse(f"the object ID {stored.id!a} is used twice")
        if stored.offset < end:
            item.refuse(f"offset {stored.offset} is below {end}, the end of the object before (order or overlap)")
        end = stored.offset + stored.bytes
        if end > payload_bytes:
            item.refuse(f"the object ends at byte {end}, beyond the payload of {payload_bytes} bytes")
        seen.add(stored.id)
        objects.append(stored)
    return tuple(objects)


def _object(node: Node) -> StoredObject:
    kind = node.open_object().get("kind")
    if kind == "resource":
        members = node.members(("id", "kind", "encoding", "offset", "bytes"))
        offset, size = _extent(members)
        return ResourceObject(members["id"].identifier(), offset, size, members["encoding"].identifier())
    members = node.members(("id", "kind", "shape", "format", "layout", "offset", "bytes"))
    members["kind"].choice(("tensor", "resource"))
    offset, size = _extent(members)
    if offset % TENSOR_ALIGNMENT:
        members["offset"].fail(f"a multiple of {TENSOR_ALIGNMENT} for a tensor")
    return TensorObject(
        id=members["id"].identifier(),
        shape=_shape(members["shape"]),
        format=members["format"].identifier(),
        layout=members["layout"].identifier(),
        offset=offset,
        bytes=size,
    )


def _extent(members: dict[str, Node]) -> tuple[int, int]:
    offset, size = members["offset"].integer(), members["bytes"].integer(1)
    if offset + size > U64_MAX:
        members["bytes"].refuse("offset + bytes exceeds 2^64-1")
    return offset, size


def _shape(node: Node) -> tuple[int, ...]:
    dims = node.items()
    if len(dims) > 16:
        node.refuse(f"expected at most 16 dimensions, got {len(dims)}")
    shape = tuple(dim.integer(1) for dim in dims)
    if math.prod(shape) > U64_MAX:
        node.refuse("the number of elements exceeds 2^64-1")
    return shape


def _components(node: Node, objects: _Objects) -> dict[str, Component]:
    entries = node.entries()
    if TEXT not in entries:
        node.refuse("the component 'text' is missing")
    components = {name: _component(name, item, objects) for name, item in entries.items()}
    for name, component in components.items():
        if component.target is not None and component.target not in components:
            entries[name].refuse(f"the target {component.target!a} is not a component")
    return components


def _component(name: str, node: Node, objects: _Objects) -> Component:
    members = node.members(("config",), ("target", "resources", "proposal"))
    if "proposal" in members and name != TEXT:
        members["proposal"].refuse("only the component 'text' may have a proposal")
    resources = members["resources"].entries() if "resources" in members else {}
    return Component(
        config=members["config"].open_object(),
        target=members["target"].identifier() if "target" in members else None,
        resources={role: _resource_id(item, objects) for role, item in resources.items()},
        proposal=_proposal(members["proposal"]) if "proposal" in members else None,
    )


def _resource_id(node: Node, objects: _Objects) -> str:
    resource_id = node.identifier()
    if not isinstance(objects.get(resource_id), ResourceObject):
        node.fail("the ID of a resource object")
    return resource_id


def _proposal(node: Node) -> Proposal:
    if node.open_object().get("domain") == ProposalDomain.INDEXED.value:
        members = node.members(("domain", "rows"))
        return Proposal(ProposalDomain.INDEXED, members["rows"].integer(1))
    node.members(("domain",), ("rows",))["domain"].choice(tuple(domain.value for domain in ProposalDomain))
    node.members(("domain",))
    return Proposal(ProposalDomain.FULL)


def _binding(node: Node, objects: _Objects) -> Binding:
    if "parts" not in node.open_object():
        return WholeBinding(_tensor(node.members(("object",))["object"], objects).id)
    items = node.members(("parts",))["parts"].items(non_empty=True)
    parts = tuple(_part(item, objects) for item in items)
    if sum(part.end - part.begin for part in parts) > U64_MAX:
        node.refuse("the sum of the part ranges exceeds 2^64-1")
    return PartsBinding(parts)


def _part(node: Node, objects: _Objects) -> Part:
    members = node.members(("object", "range"))
    tensor = _tensor(members["object"], objects)
    bounds = [bound.integer() for bound in members["range"].items()]
    if len(bounds) != 2 or not bounds[0] < bounds[1] <= tensor.elements:
        members["range"].refuse(
            f"expected [begin, end] with begin < end <= {tensor.elements}, the elements of {tensor.id!a}"
        )
    return Part(tensor.id, bounds[0], bounds[1])


def _tensor(node: Node, objects: _Objects) -> TensorObject:
    tensor = objects.get(node.identifier())
    if not isinstance(tensor, TensorObject):
        node.fail("the ID of a tensor object")
    return tensor


def _uses(node: Node, bindings: Mapping[str, Binding], objects: _Objects) -> tuple[Use, ...]:
    uses: list[Use] = []
    seen: set[tuple[str, str]] = set()
    for item in node.items():
        use = _use(item, bindings, objects)
        if (use.parameter, use.input) in seen:
            item.refuse(f"the use of {use.parameter!a} with input {use.input!a} appears twice")
        seen.add((use.parameter, use.input))
        uses.append(use)
    return tuple(uses)


def _use(node: Node, bindings: Mapping[str, Binding], objects: _Objects) -> Use:
    members = node.members(("parameter", "input"), ("activation_policy", "auxiliaries"))
    if members["parameter"].identifier() not in bindings:
        members["parameter"].fail("a parameter named in bindings")
    auxiliaries = members["auxiliaries"].entries() if "auxiliaries" in members else {}
    return Use(
        parameter=members["parameter"].identifier(),
        input=members["input"].identifier(),
        activation_policy=_policy(members["activation_policy"]) if "activation_policy" in members else None,
        auxiliaries={role: _binding(item, objects) for role, item in auxiliaries.items()},
    )


def _policy(node: Node) -> ActivationPolicy:
    return ActivationPolicy(node.choice(_POLICIES))


def _metadata(node: Node) -> JsonObject:
    metadata = node.open_object()
    if "name" in metadata and not (isinstance(metadata["name"], str) and metadata["name"]):
        node.child("name", metadata["name"]).fail("a non-empty string")
    return metadata


def directory_to_json(directory: Directory) -> bytes:
    """Compact UTF-8 JSON of the directory; `parse_directory` reads back an equal value.

    Raises:
        ArtifactError: a config, metadata or provenance value that JSON cannot hold.
    """
    root: JsonObject = {
        "components": {name: _component_json(component) for name, component in directory.components.items()},
        "objects": [_object_json(stored) for stored in directory.objects],
        "bindings": {name: _binding_json(binding) for name, binding in directory.bindings.items()},
        "uses": [_use_json(use) for use in directory.uses],
        "files": [{"path": file.path, "payload_bytes": file.payload_bytes} for file in directory.files],
    }
    for name, value in (("metadata", directory.metadata), ("provenance", directory.provenance)):
        if value is not None:
            root[name] = value
    try:
        text = json.dumps(root, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise ArtifactError(f"the directory cannot be written as JSON: {error}") from None


def _component_json(component: Component) -> JsonObject:
    out: JsonObject = {"config": component.config}
    if component.target is not None:
        out["target"] = component.target
    if component.resources:
        out["resources"] = dict(component.resources)
    if component.proposal is not None:
        out["proposal"] = {"domain": component.proposal.domain.value}
        if component.proposal.rows is not None:
            out["proposal"]["rows"] = component.proposal.rows
    return out


def _object_json(stored: StoredObject) -> JsonObject:
    extent = {"offset": stored.offset, "bytes": stored.bytes}
    if isinstance(stored, ResourceObject):
        return {"id": stored.id, "kind": "resource", "encoding": stored.encoding, **extent}
    return {
        "id": stored.id,
        "kind": "tensor",
        "shape": list(stored.shape),
        "format": stored.format,
        "layout": stored.layout,
        **extent,
    }


def _binding_json(binding: Binding) -> JsonObject:
    if isinstance(binding, WholeBinding):
        return {"object": binding.object}
    return {"parts": [{"object": part.object, "range": [part.begin, part.end]} for part in binding.parts]}


def _use_json(use: Use) -> JsonObject:
    out: JsonObject = {"parameter": use.parameter, "input": use.input}
    if use.activation_policy is not None:
        out["activation_policy"] = use.activation_policy.value
    if use.auxiliaries:
        out["auxiliaries"] = {role: _binding_json(binding) for role, binding in use.auxiliaries.items()}
    return out
