"""Frontend resources: which files a component needs, where they are found, and what replaces a missing one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from ninfer.convert.qwen3_5.names import SourceSet
from ninfer.convert.sources.checkpoint import read_json
from ninfer.errors import ConfigError
from ninfer.models.qwen3_5.inventory import RESOURCE_ROLES

_TEMPLATE = "chat_template.jinja"


def load_resources(
    sources: SourceSet, components: Iterable[str], given: Mapping[str, Path]
) -> dict[str, dict[str, bytes]]:
    """Component -> role -> bytes of every required resource.

    A file given by role wins; otherwise the component's source directory must hold it. A chat template may also
    stand in chat_template.json or tokenizer_config.json.

    Raises:
        ConfigError: an unknown role, or a file that is missing, empty or (for *.json) no JSON object.
    """
    chosen = tuple(components)
    roles = [role for component in chosen for role in RESOURCE_ROLES[component]]
    for role in given:
        if role not in roles:
            raise ConfigError(f"--resource {role}: no such role here; expected one of {', '.join(roles)}")
    return {
        component: {role: _load(role, sources.source_of(component).path, given) for role in RESOURCE_ROLES[component]}
        for component in chosen
    }


def has_resources(directory: Path, component: str, given: Mapping[str, Path]) -> bool:
    """True when every resource of `component` is given or present."""
    return all(role in given or (directory / role).is_file() for role in RESOURCE_ROLES[component])


def _load(role: str, directory: Path, given: Mapping[str, Path]) -> bytes:
    path = given.get(role, directory / role)
    if path.is_file():
        data = path.read_bytes()
    elif role == _TEMPLATE and role not in given:
        data = _template_elsewhere(directory).encode("utf-8")
    else:
        raise ConfigError(f"{path}: file is missing; give it with --resource {role}=FILE")
    if not data:
        raise ConfigError(f"{path}: file is empty; give another with --resource {role}=FILE")
    if role.endswith(".json"):
        read_json(path)
    return data


def _template_elsewhere(directory: Path) -> str:
    for name in ("chat_template.json", "tokenizer_config.json"):
        if (directory / name).is_file():
            found = _default_template(read_json(directory / name).get("chat_template"))
            if found:
                return found
    places = f"{_TEMPLATE}, chat_template.json and tokenizer_config.json hold no chat template"
    raise ConfigError(f"{directory}: {places}; give one with --resource {_TEMPLATE}=FILE")


def _default_template(value: object) -> str | None:
    """A template string, or the one called `default` of a list of named templates."""
    if isinstance(value, list):
        named = {str(item.get("name")): item.get("template") for item in value if isinstance(item, Mapping)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def addressable_tokens(tokenizer: bytes) -> tuple[int, tuple[int, ...]]:
    """(number of addressable token ids, ids of the added tokens) of a tokenizer.json.

    Raises:
        ConfigError: the file is no `tokenizers` BPE file.
    """
    value = json.loads(tokenizer)
    model, added = value.get("model"), value.get("added_tokens") or []
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict) or not vocabulary:
        raise ConfigError("tokenizer.json: model.vocab is missing; expected a BPE tokenizer")
    added_ids = tuple(sorted(int(token["id"]) for token in added))
    return 1 + max(*vocabulary.values(), *added_ids, 0), added_ids
