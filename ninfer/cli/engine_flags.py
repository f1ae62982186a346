"""The options of an engine: where it computes, how much it holds, what it keeps for reuse."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from ninfer.types import EngineOptions, KvDtype

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


def _device(value: str) -> str:
    if not _DEVICE.fullmatch(value):
        raise typer.BadParameter(f"{value!r} is no device: give auto, cpu, cuda or cuda:INDEX")
    return value


def _prefill_chunk(value: int) -> int:
    if value % 128:
        raise typer.BadParameter(f"{value} is no multiple of 128")
    return value


def _kv_capacity(value: str) -> str:
    if value != "auto" and not (value.isascii() and value.isdigit() and int(value)):
        raise typer.BadParameter(f"{value!r} is no number of pages: give auto, or a number from 1")
    return value


@dataclass(frozen=True, slots=True)
class ComputeFlags:
    """Where and how the model computes."""

    device: Annotated[
        str,
        typer.Option(
            "--device",
            callback=_device,
            metavar="auto|cpu|cuda[:I]",
            help="Where to compute; auto takes a CUDA device if it can be used.",
        ),
    ] = "auto"
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            metavar="N",
            min=1,
            help="CPU threads.",
            show_default="physical cores",
        ),
    ] = None
    kv_dtype: Annotated[
        KvDtype,
        typer.Option(
            "--kv-dtype",
            help="How keys and values are stored.",
            case_sensitive=False,
        ),
    ] = KvDtype.BF16
    prefill_chunk: Annotated[
        int,
        typer.Option(
            "--prefill-chunk",
            metavar="N",
            min=128,
            callback=_prefill_chunk,
            help="Prompt tokens per step, a multiple of 128.",
        ),
    ] = 1024

    cuda_graph: Annotated[
        bool,
        typer.Option(
            "--cuda-graph/--no-cuda-graph",
            help="Run decode rounds as CUDA graphs.",
        ),
    ] = True

    def options(self) -> EngineOptions:
        """Engine options with everything else at its default."""
        return EngineOptions(
            device=self.device,
            threads=self.threads,
            kv_dtype=self.kv_dtype,
            prefill_chunk=self.prefill_chunk,
            cuda_graph=self.cuda_graph,
        )


@dataclass(frozen=True, slots=True)
class CapacityFlags:
    """How much the engine holds at once."""

    max_context: Annotated[
        int | None,
        typer.Option(
            "--max-context",
            metavar="N",
            min=1,
            help="Tokens per request.",
            show_default="the model's limit, at most 32768",
        ),
    ] = None
    kv_capacity: Annotated[
        str,
        typer.Option(
            "--kv-capacity",
            metavar="N|auto",
            callback=_kv_capacity,
            help="Pages of 64 tokens for all requests. auto: one full context and a quarter, on CUDA what fits.",
        ),
    ] = "auto"
    max_concurrency: Annotated[
        int | None,
        typer.Option(
            "--max-concurrency",
            metavar="N",
            min=1,
            max=8,
            help="Requests computed together.",
            show_default="1",
        ),
    ] = None
    max_pending_requests: Annotated[
        int,
        typer.Option(
            "--max-pending-requests",
            metavar="N",
            min=1,
            help="Requests that may wait.",
        ),
    ] = 64
    concurrent_prefill: Annotated[
        bool,
        typer.Option(
            "--concurrent-prefill",
            help="Let prompts advance beside running answers.",
        ),
    ] = False
    device_state_slots: Annotated[
        int | None,
        typer.Option(
            "--device-state-slots",
            metavar="N",
            min=0,
            help="Checkpoints kept ready for reuse; 0 turns reuse off.",
            show_default="up to 32",
        ),
    ] = None
    host_state_slots: Annotated[
        int,
        typer.Option(
            "--host-state-slots",
            metavar="N",
            min=0,
            help="Checkpoints that may wait in host memory.",
        ),
    ] = 32
    host_kv_mib: Annotated[
        int,
        typer.Option(
            "--host-kv-mib",
            metavar="N",
            min=0,
            help="MiB of host memory for their keys and values.",
        ),
    ] = 1024
    max_private_continuations: Annotated[
        int | None,
        typer.Option(
            "--max-private-continuations",
            metavar="N",
            min=1,
            help="Conversations kept for reuse.",
            show_default="as the slots allow",
        ),
    ] = None
    max_shared_prefixes: Annotated[
        int | None,
        typer.Option(
            "--max-shared-prefixes",
            metavar="N",
            min=0,
            help="Prefixes kept for everyone.",
            show_default="lanes, at least 4",
        ),
    ] = None
    max_long_anchors: Annotated[
        int | None,
        typer.Option(
            "--max-long-anchors",
            metavar="N",
            min=0,
            help="Checkpoints inside long prompts.",
            show_default="as the slots allow",
        ),
    ] = None

    def options(self, compute: ComputeFlags) -> EngineOptions:
        """All engine options."""
        return replace(
            compute.options(),
            max_context=self.max_context,
            kv_capacity=None if self.kv_capacity == "auto" else int(self.kv_capacity),
            max_concurrency=self.max_concurrency or 1,
            max_pending_requests=self.max_pending_requests,
            concurrent_prefill=self.concurrent_prefill,
            device_state_slots=self.device_state_slots,
            host_state_slots=self.host_state_slots,
            host_kv_mib=self.host_kv_mib,
            max_private_continuations=self.max_private_continuations,
            max_shared_prefixes=self.max_shared_prefixes,
            max_long_anchors=self.max_long_anchors,
        )
