"""Plans a conversion: which objects are written, how parameters bind to them, and the artifact's directory.

Everything that can be wrong with names, shapes, dtypes, formats and the recipe is found here, before a byte is
written and before tensor data is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ninfer import __version__
from ninfer.artifact.directory import (
    ActivationPolicy,
    Binding,
    Component,
    Directory,
    Proposal,
    ProposalDomain,
    StoredObject,
    Use,
    WholeBinding,
)
from ninfer.artifact.formats import Format
from ninfer.artifact.planning import place_objects, resource_object, tensor_object
from ninfer.convert.data import NamedData, PlainData
from ninfer.convert.methods import cast_direct, import_encoded
from ninfer.convert.packing import Piece, PlannedTensor, pack
from ninfer.convert.qwen3_5.adapter import QwenModel
from ninfer.convert.qwen3_5.names import BASE, sliced
from ninfer.convert.recipe import Recipe
from ninfer.convert.sources.rows import ConstantRows
from ninfer.errors import ConfigError
from ninfer.models.qwen3_5.inventory import ParameterSpec

_POLICY_ORDER = (ActivationPolicy.A16_ONLY, ActivationPolicy.ALLOW_A8, ActivationPolicy.ALLOW_A4)
_INPUT_DIVISOR = "activation_input_divisor"


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """The directory to write, the resources' bytes by object ID, and the tensors in file order."""

    directory: Directory
    resources: Mapping[str, bytes]
    tensors: tuple[PlannedTensor, ...]

    @property
    def source_bytes(self) -> int:
        return sum(tensor.source_bytes for tensor in self.tensors)


def plan_conversion(model: QwenModel, recipe: Recipe, recipe_names: Sequence[str], name: str | None) -> ConversionPlan:
    """Resolve a recipe over a model.

    Args:
        recipe_names: recipe and overrides as the user gave them, for provenance.
        name: the public model name, or None.

    Raises:
        ConfigError: names the parameter, tensor or file at fault.
    """
    recipe.check_shared()
    pieces = {spec.name: _pieces(model, recipe, spec) for spec in model.parameters if recipe.owner(spec.name) is None}
    packed = pack(pieces, recipe.packing(), recipe.demanded_groups)
    _check_sources(model, pieces)
    bindings = dict(packed.bindings)
    for spec in model.parameters:
        owner = recipe.owner(spec.name)
        if owner is not None:
            bindings[spec.name] = bindings[owner]
    uses, auxiliaries = _Uses(model, recipe, pieces).build()
    tensors = (*packed.tensors, *auxiliaries)
    resources = _resources(model)
    directory = Directory(
        components=_components(model),
        objects=_objects(resources, tensors),
        bindings={spec.name: bindings[spec.name] for spec in model.parameters},
        uses=uses,
        metadata={"name": name} if name is not None else None,
        provenance=_provenance(model, recipe_names, tensors),
    )
    return ConversionPlan(directory, resources, tensors)


def _pieces(model: QwenModel, recipe: Recipe, spec: ParameterSpec) -> tuple[Piece, ...]:
    pieces = []
    for segment in recipe.segments(spec.name):
        chosen = segment.assignment
        whole = model.data(spec, chosen.source, chosen.method, chosen.format)
        if whole.rows != spec.shape[0]:
            raise ConfigError(f"{spec.name}: the source has {whole.rows} rows, the config needs {spec.shape[0]}")
        data = sliced(whole, segment.begin, segment.end)
        source = chosen.source or model.sources.source_of(spec.component).name
        pieces.append(Piece(spec, segment.begin, segment.end, chosen.format, chosen.method, source, data))
    return tuple(pieces)


def _check_sources(model: QwenModel, pieces: Mapping[str, Sequence[Piece]]) -> None:
    """A source that nothing takes data from is a misspelt name."""
    taken = {piece.source for parts in pieces.values() for piece in parts}
    for name in model.sources.names:
        if name != BASE and name not in taken:
            raise ConfigError(f"--source {name}: no component and no statement of the recipe takes anything from it")


class _Uses:
    """Builds the Uses, and the small objects that hold their auxiliary values (equal values are stored once)."""

    def __init__(self, model: QwenModel, recipe: Recipe, pieces: Mapping[str, Sequence[Piece]]) -> None:
        self._model = model
        self._recipe = recipe
        self._pieces = pieces
        self._objects: dict[tuple[str, str, bytes], PlannedTensor] = {}

    def build(self) -> tuple[tuple[Use, ...], tuple[PlannedTensor, ...]]:
        uses = tuple(use for spec in self._model.parameters if spec.uses for use in self._parameter_uses(spec))
        return uses, tuple(self._objects.values())

    def _parameter_uses(self, spec: ParameterSpec) -> list[Use]:
        stated = self._recipe.policy(spec.name)
        pieces = self._pieces[self._recipe.owner(spec.name) or spec.name]
        values = {**self._imported(pieces[0]), **stated.auxiliaries}
        a8, has_divisor = self._recipe.a8_permitted, _INPUT_DIVISOR in values
        policy = stated.policy or min(
            (_default_policy(piece.format, a8, has_divisor) for piece in pieces), key=_POLICY_ORDER.index
        )
        needs_divisor = policy is ActivationPolicy.ALLOW_A4 and any(piece.format is Format.NVFP4 for piece in pieces)
        if needs_divisor and _INPUT_DIVISOR not in values:
            raise ConfigError(f"recipe: {spec.name}: AllowA4 needs the auxiliary {_INPUT_DIVISOR}")
        bound = {role: self._auxiliary(spec, role, value) for role, value in sorted(values.items())}
        return [Use(spec.name, use.input, policy, bound) for use in spec.uses]

    def _imported(self, first: Piece) -> dict[str, NDArray[np.float32]]:
        """The activation divisor that an imported NVFP4 matrix brings along."""
        if first.method is not import_encoded or first.format is not Format.NVFP4:
            return {}
        divisor = self._model.sources.input_divisor(first.spec, first.source)
        return {} if divisor is None else {_INPUT_DIVISOR: np.array(divisor, np.float32)}

    def _auxiliary(self, spec: ParameterSpec, role: str, value: NDArray[np.float32]) -> Binding:
        key = (spec.component, role, value.tobytes())
        if key not in self._objects:
            number = sum(other[:2] == key[:2] for other in self._objects)
            identifier = f"{spec.component}/auxiliaries/{role}/{number}"
            fmt = Format.FP32 if role == _INPUT_DIVISOR else Format.BF16
            rows = PlainData(ConstantRows(value.reshape(-1, 1)))
            parts = (NamedData(f"{spec.name} {role}", rows),)
            self._objects[key] = PlannedTensor(identifier, fmt, value.shape, cast_direct, "recipe", parts)
        return WholeBinding(self._objects[key].id)


def _default_policy(fmt: Format, a8: bool, has_divisor: bool) -> ActivationPolicy:
    """The permission a format suggests. Without an activation divisor NVFP4 has no A4 path to permit."""
    if fmt is Format.NVFP4 and has_divisor:
        return ActivationPolicy.ALLOW_A4
    allowed = fmt is Format.FP8_ROW or (a8 and not fmt.is_direct)
    return ActivationPolicy.ALLOW_A8 if allowed else ActivationPolicy.A16_ONLY


def _components(model: QwenModel) -> dict[str, Component]:
    configs = model.config.to_artifact()
    return {
        component: Component(
            config=configs[component],
            target=None if component == "text" else "text",
            resources={role: _resource_id(component, role) for role in model.resources[component]},
            proposal=_proposal(model) if component == "text" else None,
        )
        for component in model.config.components
    }


def _proposal(model: QwenModel) -> Proposal | None:
    if not model.config.speculative:
        return None
    if model.proposal is None:
        return Proposal(ProposalDomain.FULL)
    return Proposal(ProposalDomain.INDEXED, len(model.proposal))


def _resources(model: QwenModel) -> dict[str, bytes]:
    return {
        _resource_id(component, role): data
        for component, roles in model.resources.items()
        for role, data in roles.items()
    }


def _resource_id(component: str, role: str) -> str:
    return f"{component}/resources/{role}"


def _objects(resources: Mapping[str, bytes], tensors: Sequence[PlannedTensor]) -> tuple[StoredObject, ...]:
    stored: list[StoredObject] = [resource_object(identifier, len(data)) for identifier, data in resources.items()]
    stored += (tensor_object(tensor.id, tensor.format, tensor.shape) for tensor in tensors)
    return place_objects(stored)


def _provenance(model: QwenModel, recipe_names: Sequence[str], tensors: Sequence[PlannedTensor]) -> dict[str, object]:
    """Where the artifact comes from: no absolute paths, so that it says nothing about the machine."""
    return {
        "tool": "ninfer",
        "version": __version__,
        "recipe": recipe_names[0],
        "overrides": list(recipe_names[1:]),
        "sources": {
            name: {
                "directory": checkpoint.path.resolve().name,
                "config_sha256": checkpoint.config_sha256,
                "tensors": len(checkpoint.tensors),
                "bytes": checkpoint.data_bytes,
            }
            for name, checkpoint in model.sources.checkpoints.items()
        },
        "objects": {tensor.id: {"method": tensor.method.name, "source": tensor.source} for tensor in tensors},
    }
