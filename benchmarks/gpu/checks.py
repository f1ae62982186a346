"""Every op on the device at official shapes against its fp64 oracle, under the tolerances that the tests use.

The oracles compute on the host from what the device's tensors hold, so shapes are official in their depths (columns,
heads, vocabulary) and short in what only repeats them (rows of weights, tokens).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from ops import Experts, Geometry
from ops.linear import FORMATS, random_bytes

from ninfer.artifact.formats import Format
from ninfer.errors import CudaError
from ninfer.kernels import (
    argmax,
    conv_silu,
    embedding,
    gate_up_swiglu,
    gated_rmsnorm,
    gated_sigmoid,
    gdn,
    gdn_fold,
    gdn_gates,
    kv_append,
    linear,
    log_softmax_gather,
    moe_experts,
    moe_route,
    moe_shared_add,
    paged_attention,
    projections,
    qk_norm_rope,
    qk_norm_rope_append,
    rmsnorm,
    sample,
    swiglu,
    top_logprobs,
)
from ninfer.kernels import tolerances as within
from ninfer.kernels.argmax import oracle as argmax_oracle
from ninfer.kernels.conv_silu import oracle as conv_oracle
from ninfer.kernels.embedding import oracle as embedding_oracle
from ninfer.kernels.gated_rmsnorm import oracle as gated_rmsnorm_oracle
from ninfer.kernels.gated_sigmoid import oracle as gated_sigmoid_oracle
from ninfer.kernels.gdn import oracle as gdn_oracle
from ninfer.kernels.gdn_gates import oracle as gates_oracle
from ninfer.kernels.kv_cache import PAGE_TOKENS, KvCodec, KvPool, Plane, make_kv_pool
from ninfer.kernels.kv_cache import oracle as kv_oracle
from ninfer.kernels.linear import oracle as linear_oracle
from ninfer.kernels.log_softmax_gather import oracle as log_softmax_oracle
from ninfer.kernels.mlp import oracle as mlp_oracle
from ninfer.kernels.moe import oracle as moe_oracle
from ninfer.kernels.moe import prepare_experts
from ninfer.kernels.paged_attention import oracle as attention_oracle
from ninfer.kernels.philox import Purpose, uniform
from ninfer.kernels.placement import Cuda
from ninfer.kernels.qk_norm_rope import RopeSpec
from ninfer.kernels.qk_norm_rope import oracle as rope_oracle
from ninfer.kernels.qk_norm_rope.spec import frequencies
from ninfer.kernels.rmsnorm import oracle as rmsnorm_oracle
from ninfer.kernels.sampling import SamplingBatch, SamplingRow
from ninfer.kernels.sampling import oracle as sampling_oracle
from ninfer.kernels.segments import Segments
from ninfer.kernels.slots import StateSlots
from ninfer.kernels.tolerances import Tolerance
from ninfer.kernels.weights import LinearWeight, WeightView, prepare_linear, prepare_table

_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a device's result is against its oracle: `worst` is the greatest error over what is allowed, at most 1."""

    op: str
    shape: str
    worst: float

    @property
    def passed(self) -> bool:
        return self.worst <= 1.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of a geometry is checked.

    Attributes:
        rows: of weights, about.
        tokens: that weights are multiplied with.
        prompt: tokens of a prompt for everything else.
        depth: keys before a decode step.
    """

    geometry: Geometry
    placement: Cuda
    rows: int
    tokens: tuple[int, ...]
    prompt: int
    depth: int


Check = Callable[[Sizes], Iterator[Outcome]]


def run_checks(sizes: Sizes) -> Iterator[Outcome]:
    """All of them, in the order of the catalogue's families. One that fails counts as wrong, and the others go on."""
    with torch.device(sizes.placement.place):
        for check in _CHECKS:
            torch.manual_seed(7)
            try:
                yield from check(sizes)
            except (CudaError, RuntimeError) as error:
                yield Outcome(check.__name__.strip("_"), f"failed: {error}", np.inf)


def _outcome(op: str, shape: str, got: torch.Tensor, wanted: np.ndarray[Any, Any], tolerance: Tolerance) -> Outcome:
    values, expected = got.cpu().double().numpy(), np.asarray(wanted, np.float64)
    if tolerance == within.EXACT:
        return Outcome(op, shape, 0.0 if np.array_equal(values, expected) else np.inf)
    magnitude = np.abs(expected)
    bound = tolerance.absolute + tolerance.relative * magnitude + tolerance.of_peak * magnitude.max(initial=0.0)
    worst = (np.abs(values - expected) / bound).max(initial=0.0)
    return Outcome(op, shape, float(np.nan_to_num(worst, nan=np.inf)))


def _np(x: torch.Tensor) -> np.ndarray[Any, Any]:
    return x.cpu().numpy()


def _rounded(x: torch.Tensor, fmt: Format) -> np.ndarray[Any, Any]:
    """Activations as the kernels of this format take them."""
    return _np(x if fmt is Format.FP32 else x.bfloat16().float())


# ---- linears --------------------------------------------------------------------------------------------


def _linears(sizes: Sizes) -> Iterator[Outcome]:
    for fmt in FORMATS.values():
        for columns in (sizes.geometry.hidden, sizes.geometry.intermediate):
            rows = -(-sizes.rows // 128) * 128 if fmt is Format.NVFP4 else sizes.rows + 5
            view, stored = _stored(fmt, rows, columns)
            weight, multiplied = prepare_linear([view]), _product(stored)
            for tokens in sizes.tokens:
                x, residual = torch.randn(tokens, columns), torch.randn(tokens, rows)
                out = residual.clone()
                linear(x, weight, out, out)
                wanted = multiplied(_np(x)) + _np(residual).astype(np.float64)
                yield _outcome("linear", f"{fmt.name} {columns} x {tokens}", out, wanted, within.MATMUL)


def _stored(fmt: Format, rows: int, columns: int) -> tuple[WeightView, linear_oracle.StoredRows]:
    data = random_bytes(fmt, (rows, columns), 0.01)
    stored = linear_oracle.StoredRows(fmt, (rows, columns), 0, rows, _np(data))
    return WeightView(fmt, (rows, columns), 0, rows, data), stored


def _product(stored: linear_oracle.StoredRows) -> moe_oracle.Linear:
    """The oracle's product with one weight, decoded once, of activations as the kernels round them."""
    weight = linear_oracle.represented([stored])

    def product(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return _rounded(torch.from_numpy(x), stored.format).astype(np.float64) @ weight.T

    return product


def _fused(sizes: Sizes) -> Iterator[Outcome]:
    hidden, half = sizes.geometry.hidden, sizes.rows // 2
    for fmt in (Format.Q4, Format.BF16):
        views = [_stored(fmt, rows, hidden) for rows in (half, half, 24, 7)]
        pair = prepare_linear([views[0][0], views[1][0]])
        weights, products = [prepare_linear([view]) for view, _ in views], [_product(stored) for _, stored in views]
        for tokens in sizes.tokens:
            x = torch.randn(tokens, hidden)
            out, outs = torch.empty(tokens, half), [torch.empty(tokens, w.rows) for w in weights]
            gate_up_swiglu(x, pair, out)
            represented = linear_oracle.represented([stored for _, stored in views[:2]])
            wanted = mlp_oracle.gate_up_swiglu(_rounded(x, fmt), represented)
            yield _outcome("gate_up_swiglu", f"{fmt.name} x {tokens}", out, wanted, within.MATMUL_CHAIN)
            projections(x, weights, outs)
            for got, multiplied in zip(outs, products, strict=True):
                wanted = multiplied(_np(x))
                yield _outcome("projections", f"{fmt.name} {got.shape[1]} x {tokens}", got, wanted, within.MATMUL)


def _embedding(sizes: Sizes) -> Iterator[Outcome]:
    for fmt in FORMATS.values():
        rows, hidden = -(-sizes.rows // 128) * 128, sizes.geometry.hidden
        view, stored = _stored(fmt, rows, hidden)
        ids = torch.randint(0, rows, (sizes.prompt,))
        out = torch.empty(len(ids), hidden)
        embedding(ids, prepare_table(view), out)
        wanted = embedding_oracle.embedding(_np(ids), stored.data, fmt, (rows, hidden), 0)
        yield _outcome("embedding", fmt.name, out, wanted, within.EXACT)


# ---- row by row -----------------------------------------------------------------------------------------


def _rowwise(sizes: Sizes) -> Iterator[Outcome]:
    g, tokens = sizes.geometry, sizes.prompt
    x, weight = torch.randn(tokens, g.hidden), torch.randn(g.hidden)
    out = torch.empty_like(x)
    rmsnorm(x, weight, _EPS, True, out)
    wanted = rmsnorm_oracle.rmsnorm(_np(x), _np(weight), _EPS, True)
    yield _outcome("rmsnorm", f"{g.hidden}", out, wanted, within.ROW_NORM)
    x = torch.randn(tokens, g.gdn_value_heads, g.gdn_head_dim)
    z, weight, out = torch.randn_like(x), torch.randn(g.gdn_head_dim), torch.empty_like(x)
    gated_rmsnorm(x, z, weight, _EPS, out)
    wanted = gated_rmsnorm_oracle.gated_rmsnorm(_np(x), _np(z), _np(weight), _EPS)
    yield _outcome("gated_rmsnorm", f"{g.gdn_value_heads}", out, wanted, within.ROW_NORM)
    x = torch.randn(tokens, g.query_heads * g.head_dim)
    gate, out = torch.randn_like(x), torch.empty_like(x)
    gated_sigmoid(x, gate, out)
    wanted = gated_sigmoid_oracle.gated_sigmoid(_np(x), _np(gate))
    yield _outcome("gated_sigmoid", f"{x.shape[1]}", out, wanted, within.ELEMENTWISE)
    both, out = torch.randn(tokens, 2 * g.intermediate), torch.empty(tokens, g.intermediate)
    swiglu(both, out)
    yield _outcome("swiglu", f"{g.intermediate}", out, mlp_oracle.swiglu(_np(both)), within.ELEMENTWISE)
    a, b = (torch.randn(tokens, g.gdn_value_heads) for _ in range(2))
    a_log, bias = (torch.randn(g.gdn_value_heads) for _ in range(2))
    decays, betas = torch.empty_like(a), torch.empty_like(a)
    gdn_gates(a, b, a_log, bias, decays, betas)
    for got, wanted in zip((decays, betas), gates_oracle.gdn_gates(_np(a), _np(b), _np(a_log), _np(bias)), strict=True):
        yield _outcome("gdn_gates", f"{g.gdn_value_heads}", got, wanted, within.GATES)


# ---- attention ------------------------------------------------------------------------------------------


def _rope(sizes: Sizes) -> Iterator[Outcome]:
    g, tokens = sizes.geometry, sizes.prompt
    q, k = (torch.randn(tokens, heads, g.head_dim) for heads in (g.query_heads, g.key_heads))
    norms, rope = [torch.randn(g.head_dim) for _ in range(2)], _rope_spec(g)
    positions = torch.randint(0, 100_000, (3, tokens), dtype=torch.int32)
    outs = torch.empty_like(q), torch.empty_like(k)
    qk_norm_rope(q, k, *norms, _EPS, positions, rope, *outs)
    turned = _np(positions), _np(frequencies(rope)), rope.sections
    for x, norm, out in zip((q, k), norms, outs, strict=True):
        wanted = rope_oracle.qk_norm_rope(_np(x), _np(norm), _EPS, *turned)
        yield _outcome("qk_norm_rope", f"{x.shape[1]} heads", out, wanted, within.ROTATION)


def _append(sizes: Sizes) -> Iterator[Outcome]:
    g, tokens = sizes.geometry, 3
    slots, positions = torch.tensor([5, 64, 127]), torch.randint(0, 9000, (3, tokens), dtype=torch.int32)
    norm, rope = torch.randn(g.head_dim), _rope_spec(g)
    for codec in KvCodec:
        pool = make_kv_pool(codec, 2, g.key_heads, g.head_dim, sizes.placement)
        k, v = (torch.randn(tokens, g.key_heads, g.head_dim) for _ in range(2))
        kv_append(pool, k, v, slots)
        yield _appended("kv_append", codec, pool, k, v, slots)
        q = torch.randn(tokens, g.query_heads, g.head_dim)
        qk_norm_rope_append(q, k, v, norm, norm, _EPS, positions, rope, pool, slots)
        yield _appended("qk_norm_rope_append", codec, pool, k, v, slots)


def _appended(op: str, codec: KvCodec, pool: KvPool, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> Outcome:
    same = all(_stored_as(plane, x, slots) for plane, x in ((pool.keys, k), (pool.values, v)))
    return Outcome(op, codec.value, 0.0 if same else np.inf)


def _rope_spec(g: Geometry) -> RopeSpec:
    pairs = g.rotary_dim // 2
    return RopeSpec(1e7, g.rotary_dim, (pairs - 2 * (pairs // 3), pairs // 3, pairs // 3))


def _stored_as(plane: Plane, x: torch.Tensor, slots: torch.Tensor) -> bool:
    """Whether every row has the oracle's bytes."""
    for token, slot in enumerate(slots.tolist()):
        for head in range(x.shape[1]):
            at = slot // PAGE_TOKENS, head, slot % PAGE_TOKENS
            got = tuple(bytes(_np(part[at].contiguous().view(torch.uint8))) for part in (plane.codes, plane.scales))
            if got != kv_oracle.encode_row(plane.row_format.value, _np(x[token, head]).tolist()):
                return False
    return True


def _attention(sizes: Sizes) -> Iterator[Outcome]:
    for codec in KvCodec:
        yield _attend(sizes, codec, (1, 1), (sizes.depth, 3))
        yield _attend(sizes, codec, (sizes.prompt, 1), (5, 70))


def _attend(sizes: Sizes, codec: KvCodec, counts: tuple[int, ...], starts: tuple[int, ...]) -> Outcome:
    g = sizes.geometry
    lengths = [count + start for count, start in zip(counts, starts, strict=True)]
    width = max(-(-length // PAGE_TOKENS) for length in lengths)
    tables = torch.randperm(len(counts) * width).to(torch.int32).view(len(counts), width)
    pool = _filled(sizes, codec, tables)
    q, scale = torch.randn(sum(counts), g.query_heads, g.head_dim), g.head_dim**-0.5
    out = torch.empty_like(q)
    paged_attention(q, pool, tables, Segments(counts, starts), scale, out)
    keys, values = (
        [_represented(plane, row)[:length] for row, length in zip(tables, lengths, strict=True)]
        for plane in (pool.keys, pool.values)
    )
    wanted = attention_oracle.paged_attention(_np(q), keys, values, starts, counts, scale)
    tolerance = within.ATTENTION if sum(counts) == len(counts) else within.ATTENTION_BF16
    return _outcome("paged_attention", f"{codec.value} {counts} after {starts}", out, wanted, tolerance)


def _filled(sizes: Sizes, codec: KvCodec, tables: torch.Tensor) -> KvPool:
    g, columns = sizes.geometry, tables.numel() * PAGE_TOKENS
    pool = make_kv_pool(codec, tables.numel(), g.key_heads, g.head_dim, sizes.placement)
    k, v = (torch.randn(columns, g.key_heads, g.head_dim) for _ in range(2))
    kv_append(pool, k, v, torch.arange(columns))
    return pool


def _represented(plane: Plane, table: torch.Tensor) -> np.ndarray[Any, Any]:
    """The rows of a sequence in order of position, f64 [pages * 64, heads, dim], decoded on the host."""
    host = Plane(plane.row_format, plane.codes.cpu(), plane.scales.cpu())
    with torch.device("cpu"):
        rows = host.read(table.cpu().long()).transpose(1, 2).flatten(0, 1)
    return rows.double().numpy()


# ---- recurrence -----------------------------------------------------------------------------------------


def _recurrence(sizes: Sizes) -> Iterator[Outcome]:
    for counts in ((1, 1, 1), (sizes.prompt, 1)):
        yield from _gdn(sizes.geometry, counts)
        yield from _conv(sizes.geometry, counts)


def _places(rows: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Each row from one slot to another; the first from zeros."""
    return (-1, *range(1, rows)), tuple(range(rows, 2 * rows))


def _gdn(g: Geometry, counts: tuple[int, ...]) -> Iterator[Outcome]:
    tokens, (sources, targets) = sum(counts), _places(len(counts))
    qkv, state = torch.randn(tokens, g.conv_width), torch.randn(2 * len(counts), *_state_shape(g)) * 0.1
    decay, beta = -torch.rand(tokens, g.gdn_value_heads), torch.rand(tokens, g.gdn_value_heads)
    keys, before = g.gdn_key_heads * g.gdn_head_dim, _np(state).copy()
    parts = [x.view(tokens, -1, g.gdn_head_dim) for x in qkv.split([keys, keys, qkv.shape[1] - 2 * keys], dim=1)]
    out = torch.empty(tokens, g.gdn_value_heads, g.gdn_head_dim)
    places = StateSlots(sources, targets), Segments(counts, (0,) * len(counts))
    folded = state.clone()
    gdn(qkv, decay, beta, state, *places, out)
    gdn_fold(qkv, decay, beta, folded, *places)
    arrays = (*map(_np, parts), _np(decay), _np(beta), before)
    wanted, after = gdn_oracle.gdn(*arrays, sources, targets, counts)
    yield _outcome("gdn", f"{counts}", out, wanted, within.RECURRENCE)
    yield _outcome("gdn state", f"{counts}", state, after, within.RECURRENCE)
    yield _outcome("gdn_fold", f"{counts}", folded, after, within.RECURRENCE)


def _state_shape(g: Geometry) -> tuple[int, int, int]:
    return g.gdn_value_heads, g.gdn_head_dim, g.gdn_head_dim


def _conv(g: Geometry, counts: tuple[int, ...]) -> Iterator[Outcome]:
    sources, targets = _places(len(counts))
    x, weight = torch.randn(sum(counts), g.conv_width), torch.randn(4, g.conv_width)
    history, out = torch.randn(2 * len(counts), 3, g.conv_width), torch.empty_like(x)
    before = _np(history).copy()
    conv_silu(x, weight, history, StateSlots(sources, targets), Segments(counts, (0,) * len(counts)), out)
    wanted, after = conv_oracle.conv_silu(_np(x), _np(weight), before, sources, targets, counts)
    yield _outcome("conv_silu", f"{counts}", out, wanted, within.CONVOLUTION)
    yield _outcome("conv_silu history", f"{counts}", history, after, within.EXACT)


# ---- experts --------------------------------------------------------------------------------------------


def _experts(sizes: Sizes) -> Iterator[Outcome]:
    g, experts = sizes.geometry, sizes.geometry.experts
    if experts is None:
        return
    yield from _routing(experts, sizes.prompt)
    up = [_stored(Format.Q4, 2 * experts.size, g.hidden) for _ in range(experts.count)]
    down = [_stored(Format.Q4, g.hidden, experts.size) for _ in range(experts.count)]
    sides = [[prepare_linear([view]) for view, _ in side] for side in (up, down)]
    weights, products = prepare_experts(*sides), [_product(stored) for _, stored in down]
    for tokens in sizes.tokens:
        x, shares = torch.randn(tokens, g.hidden), torch.rand(tokens, experts.chosen)
        ids = torch.stack([torch.randperm(experts.count)[: experts.chosen] for _ in range(tokens)])
        out = torch.empty_like(x)
        moe_experts(x, weights, ids, shares, out)
        wanted = _mixed([_np(_gated(x, weight)) for weight in sides[0]], products, _np(ids), _np(shares))
        yield _outcome(
            "moe_experts", f"{experts.chosen} of {experts.count} x {tokens}", out, wanted, within.MATMUL_CHAIN
        )
    x, score, routed = (torch.randn(5, width) for width in (g.hidden, 1, g.hidden))
    residual = torch.rand(5, g.hidden) + 16  # no sum cancels
    out = torch.empty_like(x)
    moe_shared_add(x, score, routed, residual, out)
    wanted = moe_oracle.moe_shared_add(*map(_np, (x, score, routed, residual)))
    yield _outcome("moe_shared_add", f"{g.hidden}", out, wanted, within.ELEMENTWISE)


def _gated(x: torch.Tensor, weight: LinearWeight) -> torch.Tensor:
    out = torch.empty(len(x), weight.rows // 2)
    gate_up_swiglu(x, weight, out)
    return out


def _mixed(
    gated: Sequence[np.ndarray[Any, Any]],
    down: Sequence[moe_oracle.Linear],
    ids: np.ndarray[Any, Any],
    shares: np.ndarray[Any, Any],
) -> np.ndarray[Any, Any]:
    """What moe_experts should make of each expert's gated products f32[T, I].

    Those are the device's, which gate_up_swiglu gives with the same bits: of fp64's, some would lie beyond a border
    between two bf16, and a sum shows which way a single one of its terms was rounded.
    """
    rows = [
        sum(float(share) * down[expert](gated[expert][row : row + 1])[0] for expert, share in zip(*chosen, strict=True))
        for row, chosen in enumerate(zip(ids, shares, strict=True))
    ]
    return np.array(rows)


def _routing(experts: Experts, tokens: int) -> Iterator[Outcome]:
    logits, ids = torch.randn(tokens, experts.count), torch.empty(tokens, experts.chosen, dtype=torch.int64)
    shares = torch.empty(tokens, experts.chosen)
    moe_route(logits, experts.chosen, ids, shares)
    wanted_ids, wanted = moe_oracle.moe_route(_np(logits), experts.chosen)
    yield _outcome("moe_route ids", f"{experts.count}", ids, wanted_ids, within.EXACT)
    yield _outcome("moe_route", f"{experts.count}", shares, wanted, within.PROBABILITY)


# ---- logits ---------------------------------------------------------------------------------------------


def _choice(sizes: Sizes) -> Iterator[Outcome]:
    vocab, rows = sizes.geometry.vocabulary, 2
    logits = torch.randn(rows, vocab) * 3
    ids = torch.empty(rows, dtype=torch.int64)
    argmax(logits, None, ids)
    yield _outcome("argmax", f"{vocab}", ids, argmax_oracle.argmax(_np(logits), None), within.EXACT)
    values, targets = torch.empty(rows), torch.randint(0, vocab, (rows,))
    log_softmax_gather(logits, targets, values)
    wanted = log_softmax_oracle.log_softmax_gather(_np(logits), _np(targets))
    yield _outcome("log_softmax_gather", f"{vocab}", values, wanted, within.LOG_PROBABILITY)
    top_ids, top_values = torch.empty(rows, 20, dtype=torch.int64), torch.empty(rows, 20)
    top_logprobs(logits, 20, top_ids, top_values)
    wanted_ids, wanted = log_softmax_oracle.top_logprobs(_np(logits), 20)
    yield _outcome("top_logprobs ids", f"{vocab}", top_ids, wanted_ids, within.EXACT)
    yield _outcome("top_logprobs", f"{vocab}", top_values, wanted, within.LOG_PROBABILITY)
    for name, settings in _SAMPLING.items():
        yield _sampled(logits, name, settings)


_SAMPLING: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "top-k 20, top-p 0.8": {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
}


def _sampled(logits: torch.Tensor, name: str, settings: Mapping[str, Any]) -> Outcome:
    rows, ids = len(logits), torch.empty(len(logits), dtype=torch.int64)
    batch = SamplingBatch(tuple(SamplingRow(seed=row, **settings) for row in range(rows)), tuple(range(rows)))
    sample(logits, batch, ids)
    wanted = [
        sampling_oracle.draw(
            sampling_oracle.distribution(row, sampling_oracle.Parameters(**settings)), uniform(i, i, Purpose.TOKEN)
        )
        for i, row in enumerate(_np(logits).tolist())
    ]
    return _outcome("sample", name, ids, np.array(wanted), within.EXACT)


_CHECKS: tuple[Check, ...] = (
    _linears,
    _fused,
    _embedding,
    _rowwise,
    _rope,
    _append,
    _attention,
    _recurrence,
    _experts,
    _choice,
)
