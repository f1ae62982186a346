"""Configs of the Qwen3.5 components exactly as an artifact stores them.

`from_artifact` accepts the member sets of the published schema and nothing else; `to_artifact` writes
them back. Sizes are in elements, positions in tokens. Sources in Hugging Face form are normalised by
the converter before they get here.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from ninfer.errors import ConfigError
from ninfer.models.qwen3_5.config_draft import DraftConfig, DraftKind
from ninfer.models.qwen3_5.config_fields import Fields

COMPONENTS = ("text", "vision", "mtp", "dflash", "dflash2")


class Architecture(enum.Enum):
    """The two entry points of the family."""

    DENSE = "Qwen3_5ForCausalLM"
    MOE = "Qwen3_5MoeForCausalLM"

    @property
    def text_model_type(self) -> str:
        return "qwen3_5_text" if self is Architecture.DENSE else "qwen3_5_moe_text"

    @property
    def vision_model_type(self) -> str:
        return "qwen3_5_vision" if self is Architecture.DENSE else "qwen3_5_moe_vision"

    @property
    def mtp_name(self) -> str:
        return "Qwen3_5MTP" if self is Architecture.DENSE else "Qwen3_5MoeMTP"


class LayerType(enum.Enum):
    """The token mixer of one block."""

    ATTENTION = "full_attention"
    GDN = "linear_attention"


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Grouped-query attention with partial interleaved MRoPE over (time, height, width) positions."""

    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    partial_rotary_factor: float
    mrope_section: tuple[int, int, int]

    @property
    def rotary_dim(self) -> int:
        """Leading dimensions of each head that are rotated."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class GdnConfig:
    """Gated DeltaNet: `value_heads` recurrent states of shape [value_dim, key_dim]."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    conv_taps: int

    @property
    def key_width(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def conv_width(self) -> int:
        """Channels of the causal convolution: query, key and value together."""
        return 2 * self.key_width + self.value_width


@dataclass(frozen=True, slots=True)
class DenseConfig:
    """A gated feed-forward block of width `intermediate_size`."""

    intermediate_size: int


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Routed experts plus one gated shared expert."""

    experts: int
    experts_per_token: int
    expert_size: int
    shared_size: int


@dataclass(frozen=True, slots=True)
class TextConfig:
    """The language model. `attention` is present with attention layers or MTP, `gdn` with GDN layers."""

    architecture: Architecture
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    rms_norm_eps: float
    layer_types: tuple[LayerType, ...]
    attention: AttentionConfig | None
    gdn: GdnConfig | None
    ffn: DenseConfig | MoeConfig

    @property
    def num_layers(self) -> int:
        return len(self.layer_types)

    @classmethod
    def from_artifact(cls, value: object, where: str) -> TextConfig:
        """Read `components.text.config`. Raises `ConfigError` naming the member that is wrong."""
        fields = Fields(value, where)
        architecture = Architecture(_single(fields, "architectures", {a.value for a in Architecture}))
        fields.text("model_type", {architecture.text_model_type})
        config = cls(
            architecture=architecture,
            hidden_size=fields.integer("hidden_size"),
            vocab_size=fields.integer("vocab_size"),
            max_position_embeddings=fields.integer("max_position_embeddings"),
            tie_word_embeddings=fields.boolean("tie_word_embeddings"),
            rms_norm_eps=fields.number("rms_norm_eps"),
            layer_types=_layer_types(fields),
            attention=_attention(fields) if "num_attention_heads" in fields else None,
            gdn=_gdn(fields) if "linear_num_key_heads" in fields else None,
            ffn=_moe(fields) if architecture is Architecture.MOE else _dense(fields),
        )
        config._check_layers(where)
        fields.refuse_unread()
        return config

    def to_artifact(self) -> dict[str, object]:
        """The members of `components.text.config`, ready for JSON."""
        members: dict[str, object] = {
            "architectures": [self.architecture.value],
            "model_type": self.architecture.text_model_type,
            "hidden_size": self.hidden_size,
            "vocab_size": self.vocab_size,
            "num_hidden_layers": self.num_layers,
            "max_position_embeddings": self.max_position_embeddings,
            "tie_word_embeddings": self.tie_word_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "layer_types": [layer.value for layer in self.layer_types],
        }
        members.update(_attention_members(self.attention) if self.attention else {})
        members.update(_gdn_members(self.gdn) if self.gdn else {})
        members.update(_ffn_members(self.ffn))
        return members

    def _check_layers(self, where: str) -> None:
        if LayerType.ATTENTION in self.layer_types and self.attention is None:
            raise ConfigError(f"{where}.num_attention_heads: required by the full_attention layers")
        if LayerType.GDN in self.layer_types and self.gdn is None:
            raise ConfigError(f"{where}.linear_num_key_heads: required by the linear_attention layers")


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The vision tower; its merger projects to the Text hidden size."""

    architecture: Architecture
    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    num_position_embeddings: int

    @property
    def patch_width(self) -> int:
        """Elements of one flattened patch: 3 channels x frames x height x width."""
        return 3 * self.temporal_patch_size * self.patch_size * self.patch_size

    @property
    def merged_width(self) -> int:
        return self.spatial_merge_size * self.spatial_merge_size * self.hidden_size

    @classmethod
    def from_artifact(cls, value: object, where: str) -> VisionConfig:
        """Read `components.vision.config`. Raises `ConfigError` naming the member that is wrong."""
        fields = Fields(value, where)
        types = {a.vision_model_type: a for a in Architecture}
        names = [name for name in cls.__slots__ if name != "architecture"]
        architecture = types[fields.text("model_type", types)]
        config = cls(architecture, *(fields.integer(name) for name in names))
        fields.refuse_unread()
        if config.hidden_size % config.num_heads or (config.hidden_size // config.num_heads) % 4:
            raise ConfigError(f"{where}.num_heads: hidden_size / num_heads must be a multiple of 4 (2-D RoPE)")
        return config

    def to_artifact(self) -> dict[str, object]:
        names = [name for name in self.__slots__ if name != "architecture"]
        members: dict[str, object] = {"model_type": self.architecture.vision_model_type}
        return members | {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class MtpConfig:
    """Multi-token prediction: one attention block that shares Text's embedding, head and geometry."""

    architecture: Architecture

    @classmethod
    def from_artifact(cls, value: object, where: str) -> MtpConfig:
        fields = Fields(value, where)
        names = {a.mtp_name: a for a in Architecture}
        architecture = names[_single(fields, "architectures", names)]
        fields.refuse_unread()
        return cls(architecture)

    def to_artifact(self) -> dict[str, object]:
        return {"architectures": [self.architecture.mtp_name]}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The configs of all components that an artifact (or a conversion) holds."""

    text: TextConfig
    vision: VisionConfig | None = None
    mtp: MtpConfig | None = None
    dflash: DraftConfig | None = None
    dflash2: DraftConfig | None = None

    def __post_init__(self) -> None:
        for name, part in (("vision", self.vision), ("mtp", self.mtp)):
            if part is not None and part.architecture is not self.text.architecture:
                raise ConfigError(f"components.{name}.config: belongs to the other architecture than text")
        if self.mtp is not None and self.text.attention is None:
            raise ConfigError("components.text.config.num_attention_heads: required by the mtp component")

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the components present, in the canonical order."""
        return tuple(name for name in COMPONENTS if getattr(self, name) is not None)

    @property
    def speculative(self) -> tuple[str, ...]:
        """Components that draft tokens through Text's head (or the proposal head)."""
        return tuple(name for name in self.components if name not in ("text", "vision"))

    @classmethod
    def from_artifact(cls, configs: Mapping[str, object], where: str) -> ModelConfig:
        """Build from component name -> `config` member. Unknown components are a `ConfigError`."""
        unknown = sorted(set(configs) - set(COMPONENTS))
        if unknown or "text" not in configs:
            problem = f"unknown components {unknown}" if unknown else "the text component is missing"
            raise ConfigError(f"{where}: {problem}")

        def at(name: str) -> str:
            return f"{where}.{name}.config"

        return cls(
            text=TextConfig.from_artifact(configs["text"], at("text")),
            vision=VisionConfig.from_artifact(configs["vision"], at("vision")) if "vision" in configs else None,
            mtp=MtpConfig.from_artifact(configs["mtp"], at("mtp")) if "mtp" in configs else None,
            dflash=DraftConfig.from_artifact(DraftKind.DFLASH, configs["dflash"], at("dflash"))
            if "dflash" in configs
            else None,
            dflash2=DraftConfig.from_artifact(DraftKind.DFLASH2, configs["dflash2"], at("dflash2"))
            if "dflash2" in configs
            else None,
        )

    def to_artifact(self) -> dict[str, dict[str, object]]:
        """Component name -> `config` member."""
        return {name: getattr(self, name).to_artifact() for name in self.components}


def _single(fields: Fields, name: str, allowed: Mapping[str, object] | set[str]) -> str:
    values = fields.texts(name, allowed)
    if len(values) != 1:
        raise ConfigError(f"{fields.path(name)}: expected exactly one entry, found {len(values)}")
    return values[0]


def _layer_types(fields: Fields) -> tuple[LayerType, ...]:
    count = fields.integer("num_hidden_layers")
    names = fields.texts("layer_types", {layer.value for layer in LayerType})
    if len(names) != count:
        raise ConfigError(f"{fields.path('layer_types')}: {len(names)} entries for num_hidden_layers {count}")
    return tuple(LayerType(name) for name in names)


def _attention(fields: Fields) -> AttentionConfig:
    rope = fields.child("rope_parameters")
    sections = rope.integers("mrope_section", length=3)
    config = AttentionConfig(
        heads=fields.integer("num_attention_heads"),
        kv_heads=fields.integer("num_key_value_heads"),
        head_dim=fields.integer("head_dim"),
        rope_theta=rope.number("rope_theta"),
        partial_rotary_factor=rope.number("partial_rotary_factor"),
        mrope_section=(sections[0], sections[1], sections[2]),
    )
    rope.refuse_unread()
    if config.heads % config.kv_heads:
        raise ConfigError(f"{fields.path('num_key_value_heads')}: does not divide num_attention_heads")
    if config.rotary_dim % 2 or not 0 < config.rotary_dim <= config.head_dim:
        raise ConfigError(
            f"{rope.path('partial_rotary_factor')}: rotary dimension {config.rotary_dim} is odd, "
            f"zero or above head_dim {config.head_dim}"
        )
    if sum(sections) != config.rotary_dim // 2:
        raise ConfigError(
            f"{rope.path('mrope_section')}: sums to {sum(sections)}, expected half of the rotary "
            f"dimension, {config.rotary_dim // 2}"
        )
    return config


def _gdn(fields: Fields) -> GdnConfig:
    config = GdnConfig(
        key_heads=fields.integer("linear_num_key_heads"),
        key_dim=fields.integer("linear_key_head_dim"),
        value_heads=fields.integer("linear_num_value_heads"),
        value_dim=fields.integer("linear_value_head_dim"),
        conv_taps=fields.integer("linear_conv_kernel_dim", minimum=2),
    )
    if config.value_heads % config.key_heads:
        raise ConfigError(f"{fields.path('linear_num_value_heads')}: not a multiple of linear_num_key_heads")
    return config


def _dense(fields: Fields) -> DenseConfig:
    return DenseConfig(fields.integer("intermediate_size"))


def _moe(fields: Fields) -> MoeConfig:
    config = MoeConfig(
        experts=fields.integer("num_experts"),
        experts_per_token=fields.integer("num_experts_per_tok"),
        expert_size=fields.integer("moe_intermediate_size"),
        shared_size=fields.integer("shared_expert_intermediate_size"),
    )
    if config.experts_per_token > config.experts:
        raise ConfigError(f"{fields.path('num_experts_per_tok')}: larger than num_experts {config.experts}")
    return config


def _attention_members(config: AttentionConfig) -> dict[str, object]:
    return {
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "rope_parameters": {
            "rope_theta": config.rope_theta,
            "partial_rotary_factor": config.partial_rotary_factor,
            "mrope_section": list(config.mrope_section),
        },
    }


def _gdn_members(config: GdnConfig) -> dict[str, object]:
    return {
        "linear_num_key_heads": config.key_heads,
        "linear_key_head_dim": config.key_dim,
        "linear_num_value_heads": config.value_heads,
        "linear_value_head_dim": config.value_dim,
        "linear_conv_kernel_dim": config.conv_taps,
    }


def _ffn_members(config: DenseConfig | MoeConfig) -> dict[str, object]:
    if isinstance(config, DenseConfig):
        return {"intermediate_size": config.intermediate_size}
    return {
        "num_experts": config.experts,
        "num_experts_per_tok": config.experts_per_token,
        "moe_intermediate_size": config.expert_size,
        "shared_expert_intermediate_size": config.shared_size,
    }
