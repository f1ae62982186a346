"""The option groups shared by commands, and their translation into public values."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from ninfer.cli.failures import UsageMistake
from ninfer.types import EngineOptions, KvDtype, Sampling, StopConditions

_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
_SEED_LIMIT = 2**64


def _device(value: str) -> str:
    if not _DEVICE.fullmatch(value):
        raise typer.BadParameter(f"{value!r} is no device: give auto, cpu, cuda or cuda:INDEX")
    return value


def _prefill_chunk(value: int) -> int:
    if value % 128:
        raise typer.BadParameter(f"{value} is no multiple of 128")
    return value


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter("must be a finite number")
    return value


def _or(value: float | None, default: float | None) -> float | None:
    return default if value is None else value


def _top_p(value: float | None) -> float | None:
    if _finite(value) == 0.0:
        raise typer.BadParameter("0 leaves no token to choose; use --greedy for the most probable one")
    return value


@dataclass(frozen=True, slots=True)
class ModelFlags:
    """Which model, as an argument or as an option."""

    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="A .ninfer file.", show_default=False)] = None
    model_option: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="FILE",
            help="The same as the MODEL argument.",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class ModelOptionFlag:
    """Which model, where the arguments of the command are something else."""

    model_option: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="FILE",
            help="A .ninfer file.",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class ComputeFlags:
    """Where and how the model computes."""

    device: Annotated[
        str,
        typer.Option(
            "--device",
            callback=_device,
            metavar="auto|cpu|cuda[:I]",
            help="Where to compute.",
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

    def options(self) -> EngineOptions:
        """Engine options with everything else at its default."""
        return EngineOptions(
            device=self.device, threads=self.threads, kv_dtype=self.kv_dtype, prefill_chunk=self.prefill_chunk
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
        int | None,
        typer.Option(
            "--kv-capacity",
            metavar="N",
            min=1,
            help="Pages of 64 tokens for all requests.",
            show_default="one full context",
        ),
    ] = None
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
            kv_capacity=self.kv_capacity,
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


@dataclass(frozen=True, slots=True)
class SamplingFlags:
    """How tokens are chosen and when an answer ends."""

    max_new: Annotated[
        int | None,
        typer.Option(
            "--max-new",
            metavar="N",
            min=1,
            help="Tokens to generate.",
            show_default="up to the context limit",
        ),
    ] = None
    greedy: Annotated[
        bool,
        typer.Option(
            "--greedy",
            help="Always the most probable token.",
        ),
    ] = False
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            metavar="T",
            min=0,
            callback=_finite,
            help="0 is greedy.",
            show_default="preset",
        ),
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p",
            metavar="P",
            min=0,
            max=1,
            callback=_top_p,
            help="Nucleus size.",
            show_default="preset",
        ),
    ] = None
    top_k: Annotated[
        int | None,
        typer.Option(
            "--top-k",
            metavar="K",
            min=0,
            help="Tokens to choose from, 0 = all.",
            show_default="preset",
        ),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(
            "--min-p",
            metavar="P",
            min=0,
            max=1,
            callback=_finite,
            help="Least probability, relative to the best.",
            show_default="preset",
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        typer.Option(
            "--presence-penalty",
            metavar="X",
            callback=_finite,
            help="Off the logits of tokens used.",
            show_default="preset",
        ),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        typer.Option(
            "--frequency-penalty",
            metavar="X",
            callback=_finite,
            help="The same, times their count.",
            show_default="preset",
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            "--repetition-penalty",
            metavar="X",
            min=0,
            callback=_finite,
            help="Divides positive logits of tokens seen.",
            show_default="preset",
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            metavar="N",
            min=0,
            max=_SEED_LIMIT - 1,
            help="Fixes the draws.",
            show_default="random",
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop",
            metavar="TEXT",
            help="Text that ends the answer (repeatable).",
        ),
    ] = None
    stop_token_id: Annotated[
        list[int] | None,
        typer.Option(
            "--stop-token-id",
            metavar="ID",
            min=0,
            help="Token that ends the answer (repeatable).",
        ),
    ] = None

    def sampling(self) -> Sampling:
        """The sampling these flags ask for. Raises UsageMistake if they contradict each other."""
        if self.greedy:
            return self._greedy()
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            seed=self.seed,
        )

    def _greedy(self) -> Sampling:
        """Penalties may still be asked for; what would choose among several tokens may not."""
        choosing = {
            "--temperature": self.temperature,
            "--top-p": self.top_p,
            "--top-k": self.top_k,
            "--min-p": self.min_p,
        }
        clash = next((flag for flag, value in choosing.items() if value is not None), None)
        if clash:
            raise UsageMistake(f"--greedy and {clash} exclude each other: drop one")
        plain = Sampling.greedy()
        return replace(
            plain,
            presence_penalty=_or(self.presence_penalty, plain.presence_penalty),
            frequency_penalty=_or(self.frequency_penalty, plain.frequency_penalty),
            repetition_penalty=_or(self.repetition_penalty, plain.repetition_penalty),
            seed=plain.seed if self.seed is None else self.seed,
        )

    def stops(self) -> StopConditions:
        """The stop conditions these flags ask for."""
        if any(not text for text in self.stop or ()):
            raise UsageMistake("--stop must not be empty text")
        return StopConditions(strings=tuple(self.stop or ()), token_ids=tuple(self.stop_token_id or ()))


@dataclass(frozen=True, slots=True)
class TemplateFlags:
    """How a conversation becomes a prompt."""

    no_thinking: Annotated[
        bool,
        typer.Option(
            "--no-thinking",
            help="Answer without thinking first.",
        ),
    ] = False
    reasoning_effort: Annotated[
        str | None,
        typer.Option(
            "--reasoning-effort",
            metavar="LEVEL",
            help="Given to the chat template.",
            show_default=False,
        ),
    ] = None
    chat_template: Annotated[
        Path | None,
        typer.Option(
            "--chat-template",
            metavar="FILE",
            help="Jinja template instead of the model's.",
            show_default=False,
        ),
    ] = None

    @property
    def thinking(self) -> bool | None:
        """None leaves the template's own default."""
        return False if self.no_thinking else None
