"""The binder: from parameter names to prepared weights, through an artifact's bindings and Uses.

It checks what the generic reader cannot know: that every parameter of the inventory is bound, with the right shape and
Uses, in a format that its consumer takes. Errors name the parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ninfer.artifact.codec import Decoded
from ninfer.artifact.directory import Directory, Part, Use
from ninfer.artifact.formats import known_format
from ninfer.artifact.reader import ArtifactReader
from ninfer.errors import ArtifactError
from ninfer.kernels.placement import HOST, Placement, Stored, borrow
from ninfer.kernels.weights import LinearWeight, TableWeight, WeightView, prepare_linear, prepare_table
from ninfer.models.qwen3_5.config import ModelConfig
from ninfer.models.qwen3_5.inventory import RESOURCE_ROLES, ParameterSpec, component_inventory

HADAMARD_SIGNS = "hadamard_signs"
AUXILIARY_ROLES = (HADAMARD_SIGNS, "activation_input_divisor")


def read_config(directory: Directory, where: str) -> ModelConfig:
    """The configs of all components, checked against one another and against their resources.

    Raises:
        ArtifactError: a component lacks a resource role that its kind requires.
        ConfigError: a config member is wrong.
    """
    configs = {name: component.config for name, component in directory.components.items()}
    model = ModelConfig.from_artifact(configs, f"{where}: components")
    for name, component in directory.components.items():
        missing = [role for role in RESOURCE_ROLES[name] if role not in component.resources]
        if missing:
            raise ArtifactError(f"{where}: components.{name}.resources: {missing[0]} is missing; convert it again")
    return model


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object of an artifact, for a placement to take. Implements Stored."""

    reader: ArtifactReader
    id: str

    @property
    def size(self) -> int:
        return self.reader.directory.object(self.id).bytes

    def whole(self) -> NDArray[np.uint8]:
        return self.reader.read_object(self.id)

    def part(self, begin: int, end: int) -> NDArray[np.uint8]:
        return self.reader.read_range(self.id, begin, end)


def _mapped(stored: Stored) -> torch.Tensor:
    return borrow(stored.whole())


@dataclass(slots=True)
class Binder:
    """Prepares weights of one artifact by parameter name. Check with `check` before preparing.

    Attributes:
        placement: where they are to live.
        bring: what takes encoded objects there, see `Placement.uploading`.
    """

    reader: ArtifactReader
    where: str
    placement: Placement = HOST
    bring: Callable[[Stored], torch.Tensor] = _mapped
    _uses: Mapping[str, Mapping[str, Use]] = field(init=False)
    _inventories: dict[str, tuple[ParameterSpec, ...]] = field(init=False, default_factory=dict)
    _matrices: dict[str, WeightView] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        uses: dict[str, dict[str, Use]] = {}
        for use in self.reader.directory.uses:
            uses.setdefault(use.parameter, {})[use.input] = use
        self._uses = uses

    def check(self, model: ModelConfig, components: Iterable[str]) -> None:
        """Require every parameter of these components, with its shape, format class and Uses.

        Raises:
            ArtifactError: naming the parameter and what was expected of it.
        """
        for component in components:
            known = self._inventory(model, component)
            for spec in known:
                self._check_parameter(spec)
            self._check_no_others(component, {spec.name for spec in known})

    def parameter_count(self, model: ModelConfig, components: Iterable[str]) -> int:
        """Elements of all parameters of these components, shared data counted once."""
        specs = (spec for component in components for spec in self._inventory(model, component))
        return sum(spec.elements for spec in specs if spec.shares is None)

    def stored_bytes(self, model: ModelConfig, components: Iterable[str]) -> int:
        """Bytes of all objects that hold parameters of these components, shared ones counted once."""
        directory = self.reader.directory
        specs = (spec for component in components for spec in self._inventory(model, component))
        objects = {part.object for spec in specs for part in directory.parts(directory.binding(spec.name))}
        return sum(directory.object(name).bytes for name in objects)

    def linear(self, *names: str) -> LinearWeight:
        """The rows of these projections, one after another, as one matrix.

        Its input may be quantised to 8 bits only where every Use of every projection permits that.
        """
        views = [view for name in names for view in self.views(name)]
        uses = {name: self._uses.get(name, {}).values() for name in names}
        signs = self._signs(names, [use for found in uses.values() for use in found])
        return prepare_linear(views, signs=signs, allow_a8=all(_allows_a8(found) for found in uses.values()))

    def table(self, name: str) -> TableWeight:
        """A matrix whose rows are looked up by index."""
        views = self.views(name)
        if len(views) != 1:
            raise ArtifactError(f"{self.where}: {name} is bound in {len(views)} parts; a lookup table must be one")
        return prepare_table(views[0])

    def dense(self, name: str) -> torch.Tensor:
        """A direct parameter as fp32, in its stored shape."""
        return self._placed(self.reader.decode_parameter(name))

    def views(self, name: str) -> tuple[WeightView, ...]:
        """The parts of a matrix parameter as row ranges of their objects."""
        directory = self.reader.directory
        return tuple(self._view(name, part) for part in directory.parts(directory.binding(name)))

    def _view(self, name: str, part: Part) -> WeightView:
        """The rows of one part. Objects hold the rows of many parameters, so each is read and checked once."""
        if part.object not in self._matrices:
            self._matrices[part.object] = self._matrix(name, part.object)
        parent = self._matrices[part.object]
        if part.begin % parent.columns or part.end % parent.columns:
            raise ArtifactError(f"{self.where}: {name}: its part of {part.object!r} does not consist of whole rows")
        begin, end = part.begin // parent.columns, part.end // parent.columns
        return WeightView(parent.format, parent.shape, begin, end, parent.data)

    def _matrix(self, name: str, object_id: str) -> WeightView:
        tensor = self.reader.directory.tensor(object_id)
        fmt = known_format(tensor.format)
        if fmt is None:
            raise ArtifactError(f"{self.where}: {name}: format {tensor.format!r} is unknown; update ninfer")
        if len(tensor.shape) != 2:
            raise ArtifactError(f"{self.where}: {name}: bound to {list(tensor.shape)}, expected a matrix")
        rows, columns = tensor.shape
        return WeightView(fmt, (rows, columns), 0, rows, self.bring(StoredObject(self.reader, object_id)))

    def _inventory(self, model: ModelConfig, component: str) -> tuple[ParameterSpec, ...]:
        if component not in self._inventories:
            self._inventories[component] = component_inventory(model, component)
        return self._inventories[component]

    def _signs(self, names: Iterable[str], uses: Iterable[Use]) -> torch.Tensor | None:
        """The Hadamard signs of these projections; all of them must agree, since they share one input."""
        found = [self._sign_values(use) for use in uses]
        first = found[0] if found else None
        if any((signs is None) != (first is None) for signs in found) or any(
            signs is not None and first is not None and not torch.equal(signs, first) for signs in found
        ):
            raise ArtifactError(f"{self.where}: {', '.join(names)}: fused projections must share {HADAMARD_SIGNS}")
        return first

    def _sign_values(self, use: Use) -> torch.Tensor | None:
        binding = use.auxiliaries.get(HADAMARD_SIGNS)
        if binding is None:
            return None
        return self._placed(self.reader.decode_binding(binding)).reshape(-1)

    def _placed(self, values: Decoded) -> torch.Tensor:
        return self.placement.upload(torch.from_numpy(np.array(values, dtype=np.float32)))

    def _check_parameter(self, spec: ParameterSpec) -> None:
        directory = self.reader.directory
        if spec.name not in directory.bindings:
            raise ArtifactError(f"{self.where}: bindings: {spec.name} is missing; convert the checkpoint again")
        binding = directory.bindings[spec.name]
        parts = directory.parts(binding)
        tensors = [directory.tensor(part.object) for part in parts]
        if directory.elements(binding) != spec.elements:
            raise ArtifactError(
                f"{self.where}: {spec.name}: holds {directory.elements(binding)} elements, "
                f"expected {math.prod(spec.shape)} for shape {list(spec.shape)}"
            )
        for tensor in tensors:
            if len(spec.shape) == 2 and tensor.shape[-1:] != spec.shape[-1:]:
                raise ArtifactError(
                    f"{self.where}: {spec.name}: rows of {tensor.shape[-1:]} elements, expected {spec.shape[-1]}"
                )
            if spec.direct is not None and tensor.format != spec.direct.value:
                raise ArtifactError(
                    f"{self.where}: {spec.name}: stored as {tensor.format}, expected {spec.direct.value}"
                )
        for use in spec.uses:
            self._check_use(spec.name, use.input)

    def _check_use(self, name: str, input_name: str) -> None:
        use = self._uses.get(name, {}).get(input_name)
        if use is None or use.activation_policy is None:
            problem = "no Use" if use is None else "no activation_policy in its Use"
            raise ArtifactError(f"{self.where}: uses: {name} has {problem} at input {input_name}")
        unknown = sorted(set(use.auxiliaries) - set(AUXILIARY_ROLES))
        if unknown:
            raise ArtifactError(f"{self.where}: uses: {name}: unknown auxiliary {unknown[0]!r}; update ninfer")

    def _check_no_others(self, component: str, known: set[str]) -> None:
        prefix = f"{component}/"
        others = [name for name in self.reader.directory.bindings if name.startswith(prefix) and name not in known]
        if others:
            raise ArtifactError(f"{self.where}: bindings: {others[0]} is no parameter of this {component} component")


def _allows_a8(uses: Collection[Use]) -> bool:
    """Whether there are Uses and all of them permit 8-bit activations; one without a policy permits nothing."""
    policies = [use.activation_policy for use in uses]
    return bool(policies) and all(policy is not None and 8 in policy.widths for policy in policies)
