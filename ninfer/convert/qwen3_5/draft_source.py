"""Hugging Face configs of DFlash and DFlash2 drafters, normalised to the artifact's."""

from __future__ import annotations

from collections.abc import Mapping

from ninfer.errors import ConfigError
from ninfer.models.qwen3_5.config import TextConfig
from ninfer.models.qwen3_5.config_draft import DraftConfig, DraftKind, DraftLayerType, SelectorConfig
from ninfer.models.qwen3_5.config_fields import Fields

_SUPPORTED: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "rope_scaling": (),
}
_COPIED = (
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "num_hidden_layers",
    "max_position_embeddings",
    "rms_norm_eps",
)


def draft_from_hf(kind: DraftKind, config: Mapping[str, object], where: str, text: TextConfig) -> DraftConfig:
    """Normalise a drafter's config.json and check that it drafts for `text`.

    Raises:
        ConfigError: names the field that is missing, wrong, unsupported or made for another target.
    """
    fields = Fields(config, where)
    fields.texts("architectures", {kind.value})
    for name, values in _SUPPORTED.items():
        if fields.get(name) is not None and fields.get(name) not in values:
            raise ConfigError(f"{fields.path(name)}: {fields.get(name)!r} is not supported")
    for name, wanted in (("hidden_size", text.hidden_size), ("vocab_size", text.vocab_size)):
        if fields.get(name) not in (None, wanted):
            raise ConfigError(f"{fields.path(name)}: drafts for another model, the target has {wanted}")
    draft = DraftConfig.from_artifact(kind, _members(kind, fields), where)
    if max(draft.target_layer_ids) >= text.num_layers:
        raise ConfigError(f"{where}.dflash_config.target_layer_ids: the target has {text.num_layers} layers")
    return draft


def _members(kind: DraftKind, fields: Fields) -> dict[str, object]:
    layers = fields.get("layer_types") or ["full_attention"] * fields.integer("num_hidden_layers")
    members: dict[str, object] = {name: fields.required(name) for name in _COPIED}
    members |= {
        "architectures": [kind.value],
        "model_type": "qwen3",
        "layer_types": layers,
        "rope_parameters": {"rope_theta": _rope_theta(fields)},
        "dflash_config": _flash(kind, fields.child("dflash_config")),
    }
    if isinstance(layers, list) and DraftLayerType.SLIDING.value in layers:
        members["sliding_window"] = fields.required("sliding_window")
    return members


def _rope_theta(fields: Fields) -> object:
    if fields.get("rope_parameters") is None:
        return fields.required("rope_theta")
    rope = fields.child("rope_parameters")
    if rope.get("rope_type") not in (None, "default"):
        raise ConfigError(f"{rope.path('rope_type')}: {rope.get('rope_type')!r} is not supported")
    return rope.required("rope_theta")


def _flash(kind: DraftKind, flash: Fields) -> dict[str, object]:
    names = ["target_layer_ids", "mask_token_id"]
    names += SelectorConfig.__slots__ if kind is DraftKind.DFLASH2 else ()
    return {name: flash.required(name) for name in names}
