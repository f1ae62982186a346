"""A recipe says which format, method and source every parameter takes, and what is packed together.

Parameters are named by shell patterns (`*` also matches `/`); later statements win over earlier ones, and
a pattern that matches nothing is an error. A recipe file defines `def recipe(recipe): ...`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact.directory import ActivationPolicy
from ninfer.artifact.formats import Format, known_format
from ninfer.convert.methods import METHODS, CustomFunction, Method, custom_method, default_method
from ninfer.errors import ConfigError
from ninfer.models.qwen3_5.config import ModelConfig
from ninfer.models.qwen3_5.inventory import PackingGroup, ParameterSpec

SHORT_NAMES = {
    "q4": Format.Q4,
    "q5": Format.Q5,
    "q6": Format.Q6,
    "q8": Format.Q8,
    "t2": Format.T2,
    "fp8": Format.FP8_ROW,
}
AUXILIARY_ROLES = ("activation_input_divisor", "hadamard_signs")


@dataclass(frozen=True, slots=True)
class Assignment:
    """Format, method and source of some rows. A source of None is the component's own."""

    format: Format
    method: Method
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows `[begin, end)` of a parameter with one assignment."""

    begin: int
    end: int
    assignment: Assignment


@dataclass(frozen=True, slots=True, eq=False)
class UsePolicy:
    """What a recipe says about Uses; `policy` None keeps the format's default."""

    policy: ActivationPolicy | None = None
    auxiliaries: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)


class Recipe:
    """Collects a recipe's statements about one model; handed to every recipe function.

    Attributes:
        model: configs of all components, for recipes that depend on architecture or depth.
        a8_permitted: whether Uses of quantised weights permit 8-bit activations unless `use` says otherwise.
    """

    def __init__(
        self,
        model: ModelConfig,
        parameters: Iterable[ParameterSpec],
        groups: Iterable[PackingGroup],
        sources: Iterable[str],
    ) -> None:
        self.model = model
        self.a8_permitted = False
        self._specs = {spec.name: spec for spec in parameters}
        self._shares = {spec.name: spec.shares for spec in self._specs.values() if spec.shares is not None}
        self._groups = list(groups)
        self._sources = frozenset(sources)
        self._segments: dict[str, tuple[Segment, ...]] = {}
        self._uses: dict[str, UsePolicy] = {}
        self._separate: set[str] = set()
        self._demanded: set[tuple[str, ...]] = set()

    def matches(self, pattern: str) -> tuple[str, ...]:
        """Names of the parameters that `pattern` matches; may be empty."""
        if not any(sign in pattern for sign in "*?["):
            return (pattern,) if pattern in self._specs else ()
        matcher = re.compile(fnmatch.translate(pattern)).match
        return tuple(name for name in self._specs if matcher(name))

    def free_parameters(self, pattern: str = "*") -> tuple[str, ...]:
        """Matching parameters that own their data and may take any format."""
        names = self.matches(pattern)
        return tuple(name for name in names if self._specs[name].direct is None and name not in self._shares)

    def assign(
        self,
        pattern: str,
        format: Format | str,
        method: Method | str | CustomFunction | None = None,
        *,
        source: str | None = None,
        rows: tuple[int, int] | None = None,
    ) -> None:
        """Give the matching parameters (or only their `rows`) a format, a method and a source.

        Args:
            format: a Format, its artifact name, or one of q4 q5 q6 q8 t2 fp8.
            method: a method of `ninfer.convert.methods` or its name, a function (see there), or None for the
                format's own.
            source: name of a source given to the conversion; None is the component's own.
            rows: half-open row range; the other rows keep their assignment.

        Raises:
            ConfigError: nothing matches, an unknown format or source, a method that cannot produce the format,
                or a format that a parameter may not take.
        """
        chosen = _format(format)
        how = default_method(chosen) if method is None else _method(method)
        how.check(chosen, f"recipe: {pattern}")
        if source is not None and source not in self._sources:
            raise ConfigError(f"recipe: {pattern}: needs the source {source!r}; pass --source {source}=DIR")
        for name in self._required(pattern):
            spec = self._specs[name]
            if spec.direct is not None and spec.direct is not chosen:
                raise ConfigError(f"recipe: {name} must be {spec.direct.value}, not {chosen.value}")
            self._replace(spec, rows, Assignment(chosen, how, source))

    def use(
        self,
        pattern: str,
        policy: ActivationPolicy | str | None = None,
        *,
        auxiliaries: Mapping[str, Any] | None = None,
    ) -> None:
        """Set the activation policy and auxiliary values of the matching parameters' Uses.

        Args:
            policy: A16Only, AllowA8 or AllowA4; None keeps the format's default.
            auxiliaries: `activation_input_divisor` (one number) and/or `hadamard_signs` (±1 of length K).
        """
        chosen = _policy(policy)
        for name in self._required(pattern):
            if not self._specs[name].uses:
                raise ConfigError(f"recipe: {name} has no Uses")
            earlier = self._uses.get(name, UsePolicy())
            values = {role: _auxiliary(self._specs[name], role, value) for role, value in (auxiliaries or {}).items()}
            self._uses[name] = UsePolicy(chosen or earlier.policy, {**earlier.auxiliaries, **values})

    def permit_a8(self) -> None:
        """Permit 8-bit activations wherever a weight ends up quantised and `use` states no policy."""
        self.a8_permitted = True

    def group(self, *patterns: str) -> None:
        """Store the matching parameters as one object, rows in the order of the patterns.

        Formats and methods must agree when the recipe is done; otherwise the conversion raises `ConfigError`.
        """
        names = tuple(dict.fromkeys(name for pattern in patterns for name in self._required(pattern)))
        components = {self._specs[name].component for name in names}
        if len(components) > 1:
            raise ConfigError(f"recipe: group: an object belongs to one component, not to {sorted(components)}")
        self._groups = [self._without(group, set(names)) for group in self._groups]
        self._groups.append(PackingGroup(names))
        self._demanded.add(names)
        self._separate -= set(names)

    def separate(self, pattern: str) -> None:
        """Store each matching parameter as an object of its own, not packed and not shared."""
        for name in self._required(pattern):
            self._separate.add(name)
            self._shares.pop(name, None)

    def share(self, pattern: str, owner: str) -> None:
        """Bind the matching parameters to the data of `owner` instead of storing their own."""
        (owner_name,) = self._required(owner) if len(self.matches(owner)) == 1 else (None,)
        if owner_name is None or owner_name in self._shares:
            raise ConfigError(f"recipe: share: {owner!r} must name one parameter that owns its data")
        for name in self._required(pattern):
            if self._specs[name].shape != self._specs[owner_name].shape:
                raise ConfigError(f"recipe: share: {name} and {owner_name} have different shapes")
            if self._specs[owner_name].component not in (self._specs[name].component, "text"):
                raise ConfigError(f"recipe: share: {name} may only share data of its own component or of text")
            self._shares[name] = owner_name
            self._separate.discard(name)

    def owner(self, name: str) -> str | None:
        """The parameter whose data `name` binds, None when it has its own."""
        return self._shares.get(name)

    def segments(self, name: str) -> tuple[Segment, ...]:
        """Row segments of a parameter, in order, covering all its rows.

        Raises:
            ConfigError: the recipe says nothing about (some rows of) a parameter that needs a format.
        """
        spec = self._specs[name]
        found = self._segments.get(name, ())
        if not found and spec.direct is not None:
            return (Segment(0, _rows(spec), Assignment(spec.direct, default_method(spec.direct))),)
        covered = 0
        for segment in found:
            if segment.begin != covered:
                break
            covered = segment.end
        if covered != _rows(spec):
            raise ConfigError(f"recipe: {name}: rows [{covered}, {_rows(spec)}) have no format; assign one")
        return found

    def policy(self, name: str) -> UsePolicy:
        return self._uses.get(name, UsePolicy())

    def packing(self) -> tuple[PackingGroup, ...]:
        """Packing groups without what was separated or shares other data."""
        apart = self._separate | set(self._shares)
        return tuple(self._without(group, apart) for group in self._groups)

    @property
    def demanded_groups(self) -> frozenset[tuple[str, ...]]:
        """Groups that the recipe itself asked for: they must hold, not merely be tried."""
        return frozenset(self._demanded)

    def check_shared(self) -> None:
        """Raise `ConfigError` where a parameter that shares data was assigned something else than its owner."""
        for name, owner in self._shares.items():
            if name in self._segments and self._segments[name] != self._segments.get(owner):
                raise ConfigError(
                    f"recipe: {name} shares the data of {owner}, but both are assigned differently;"
                    f' assign them alike or call recipe.separate("{name}")'
                )

    def _without(self, group: PackingGroup, apart: set[str]) -> PackingGroup:
        if not apart & set(group.parameters):
            return group
        kept = tuple(part for part in group.fallback if not apart & set(part))
        return PackingGroup((), kept)

    def _required(self, pattern: str) -> tuple[str, ...]:
        names = self.matches(pattern)
        if not names:
            raise ConfigError(f"recipe: the pattern {pattern!r} matches no parameter")
        return names

    def _replace(self, spec: ParameterSpec, rows: tuple[int, int] | None, assignment: Assignment) -> None:
        begin, end = rows or (0, _rows(spec))
        if not 0 <= begin < end <= _rows(spec):
            raise ConfigError(f"recipe: {spec.name}: rows [{begin}, {end}) are not within its {_rows(spec)} rows")
        kept = []
        for old in self._segments.get(spec.name, ()):
            kept += [Segment(old.begin, min(old.end, begin), old.assignment)] if old.begin < begin else []
            kept += [Segment(max(old.begin, end), old.end, old.assignment)] if old.end > end else []
        merged = sorted([*kept, Segment(begin, end, assignment)], key=lambda segment: segment.begin)
        self._segments[spec.name] = tuple(merged)


RecipeFunction = Callable[[Recipe], None]


def _rows(spec: ParameterSpec) -> int:
    return spec.shape[0]


def _format(value: Format | str) -> Format:
    found = value if isinstance(value, Format) else SHORT_NAMES.get(value) or known_format(value)
    if found is None:
        names = [*SHORT_NAMES, *(fmt.value for fmt in Format)]
        raise ConfigError(f"recipe: unknown format {value!r}; expected one of {', '.join(names)}")
    return found


def _method(value: Method | str | CustomFunction) -> Method:
    if isinstance(value, str) and value not in METHODS:
        raise ConfigError(f"recipe: unknown method {value!r}; expected one of {', '.join(METHODS)} or a function")
    if isinstance(value, str):
        return METHODS[value]
    return value if isinstance(value, Method) else custom_method(value)


def _policy(value: ActivationPolicy | str | None) -> ActivationPolicy | None:
    if value is None or isinstance(value, ActivationPolicy):
        return value
    names = {policy.value: policy for policy in ActivationPolicy}
    if value not in names:
        raise ConfigError(f"recipe: unknown activation policy {value!r}; expected one of {', '.join(names)}")
    return names[value]


def _auxiliary(spec: ParameterSpec, role: str, value: Any) -> NDArray[np.float32]:
    """An auxiliary as float32: a scalar of shape [] or signs of shape [K]."""
    array = np.asarray(value, np.float32)
    if role == "activation_input_divisor":
        if array.size != 1 or not np.isfinite(array).all() or (array <= 0).any():
            raise ConfigError(f"recipe: {spec.name}: {role} must be one positive finite number")
        return array.reshape(())
    if role != "hadamard_signs":
        raise ConfigError(f"recipe: unknown auxiliary {role!r}; expected one of {', '.join(AUXILIARY_ROLES)}")
    columns = spec.shape[1]
    if array.shape != (columns,) or columns % 1024 or (np.abs(array) != 1).any():
        raise ConfigError(f"recipe: {spec.name}: {role} must be +1 or -1 for each of {columns} inputs, in 1024s")
    return array
