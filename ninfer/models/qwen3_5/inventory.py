"""The parameters of a Qwen3.5 model: names, shapes, Uses, sources and packing.

One inventory for both sides: the converter maps names to checkpoint tensors, the binder maps names to
shapes and Uses. Pure integer arithmetic on configs.
"""

from __future__ import annotations

from ninfer.models.qwen3_5.config import ModelConfig
from ninfer.models.qwen3_5.inventory_draft import draft_inventory, draft_packing_groups
from ninfer.models.qwen3_5.inventory_text import (
    block_packing_groups,
    mtp_inventory,
    proposal_inventory,
    text_inventory,
)
from ninfer.models.qwen3_5.inventory_types import (
    PackingGroup,
    ParameterSpec,
    RowBlocks,
    SourceRoot,
    SourceSpec,
    UseSpec,
)
from ninfer.models.qwen3_5.inventory_vision import vision_inventory, vision_packing_groups

RESOURCE_ROLES: dict[str, tuple[str, ...]] = {
    "text": ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"),
    "vision": ("preprocessor_config.json", "video_preprocessor_config.json"),
    "mtp": (),
    "dflash": (),
    "dflash2": (),
}
"""Resource roles that each component must bring."""


def component_inventory(model: ModelConfig, component: str) -> tuple[ParameterSpec, ...]:
    """Parameters that `component` (present in `model`) owns."""
    if component == "text":
        return text_inventory(model)
    if component == "vision":
        return vision_inventory(model)
    if component == "mtp":
        return mtp_inventory(model)
    draft = model.dflash if component == "dflash" else model.dflash2
    assert draft is not None
    return draft_inventory(model, draft)


def inventory(model: ModelConfig, proposal_rows: int | None = None) -> tuple[ParameterSpec, ...]:
    """Every parameter of every component of `model`, and of the proposal head when it has rows."""
    specs = [spec for component in model.components for spec in component_inventory(model, component)]
    if proposal_rows is not None:
        specs.extend(proposal_inventory(model, proposal_rows))
    return tuple(specs)


def packing_groups(model: ModelConfig) -> tuple[PackingGroup, ...]:
    """Parameters that share one object when their formats and methods agree, by component."""
    groups = list(block_packing_groups(model))
    if model.vision is not None:
        groups.extend(vision_packing_groups(model.vision))
    for draft in (model.dflash, model.dflash2):
        groups.extend(draft_packing_groups(draft) if draft is not None else ())
    return tuple(groups)


__all__ = [
    "RESOURCE_ROLES",
    "PackingGroup",
    "ParameterSpec",
    "RowBlocks",
    "SourceRoot",
    "SourceSpec",
    "UseSpec",
    "component_inventory",
    "draft_inventory",
    "inventory",
    "mtp_inventory",
    "packing_groups",
    "proposal_inventory",
    "text_inventory",
    "vision_inventory",
]
