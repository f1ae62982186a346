"""Reads a Qwen3.5 checkpoint (and its companions) into what a conversion needs: configs, names, resources."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ninfer.artifact.formats import Format
from ninfer.convert.data import Data, PlainData
from ninfer.convert.methods import Method, import_encoded
from ninfer.convert.qwen3_5.draft_source import draft_from_hf
from ninfer.convert.qwen3_5.names import BASE, SourceSet
from ninfer.convert.qwen3_5.proposal import proposal_tokens
from ninfer.convert.qwen3_5.resources import addressable_tokens, has_resources, load_resources
from ninfer.convert.qwen3_5.source_config import SourceConfigs, from_hf
from ninfer.convert.sources.rows import ConstantRows, GatheredRows
from ninfer.errors import ConfigError
from ninfer.models.qwen3_5.config import COMPONENTS, ModelConfig
from ninfer.models.qwen3_5.config_draft import DraftConfig, DraftKind
from ninfer.models.qwen3_5.inventory import (
    PackingGroup,
    ParameterSpec,
    SourceRoot,
    component_inventory,
    inventory,
    packing_groups,
)

_MTP_ANCHOR = "mtp.fc.weight"
_HARMLESS_TENSOR = re.compile(r".*(rotary_emb\.inv_freq|[kv]_scale|_scale(_2|_inv)?|_packed|_shape|_zero_point)$")


@dataclass(frozen=True, slots=True)
class QwenModel:
    """One model to convert.

    Attributes:
        config: configs of the chosen components.
        parameters: their inventory, in file order.
        resources: component -> role -> bytes.
        proposal: token ids of the proposal head, None without one.
        ignored_fields: config fields that nobody interprets. unused_tensors: base tensors outside the components.
    """

    config: ModelConfig
    sources: SourceSet
    parameters: tuple[ParameterSpec, ...]
    resources: Mapping[str, Mapping[str, bytes]]
    proposal: tuple[int, ...] | None
    ignored_fields: tuple[str, ...]
    unused_tensors: tuple[str, ...]

    @property
    def groups(self) -> tuple[PackingGroup, ...]:
        return packing_groups(self.config)

    def data(self, spec: ParameterSpec, source: str | None, method: Method, fmt: Format) -> Data:
        """All rows of a parameter, checked but not read. Raises `ConfigError` naming tensor and parameter."""
        if self.proposal is None or spec.component != "proposal":
            return self.sources.data(spec, source, method, fmt)
        if spec.name == "proposal/token_ids":
            return PlainData(ConstantRows(np.array(self.proposal, np.int32).reshape(-1, 1)))
        if method is import_encoded:
            raise ConfigError(f"recipe: {spec.name}: the proposal head is gathered from plain rows, not imported codes")
        head = next(parameter for parameter in self.parameters if parameter.name == "text/output_head")
        assert head.source is not None
        checkpoint = self.sources.source_of("text") if source is None else self.sources.checkpoints[source]
        return PlainData(GatheredRows(self.sources.whole(head.source, checkpoint, spec.name), self.proposal))


def load_model(
    sources: SourceSet,
    components: Sequence[str] | None,
    resources: Mapping[str, Path],
    proposal: int | None,
    ranking: Path | None,
) -> QwenModel:
    """Read configs, choose components, load resources.

    Args:
        components: the components wanted; None takes text and whatever else the sources hold completely.
        proposal: rows of the proposal head, None for no such head. ranking: tokens by frequency.

    Raises:
        ConfigError: everything that can be wrong with configs, components, resources and the proposal.
    """
    base = sources.checkpoints[BASE]
    configs = from_hf(base.config, str(base.path / "config.json"))
    chosen = _choose(sources, configs, components, resources)
    config = _model_config(sources, configs, chosen)
    loaded = load_resources(sources, chosen, resources)
    addressable, special = addressable_tokens(loaded["text"]["tokenizer.json"])
    if addressable > config.text.vocab_size:
        raise ConfigError(f"tokenizer.json: {addressable} tokens do not fit the config's {config.text.vocab_size} rows")
    tokens = None
    if proposal is not None:
        if not config.speculative:
            raise ConfigError("--proposal: needs one of the components mtp, dflash, dflash2")
        tokens = proposal_tokens(proposal, addressable, special, ranking)
    parameters = inventory(config, None if tokens is None else len(tokens))
    unused = _unused_tensors(sources, configs, config)
    return QwenModel(config, sources, parameters, loaded, tokens, configs.ignored, unused)


def _choose(
    sources: SourceSet, configs: SourceConfigs, wanted: Sequence[str] | None, resources: Mapping[str, Path]
) -> tuple[str, ...]:
    available = _available(sources, configs)
    if wanted is None:
        complete = (name for name in available if has_resources(sources.source_of(name).path, name, resources))
        usable = {name for name in complete if name != "mtp" or configs.mtp_problem is None} | {"text"}
        return tuple(name for name in COMPONENTS if name in usable)
    for name in wanted:
        if name not in available:
            hint = f"; give it with --source {name}=DIR" if name.startswith("dflash") else ""
            raise ConfigError(f"--components {name}: not in the source, which holds {', '.join(available)}{hint}")
    if "text" not in wanted:
        raise ConfigError("--components: every artifact holds text; add it to the list")
    if "mtp" in wanted and configs.mtp_problem is not None:
        raise ConfigError(configs.mtp_problem)
    return tuple(name for name in COMPONENTS if name in wanted)


def _available(sources: SourceSet, configs: SourceConfigs) -> tuple[str, ...]:
    present = {
        "text": True,
        "vision": _vision_configs(sources, configs).vision is not None and _has_vision(sources),
        "mtp": _MTP_ANCHOR in sources.source_of("mtp").tensors,
        "dflash": "dflash" in sources.names,
        "dflash2": "dflash2" in sources.names,
    }
    return tuple(name for name in COMPONENTS if present[name])


def _has_vision(sources: SourceSet) -> bool:
    names = sources.source_of("vision").tensors
    return any(name.startswith(("model.visual.", "visual.")) for name in names)


def _vision_configs(sources: SourceSet, base: SourceConfigs) -> SourceConfigs:
    checkpoint = sources.source_of("vision")
    return base if checkpoint.name == BASE else from_hf(checkpoint.config, str(checkpoint.path / "config.json"))


def _model_config(sources: SourceSet, configs: SourceConfigs, chosen: Sequence[str]) -> ModelConfig:
    def draft(kind: DraftKind) -> DraftConfig | None:
        if kind.component not in chosen:
            return None
        checkpoint = sources.checkpoints[kind.component]
        return draft_from_hf(kind, checkpoint.config, str(checkpoint.path / "config.json"), configs.text)

    return ModelConfig(
        text=configs.text,
        vision=_vision_configs(sources, configs).vision if "vision" in chosen else None,
        mtp=configs.mtp if "mtp" in chosen else None,
        dflash=draft(DraftKind.DFLASH),
        dflash2=draft(DraftKind.DFLASH2),
    )


def _unused_tensors(sources: SourceSet, configs: SourceConfigs, config: ModelConfig) -> tuple[str, ...]:
    """Base tensors outside the chosen components.

    Raises:
        ConfigError: a tensor inside Text's layers that the architecture does not have: ignoring it would change
            the model's mathematics.
    """
    base = sources.checkpoints[BASE]
    known = {
        sources.tensor_name(base, source)
        for component in config.components
        if sources.source_of(component) is base
        for spec in component_inventory(config, component)
        for source in (spec.source, spec.source.alternative if spec.source else None)
        if source is not None
    }
    known.add("lm_head.weight")
    unused = sorted(name for name in base.tensors if name not in known and not _HARMLESS_TENSOR.match(name))
    prefix = _layer_prefix(sources, config)
    for name in unused:
        if name.startswith(prefix):
            raise ConfigError(f"{base.path}: tensor {name!r} is not part of {configs.text.architecture.value}")
    return tuple(unused)


def _layer_prefix(sources: SourceSet, config: ModelConfig) -> str:
    spec = component_inventory(config, "text")[1].source
    assert spec is not None
    assert spec.root is SourceRoot.TEXT
    return sources.tensor_name(sources.checkpoints[BASE], spec).split("layers.")[0] + "layers."
