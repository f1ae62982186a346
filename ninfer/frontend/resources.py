"""The frontend's JSON resources, read strictly enough to name what is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ninfer.errors import ConfigError

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
CHAT_TEMPLATE = "chat_template.jinja"


def json_object(resources: Mapping[str, bytes], role: str) -> dict[str, object]:
    """The JSON object stored under `role`; empty when the resource is absent. Raises ConfigError otherwise."""
    if role not in resources:
        return {}
    try:
        value = json.loads(resources[role])
    except ValueError as error:
        raise ConfigError(f"{role}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{role}: must be a JSON object")
    return value


def text_resource(resources: Mapping[str, bytes], role: str) -> str | None:
    """The UTF-8 text stored under `role`, or None. Raises ConfigError when it is not UTF-8."""
    if role not in resources:
        return None
    try:
        return resources[role].decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{role}: not valid UTF-8: {error}") from error


def special_texts(config: Mapping[str, object]) -> dict[str, str]:
    """The named special tokens of a tokenizer_config (`eos_token`, `image_token`, …) and their texts."""
    extra = config.get("extra_special_tokens")
    entries = {**config, **(extra if isinstance(extra, dict) else {})}
    named = {name: token_text(value) for name, value in entries.items() if name.endswith("_token")}
    return {name: text for name, text in named.items() if text is not None}


def token_text(value: object) -> str | None:
    """A special token's text, written either as a string or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None
