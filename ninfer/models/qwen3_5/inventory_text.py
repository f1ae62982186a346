"""Parameters and packing groups of the Text and MTP components, and of the proposal head."""

from __future__ import annotations

from collections.abc import Iterator

from ninfer.artifact.formats import Format
from ninfer.models.qwen3_5.config import (
    AttentionConfig,
    DenseConfig,
    GdnConfig,
    LayerType,
    ModelConfig,
    MoeConfig,
)
from ninfer.models.qwen3_5.inventory_types import (
    PackingGroup,
    ParameterSpec,
    RowBlocks,
    SourceRoot,
    SourceSpec,
    UseSpec,
    direct_vector,
    matrix,
    matrix_rows,
    projection,
    vector,
)


def text_inventory(model: ModelConfig) -> tuple[ParameterSpec, ...]:
    """Parameters of the language model, in execution order. The head has one Use per drafting component."""
    text = model.text
    hidden, vocab = text.hidden_size, text.vocab_size
    embedding = matrix(SourceRoot.TEXT, "embed_tokens.weight", vocab, hidden)
    tied = text.tie_word_embeddings
    head = ParameterSpec(
        "text/output_head",
        (vocab, hidden),
        final_hidden_uses(("text", *model.speculative)),
        source=embedding if tied else matrix(SourceRoot.TOP, "lm_head.weight", vocab, hidden),
        shares="text/token_embedding" if tied else None,
    )
    blocks = (
        spec
        for index, layer in enumerate(text.layer_types)
        for spec in _block(model, f"text/layers/{index}/", SourceRoot.TEXT, f"layers.{index}.", layer)
    )
    return (
        ParameterSpec("text/token_embedding", (vocab, hidden), source=embedding),
        *blocks,
        direct_vector("text/final_norm", vector(SourceRoot.TEXT, "norm.weight", hidden)),
        head,
    )


def mtp_inventory(model: ModelConfig) -> tuple[ParameterSpec, ...]:
    """Parameters of the MTP component: stem, one attention block, final norm."""
    hidden = model.text.hidden_size

    def norm(name: str, tensor: str) -> ParameterSpec:
        return direct_vector(f"mtp/{name}", vector(SourceRoot.TOP, f"mtp.{tensor}.weight", hidden))

    stem = matrix(SourceRoot.TOP, "mtp.fc.weight", hidden, 2 * hidden)
    return (
        projection("mtp/input_projection", (hidden, 2 * hidden), stem, "mtp/stem_input"),
        norm("embedding_norm", "pre_fc_norm_embedding"),
        norm("hidden_norm", "pre_fc_norm_hidden"),
        *_block(model, "mtp/layers/0/", SourceRoot.TOP, "mtp.layers.0.", LayerType.ATTENTION),
        norm("final_norm", "norm"),
    )


def proposal_inventory(model: ModelConfig, rows: int) -> tuple[ParameterSpec, ...]:
    """The reduced head that drafters score: `rows` rows of the output head, and the token of each row."""
    shape = (rows, model.text.hidden_size)
    return (
        ParameterSpec("proposal/head", shape, final_hidden_uses(model.speculative)),
        ParameterSpec("proposal/token_ids", (rows,), direct=Format.INT32),
    )


def block_packing_groups(model: ModelConfig) -> Iterator[PackingGroup]:
    """Packing groups of every Text block and of the MTP block."""
    for index, layer in enumerate(model.text.layer_types):
        yield from _block_groups(model, f"text/layers/{index}/", layer)
    if model.mtp is not None:
        yield from _block_groups(model, "mtp/layers/0/", LayerType.ATTENTION)


def final_hidden_uses(components: tuple[str, ...]) -> tuple[UseSpec, ...]:
    """One Use per component whose final hidden states meet the head."""
    return tuple(UseSpec(f"{component}/final_hidden") for component in components)


def _block(model: ModelConfig, name: str, root: SourceRoot, source: str, layer: LayerType) -> Iterator[ParameterSpec]:
    hidden = model.text.hidden_size
    yield direct_vector(f"{name}input_norm", vector(root, f"{source}input_layernorm.weight", hidden))
    if layer is LayerType.ATTENTION:
        assert model.text.attention is not None
        yield from _attention(model.text.attention, hidden, name, root, f"{source}self_attn.")
    else:
        assert model.text.gdn is not None
        yield from _gdn(model.text.gdn, hidden, name, root, f"{source}linear_attn.")
    after = vector(root, f"{source}post_attention_layernorm.weight", hidden)
    yield direct_vector(f"{name}post_attention_norm", after)
    ffn = model.text.ffn
    if isinstance(ffn, DenseConfig):
        yield from _dense(ffn, hidden, name, root, f"{source}mlp.")
    else:
        yield from _moe(ffn, hidden, name, root, f"{source}mlp.")


def _attention(
    config: AttentionConfig, hidden: int, block: str, root: SourceRoot, source: str
) -> Iterator[ParameterSpec]:
    name, mixer_input = f"{block}attention/", f"{block}mixer_input"
    dim, query, keys = config.head_dim, config.query_width, config.kv_width

    def fused(part: int) -> SourceSpec:
        rows = RowBlocks(part * dim, dim, config.heads, 2 * dim)
        return matrix_rows(root, f"{source}q_proj.weight", (2 * query, hidden), rows)

    yield projection(f"{name}query", (query, hidden), fused(0), mixer_input)
    yield projection(f"{name}gate", (query, hidden), fused(1), mixer_input)
    for part in ("key", "value"):
        tensor = matrix(root, f"{source}{part[0]}_proj.weight", keys, hidden)
        yield projection(f"{name}{part}", (keys, hidden), tensor, mixer_input)
    yield direct_vector(f"{name}query_norm", vector(root, f"{source}q_norm.weight", dim))
    yield direct_vector(f"{name}key_norm", vector(root, f"{source}k_norm.weight", dim))
    output = matrix(root, f"{source}o_proj.weight", hidden, query)
    yield projection(f"{name}output", (hidden, query), output, f"{name}gated_output")


def _gdn(config: GdnConfig, hidden: int, block: str, root: SourceRoot, source: str) -> Iterator[ParameterSpec]:
    name, mixer_input = f"{block}gdn/", f"{block}mixer_input"
    keys, values, heads = config.key_width, config.value_width, config.value_heads
    channels, taps = config.conv_width, config.conv_taps

    def fused(begin: int, size: int) -> SourceSpec:
        return matrix_rows(root, f"{source}in_proj_qkv.weight", (channels, hidden), RowBlocks(begin, size))

    def whole(tensor: str, rows: int) -> SourceSpec:
        return matrix(root, f"{source}{tensor}.weight", rows, hidden)

    yield projection(f"{name}query", (keys, hidden), fused(0, keys), mixer_input)
    yield projection(f"{name}key", (keys, hidden), fused(keys, keys), mixer_input)
    yield projection(f"{name}value", (values, hidden), fused(2 * keys, values), mixer_input)
    yield projection(f"{name}z", (values, hidden), whole("in_proj_z", values), mixer_input)
    yield projection(f"{name}a_projection", (heads, hidden), whole("in_proj_a", heads), mixer_input)
    yield projection(f"{name}b_projection", (heads, hidden), whole("in_proj_b", heads), mixer_input)
    yield direct_vector(f"{name}a_log", vector(root, f"{source}A_log", heads), Format.FP32)
    yield direct_vector(f"{name}dt_bias", vector(root, f"{source}dt_bias", heads), Format.FP32)
    conv = SourceSpec(root, f"{source}conv1d.weight", (channels, 1, taps), RowBlocks(0, channels), channels, True)
    yield ParameterSpec(f"{name}convolution", (taps, channels), direct=Format.BF16, source=conv)
    yield direct_vector(f"{name}norm", vector(root, f"{source}norm.weight", config.value_dim))
    output = matrix(root, f"{source}out_proj.weight", hidden, values)
    yield projection(f"{name}output", (hidden, values), output, f"{name}gated_output")


def _dense(config: DenseConfig, hidden: int, block: str, root: SourceRoot, source: str) -> Iterator[ParameterSpec]:
    yield from _gated_ffn(config.intermediate_size, hidden, f"{block}mlp/", f"{block}ffn_input", root, source)


def _gated_ffn(
    size: int, hidden: int, name: str, ffn_input: str, root: SourceRoot, source: str
) -> Iterator[ParameterSpec]:
    for part in ("gate", "up"):
        tensor = matrix(root, f"{source}{part}_proj.weight", size, hidden)
        yield projection(f"{name}{part}", (size, hidden), tensor, ffn_input)
    down = matrix(root, f"{source}down_proj.weight", hidden, size)
    yield projection(f"{name}down", (hidden, size), down, f"{name}product")


def _moe(config: MoeConfig, hidden: int, block: str, root: SourceRoot, source: str) -> Iterator[ParameterSpec]:
    name, ffn_input = f"{block}moe/", f"{block}ffn_input"
    router = matrix(root, f"{source}gate.weight", config.experts, hidden)
    yield projection(f"{name}router", (config.experts, hidden), router, ffn_input)
    score = matrix(root, f"{source}shared_expert_gate.weight", 1, hidden)
    yield projection(f"{name}shared_score", (1, hidden), score, ffn_input)
    for expert in range(config.experts):
        yield from _expert(config, hidden, expert, name, ffn_input, root, f"{source}experts.")
    yield from _gated_ffn(config.shared_size, hidden, f"{name}shared/", ffn_input, root, f"{source}shared_expert.")


def _expert(
    config: MoeConfig, hidden: int, expert: int, moe: str, ffn_input: str, root: SourceRoot, source: str
) -> Iterator[ParameterSpec]:
    """One routed expert: a slice of the fused tensors, or tensors of its own."""
    size, count = config.expert_size, config.experts
    name = f"{moe}experts/{expert}/"
    for index, part in enumerate(("gate", "up")):
        rows = RowBlocks((2 * expert + index) * size, size)
        single = matrix(root, f"{source}{expert}.{part}_proj.weight", size, hidden)
        fused = SourceSpec(
            root,
            f"{source}gate_up_proj",
            (count, 2 * size, hidden),
            rows,
            count * 2 * size,
            alternative=single,
        )
        yield projection(f"{name}{part}", (size, hidden), fused, ffn_input)
    single = matrix(root, f"{source}{expert}.down_proj.weight", hidden, size)
    rows = RowBlocks(expert * hidden, hidden)
    shape = (count, hidden, size)
    fused = SourceSpec(root, f"{source}down_proj", shape, rows, count * hidden, alternative=single)
    yield projection(f"{name}down", (hidden, size), fused, f"{name}product")


def _block_groups(model: ModelConfig, block: str, layer: LayerType) -> Iterator[PackingGroup]:
    if layer is LayerType.ATTENTION:
        yield _named(f"{block}attention/", "query key gate value", "query key", "gate value")
    else:
        yield _named(f"{block}gdn/", "query key value z", "query key", "value z")
        yield _named(f"{block}gdn/", "a_projection b_projection")
    ffn = model.text.ffn
    if isinstance(ffn, DenseConfig):
        yield _named(f"{block}mlp/", "gate up")
        return
    experts = [f"{block}moe/experts/{expert}/" for expert in range(ffn.experts)]
    yield PackingGroup(tuple(f"{name}{part}" for name in experts for part in ("gate", "up")))
    yield PackingGroup(tuple(f"{name}down" for name in experts))
    yield _named(f"{block}moe/shared/", "gate up")
    yield _named(f"{block}moe/", "router shared_score")


def _named(prefix: str, preferred: str, *fallback: str) -> PackingGroup:
    def names(part: str) -> tuple[str, ...]:
        return tuple(f"{prefix}{name}" for name in part.split())

    return PackingGroup(names(preferred), tuple(names(part) for part in fallback))
