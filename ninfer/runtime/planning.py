"""How a device's memory is divided before the first request: an affine curve over the number of KV pages.

What the pages do not decide (state images, workspaces, a round's own tensors, graphs) is the fixed part. The curve is
computed, never probed, so that the same options on the same device always give the same plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.errors import ConfigError
from ninfer.kernels.kv_cache import KvCodec
from ninfer.models.qwen3_5.config import TextConfig
from ninfer.models.qwen3_5.state import image_bytes, page_bytes
from ninfer.models.qwen3_5.workspace import op_workspace_bytes, workspace_bytes

HEADROOM = 1 << 30
"""Left free: what the driver, its libraries and other processes take later."""
OP_WORKSPACES = 256 << 20
"""Allowed to the ops' own scratch memory that does not grow with a chunk: half of it is for partial attention."""
GRAPH = 32 << 20
"""Allowed to one recorded round: a CUDA graph's nodes and their arguments."""


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """Bytes as a function of KV pages: `fixed + pages * per_page`."""

    fixed: int
    per_page: int

    def total(self, pages: int) -> int:
        """Bytes that `pages` pages and everything else take."""
        return self.fixed + pages * self.per_page

    def pages_within(self, budget: int) -> int:
        """The most pages that a budget of bytes allows; negative where it does not hold the rest."""
        return (budget - self.fixed) // self.per_page


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides about the fixed part.

    Attributes:
        lanes: decode rounds have up to so many rows; 0 where nothing is decoded.
        chunk: tokens of a prefill.
        sequence_pages: the most pages of one sequence.
        images: state images.
        logits: rows of logits that a prefill ends in.
    """

    lanes: int
    chunk: int
    sequence_pages: int
    images: int
    logits: int = 1


def memory_curve(config: TextConfig, codec: KvCodec, shape: Shape) -> MemoryCurve:
    """What Program takes on a device for this shape, beside the weights."""
    rounds = sum(round_bytes(config, rows, shape.sequence_pages) for rows in range(1, shape.lanes + 1))
    workspace = workspace_bytes(config, shape.chunk, shape.logits) + op_workspace_bytes(config, shape.chunk)
    fixed = shape.images * image_bytes(config) + workspace + rounds + OP_WORKSPACES
    return MemoryCurve(fixed, max(page_bytes(config, codec), 1))


def round_bytes(config: TextConfig, rows: int, sequence_pages: int) -> int:
    """A recorded round of `rows` rows: its graph, inputs, page tables, results and Arena."""
    inputs = rows * (2 * 8 + 8 * 4 + 4 * sequence_pages)
    results = 4 * rows * (config.hidden_size + config.vocab_size)
    return GRAPH + inputs + results + workspace_bytes(config, rows, rows)


def plan_pages(curve: MemoryCurve, free: int, asked: int | None, least: int, most: int) -> int:
    """KV pages that fit into `free` bytes less headroom: what was asked for, else as many as are of use.

    Raises:
        ConfigError: even `least`, or what was asked for, does not fit; saying what to lower.
    """
    lower = "--max-context, --max-concurrency, --prefill-chunk, --device-state-slots or --kv-capacity"
    require_room(curve, free, least if asked is None else asked, lower)
    return min(curve.pages_within(free - HEADROOM), most) if asked is None else asked


def require_room(curve: MemoryCurve, free: int, pages: int, lower: str) -> None:
    """Refuse what does not fit into `free` bytes less headroom.

    Raises:
        ConfigError: saying how much is needed, and to `lower` what.
    """
    need = curve.total(pages) + HEADROOM
    if need > free:
        raise ConfigError(
            f"{pages} pages of 64 tokens and what goes with them need {_gib(need)} GiB beside the weights, the device "
            f"has {_gib(free)} GiB free; lower {lower}, or take a smaller --kv-dtype"
        )


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f}"
