"""Which quantisation scheme a checkpoint's config gives to each module.

compressed-tensors lists config groups with targets: exact module names, `re:` patterns, or module classes.
ModelOpt states one algorithm with excluded modules, or an algorithm per module.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ninfer.artifact.formats import Format
from ninfer.convert.sources.checkpoint import Checkpoint, read_json
from ninfer.errors import ConfigError

_MODELOPT = {"NVFP4": Format.NVFP4, "FP8": Format.FP8_ROW, "FP8_PER_CHANNEL_PER_TOKEN": Format.FP8_ROW}
_LINEAR = "Linear"


@dataclass(frozen=True, slots=True)
class _Group:
    """Targets of one config group. `format` is None when the scheme cannot be imported; `scheme` says why."""

    name: str
    targets: tuple[str, ...]
    format: Format | None
    scheme: str


@dataclass(frozen=True, slots=True)
class Schemes:
    """Resolves module names to formats."""

    where: str
    groups: tuple[_Group, ...]
    ignored: tuple[str, ...]

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Schemes:
        """Read the quantisation config of a checkpoint. Raises `ConfigError` when it has none."""
        config, where = _find(checkpoint)
        if "config_groups" in config:
            return cls(where, _config_groups(config, where), _ignored(config))
        if "quant_algo" in config:
            return cls(where, _modelopt_groups(config, where), _ignored(config))
        raise ConfigError(f"{where}: quant_method {config.get('quant_method')!r} cannot be imported")

    def of_module(self, module: str) -> Format | None:
        """The format of `module`, None when it is not quantised.

        An exact target wins over a pattern, a pattern over a class.

        Raises:
            ConfigError: the module's group has a scheme that the artifact's formats cannot hold.
        """
        if any(_matches(pattern, module) for pattern in self.ignored):
            return None
        for rank in (_exact, _pattern, _class):
            for group in self.groups:
                if any(rank(target, module) for target in group.targets):
                    return self._format(group, module)
        return None

    def _format(self, group: _Group, module: str) -> Format:
        if group.format is None:
            raise ConfigError(
                f"{self.where}.{group.name}: module {module!r} is {group.scheme}, which cannot be imported"
            )
        return group.format


def _find(checkpoint: Checkpoint) -> tuple[Mapping[str, object], str]:
    """The quantisation config, wherever this checkpoint keeps it."""
    text = checkpoint.config.get("text_config")
    for level, where in ((checkpoint.config, ""), (text, ".text_config")):
        value = level.get("quantization_config") if isinstance(level, Mapping) else None
        if isinstance(value, Mapping):
            return value, f"{checkpoint.path / 'config.json'}{where}.quantization_config"
    path = checkpoint.path / "hf_quant_config.json"
    if path.exists():
        value = read_json(path).get("quantization")
        if isinstance(value, Mapping):
            return value, f"{path}.quantization"
    raise ConfigError(f"{checkpoint.path}: has no quantization_config, so import_encoded has nothing to import")


def _config_groups(config: Mapping[str, object], where: str) -> tuple[_Group, ...]:
    groups = config["config_groups"]
    if not isinstance(groups, Mapping):
        raise ConfigError(f"{where}.config_groups: expected an object")
    return tuple(_config_group(f"config_groups.{name}", group, where) for name, group in groups.items())


def _config_group(name: str, group: object, where: str) -> _Group:
    members = group if isinstance(group, Mapping) else {}
    weights, targets = members.get("weights"), members.get("targets")
    if not isinstance(weights, Mapping) or not isinstance(targets, list):
        raise ConfigError(f"{where}.{name}: expected targets and weights")
    described = {key: weights.get(key) for key in ("type", "num_bits", "strategy", "group_size", "symmetric")}
    return _Group(name, tuple(str(target) for target in targets), _scheme(described), str(described))


def _scheme(weights: Mapping[str, object]) -> Format | None:
    if weights["type"] != "float" or weights["symmetric"] is False:
        return None
    if weights["num_bits"] == 4 and weights["group_size"] == 16:
        return Format.NVFP4
    per_row = weights["num_bits"] == 8 and weights["strategy"] in ("channel", "tensor", None)
    return Format.FP8_ROW if per_row else None


def _modelopt_groups(config: Mapping[str, object], where: str) -> tuple[_Group, ...]:
    algorithm = config["quant_algo"]
    if algorithm != "MIXED_PRECISION":
        return (_Group("quant_algo", (_LINEAR,), _MODELOPT.get(str(algorithm)), str(algorithm)),)
    layers = config.get("quantized_layers")
    if not isinstance(layers, Mapping):
        raise ConfigError(f"{where}.quantized_layers: required by MIXED_PRECISION")
    found = {name: str(layer.get("quant_algo")) for name, layer in layers.items() if isinstance(layer, Mapping)}
    return tuple(
        _Group(f"quantized_layers.{name}", (name,), _MODELOPT.get(layer), layer) for name, layer in found.items()
    )


def _ignored(config: Mapping[str, object]) -> tuple[str, ...]:
    lists = (config.get("ignore"), config.get("exclude_modules"))
    return tuple(str(pattern) for values in lists if isinstance(values, list) for pattern in values)


def _matches(pattern: str, module: str) -> bool:
    return _exact(pattern, module) or _pattern(pattern, module)


def _exact(target: str, module: str) -> bool:
    return target == module


def _pattern(target: str, module: str) -> bool:
    if target.startswith("re:"):
        return re.match(target[3:], module) is not None
    return any(sign in target for sign in "*?[") and fnmatch.fnmatchcase(module, target)


def _class(target: str, module: str) -> bool:
    return target == _LINEAR
