"""Hugging Face configs of the Qwen3.5 family, normalised to the artifact's configs.

Both shapes are read: with a `text_config` level and without. A field that would change the mathematics must
hold the one value that is computed here; otherwise it is refused by name. Fields nobody interprets are
collected, so that the conversion can report them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ninfer.errors import ConfigError
from ninfer.models.qwen3_5.config import Architecture, LayerType, MtpConfig, TextConfig, VisionConfig
from ninfer.models.qwen3_5.config_fields import Fields

_ARCHITECTURES = {
    "Qwen3_5ForCausalLM": Architecture.DENSE,
    "Qwen3_5ForConditionalGeneration": Architecture.DENSE,
    "Qwen3_5MoeForCausalLM": Architecture.MOE,
    "Qwen3_5MoeForConditionalGeneration": Architecture.MOE,
}
_MODEL_TYPES = {
    Architecture.DENSE: ("qwen3_5", "qwen3_5_text"),
    Architecture.MOE: ("qwen3_5_moe", "qwen3_5_moe_text"),
}
_VISION_MODEL_TYPES = ("qwen3_5", "qwen3_5_vision", "qwen3_5_moe", "qwen3_5_moe_vision")
_SUPPORTED: dict[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "attn_output_gate": (True,),
    "output_gate_type": ("swish", "silu"),
    "mamba_ssm_dtype": ("float32",),
    "mlp_only_layers": ([],),
    "decoder_sparse_step": (1,),
    "norm_topk_prob": (True,),
    "rope_scaling": (),
    "sliding_window": (),
    "use_sliding_window": (False,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "embedding_multiplier": (),
    "residual_multiplier": (),
    "logits_scaling": (),
}
"""Text fields that choose the mathematics, with the values computed here; absent or null is always fine."""

_SUPPORTED_VISION: dict[str, tuple[object, ...]] = {
    "hidden_act": ("gelu_pytorch_tanh",),
    "in_channels": (3,),
    "deepstack_visual_indexes": ([],),
    "rope_parameters": (),
}
_HARMLESS = frozenset(
    {
        "dtype",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "initializer_range",
        "attention_dropout",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "image_token_id",
        "video_token_id",
        "vision_start_token_id",
        "vision_end_token_id",
        "quantization_config",
        "output_router_logits",
        "router_aux_loss_coef",
        "partial_rotary_factor",
        "rope_theta",
        "_name_or_path",
        "id2label",
        "label2id",
        "problem_type",
        "return_dict",
        "output_hidden_states",
        "output_attentions",
        "chunk_size_feed_forward",
        "is_encoder_decoder",
        "text_config",
    }
)
"""Fields that do not touch the mathematics of inference; not worth a line in the report."""


@dataclass(frozen=True, slots=True)
class SourceConfigs:
    """What one checkpoint's config.json describes.

    Attributes:
        text, vision: normalised configs; vision is None where the checkpoint has no vision tower.
        mtp_problem: why the checkpoint's MTP block cannot be computed, or None when it can.
        ignored: fields that nobody interprets, as JSON paths.
    """

    text: TextConfig
    vision: VisionConfig | None
    mtp_problem: str | None
    ignored: tuple[str, ...]

    @property
    def mtp(self) -> MtpConfig:
        return MtpConfig(self.text.architecture)


def from_hf(config: Mapping[str, object], where: str) -> SourceConfigs:
    """Normalise a config.json. Raises `ConfigError` naming the field that is missing, wrong or unsupported."""
    top = Fields(config, where)
    text = top.child("text_config") if "text_config" in top else top
    architecture = _architecture(top)
    _check_supported(text, _SUPPORTED)
    if text.get("model_type") not in (None, *_MODEL_TYPES[architecture]):
        raise ConfigError(f"{text.path('model_type')}: {text.get('model_type')!r} contradicts {architecture.value}")
    members = _text_members(top, text, architecture)
    normalised = TextConfig.from_artifact(members, text.where)
    vision = _vision(top, normalised) if top.get("vision_config") and not top.get("language_model_only") else None
    return SourceConfigs(normalised, vision, _mtp_problem(text), _ignored(top, text))


def _architecture(top: Fields) -> Architecture:
    model_type = top.get("model_type")
    if top.get("architectures") is None:
        found = next((a for a, types in _MODEL_TYPES.items() if model_type in types), None)
        if found is None:
            raise ConfigError(f"{top.path('model_type')}: {model_type!r} is not a Qwen3.5 model")
        return found
    names = top.texts("architectures", _ARCHITECTURES)
    if len(names) != 1:
        raise ConfigError(f"{top.path('architectures')}: expected exactly one entry, found {len(names)}")
    architecture = _ARCHITECTURES[names[0]]
    if model_type is not None and model_type not in _MODEL_TYPES[architecture]:
        raise ConfigError(f"{top.path('model_type')}: {model_type!r} contradicts the architecture {names[0]}")
    return architecture


def _check_supported(fields: Fields, supported: Mapping[str, tuple[object, ...]]) -> None:
    for name, values in supported.items():
        value = fields.get(name)
        if value is not None and value not in values:
            computed = " or ".join(repr(allowed) for allowed in values) or "null"
            raise ConfigError(f"{fields.path(name)}: {value!r} is not supported, only {computed} is computed")


def _text_members(top: Fields, text: Fields, architecture: Architecture) -> dict[str, object]:
    """The members of the artifact's text config, every value as the source gives it."""
    layers = _layer_types(text)
    names = ["hidden_size", "vocab_size", "num_hidden_layers", "max_position_embeddings", "rms_norm_eps"]
    names += ["num_attention_heads", "num_key_value_heads", "head_dim"]
    if LayerType.GDN.value in layers:
        names += ["linear_num_key_heads", "linear_key_head_dim", "linear_num_value_heads", "linear_value_head_dim"]
        names.append("linear_conv_kernel_dim")
    if architecture is Architecture.DENSE:
        names.append("intermediate_size")
    else:
        names += ["num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"]
    members = {name: text.required(name) for name in names}
    return members | {
        "architectures": [architecture.value],
        "model_type": architecture.text_model_type,
        "tie_word_embeddings": _tied(top, text),
        "layer_types": list(layers),
        "rope_parameters": _rope(text),
    }


def _layer_types(text: Fields) -> tuple[str, ...]:
    count, interval = text.integer("num_hidden_layers"), text.get("full_attention_interval")
    derived = None
    if interval is not None:
        every = text.integer("full_attention_interval")
        kinds = (LayerType.ATTENTION if (i + 1) % every == 0 else LayerType.GDN for i in range(count))
        derived = tuple(kind.value for kind in kinds)
    if text.get("layer_types") is None:
        if derived is None:
            raise ConfigError(f"{text.path('layer_types')}: missing, and so is full_attention_interval")
        return derived
    # An explicit list is the authority: fine-tuned configs keep a stale interval beside an edited list.
    return text.texts("layer_types", {kind.value for kind in LayerType})


def _tied(top: Fields, text: Fields) -> bool:
    name = "tie_word_embeddings"
    values = [fields.boolean(name) for fields in (text, top) if fields.get(name) is not None]
    if len(set(values)) > 1:
        raise ConfigError(f"{top.path(name)}: {values[1]} contradicts {text.path(name)}: {values[0]}; make them agree")
    return values[0] if values else False


def _rope(text: Fields) -> dict[str, object]:
    rope = text.child("rope_parameters") if text.get("rope_parameters") is not None else Fields({}, text.where)
    for name in ("rope_type", "type"):
        if rope.get(name) not in (None, "default"):
            raise ConfigError(f"{rope.path(name)}: {rope.get(name)!r} is not supported, only 'default' is computed")
    if rope.get("mrope_interleaved") not in (None, True):
        raise ConfigError(f"{rope.path('mrope_interleaved')}: only interleaved sections are computed")
    members: dict[str, object] = {"mrope_section": list(rope.integers("mrope_section", length=3))}
    for name in ("rope_theta", "partial_rotary_factor"):
        members[name] = (rope if name in rope else text).required(name)
    unknown = rope.unread()
    if unknown:
        raise ConfigError(f"{rope.path(unknown[0])}: scaled rotary embeddings are not supported")
    return members


def _vision(top: Fields, text: TextConfig) -> VisionConfig:
    fields = top.child("vision_config")
    _check_supported(fields, _SUPPORTED_VISION)
    architecture = text.architecture
    if fields.get("model_type") not in (None, *_VISION_MODEL_TYPES):
        raise ConfigError(f"{fields.path('model_type')}: {fields.get('model_type')!r} is not a Qwen3.5 vision tower")
    if fields.get("out_hidden_size") not in (None, text.hidden_size):
        raise ConfigError(f"{fields.path('out_hidden_size')}: must equal the text hidden_size {text.hidden_size}")
    names = [name for name in VisionConfig.__slots__ if name != "architecture"]
    members = {name: fields.required(name) for name in names}
    return VisionConfig.from_artifact({"model_type": architecture.vision_model_type, **members}, fields.where)


def _mtp_problem(text: Fields) -> str | None:
    if text.get("mtp_num_hidden_layers") not in (None, 0, 1):
        return f"{text.path('mtp_num_hidden_layers')}: only one MTP layer is supported"
    if text.get("mtp_use_dedicated_embeddings"):
        return f"{text.path('mtp_use_dedicated_embeddings')}: MTP shares Text's embedding and head here"
    return None


def _ignored(top: Fields, text: Fields) -> tuple[str, ...]:
    levels = (top,) if text is top else (top, text)
    return tuple(fields.path(name) for fields in levels for name in sorted(fields.unread()) if name not in _HARMLESS)
