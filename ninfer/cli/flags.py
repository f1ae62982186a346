"""The option groups shared by commands, and their translation into public values."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from ninfer.cli.failures import UsageMistake
from ninfer.types import Sampling, StopConditions

_SEED_LIMIT = 2**64


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
