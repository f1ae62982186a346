"""Configs of the DFlash and DFlash2 draft components as an artifact stores them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ninfer.errors import ConfigError
from ninfer.models.qwen3_5.config_fields import Fields


class DraftKind(enum.Enum):
    """The two drafter architectures; values are the architecture names of the config."""

    DFLASH = "DFlashDraftModel"
    DFLASH2 = "DFlash2DraftModel"

    @property
    def component(self) -> str:
        return "dflash" if self is DraftKind.DFLASH else "dflash2"


class DraftLayerType(enum.Enum):
    """Attention span of one draft layer."""

    FULL = "full_attention"
    SLIDING = "sliding_attention"


@dataclass(frozen=True, slots=True)
class SelectorConfig:
    """What only DFlash2 has: per-layer convolutions and the low-rank candidate selector."""

    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """A draft model; hidden size and vocabulary are Text's. `sliding_window` is in tokens."""

    kind: DraftKind
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    layer_types: tuple[DraftLayerType, ...]
    sliding_window: int | None
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    selector: SelectorConfig | None

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @classmethod
    def from_artifact(cls, kind: DraftKind, value: object, where: str) -> DraftConfig:
        """Read `components.dflash[2].config`. Raises `ConfigError` naming the member that is wrong."""
        fields = Fields(value, where)
        if fields.texts("architectures", {kind.value}) != (kind.value,):
            raise ConfigError(f"{fields.path('architectures')}: expected exactly one entry")
        fields.text("model_type", {"qwen3"})
        rope, flash = fields.child("rope_parameters"), fields.child("dflash_config")
        layer_types = _layer_types(fields)
        config = cls(
            kind=kind,
            intermediate_size=fields.integer("intermediate_size"),
            heads=fields.integer("num_attention_heads"),
            kv_heads=fields.integer("num_key_value_heads"),
            head_dim=fields.integer("head_dim"),
            max_position_embeddings=fields.integer("max_position_embeddings"),
            rms_norm_eps=fields.number("rms_norm_eps"),
            rope_theta=rope.number("rope_theta"),
            layer_types=layer_types,
            sliding_window=_sliding_window(fields, layer_types),
            target_layer_ids=flash.integers("target_layer_ids"),
            mask_token_id=flash.integer("mask_token_id", minimum=0),
            selector=_selector(flash) if kind is DraftKind.DFLASH2 else None,
        )
        for part in (fields, rope, flash):
            part.refuse_unread()
        if config.heads % config.kv_heads:
            raise ConfigError(f"{fields.path('num_key_value_heads')}: does not divide num_attention_heads")
        if not config.target_layer_ids:
            raise ConfigError(f"{flash.path('target_layer_ids')}: must name at least one layer")
        return config

    def to_artifact(self) -> dict[str, object]:
        flash: dict[str, object] = {
            "target_layer_ids": list(self.target_layer_ids),
            "mask_token_id": self.mask_token_id,
        }
        if self.selector is not None:
            flash |= {name: getattr(self.selector, name) for name in SelectorConfig.__slots__}
        members: dict[str, object] = {
            "architectures": [self.kind.value],
            "model_type": "qwen3",
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "num_hidden_layers": len(self.layer_types),
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": {"rope_theta": self.rope_theta},
            "layer_types": [layer.value for layer in self.layer_types],
            "dflash_config": flash,
        }
        if self.sliding_window is not None:
            members["sliding_window"] = self.sliding_window
        return members


def _layer_types(fields: Fields) -> tuple[DraftLayerType, ...]:
    count = fields.integer("num_hidden_layers")
    names = fields.texts("layer_types", {layer.value for layer in DraftLayerType})
    if len(names) != count:
        raise ConfigError(f"{fields.path('layer_types')}: {len(names)} entries for num_hidden_layers {count}")
    return tuple(DraftLayerType(name) for name in names)


def _sliding_window(fields: Fields, layer_types: tuple[DraftLayerType, ...]) -> int | None:
    if DraftLayerType.SLIDING in layer_types:
        return fields.integer("sliding_window")
    return None


def _selector(flash: Fields) -> SelectorConfig:
    return SelectorConfig(*(flash.integer(name) for name in SelectorConfig.__slots__))
