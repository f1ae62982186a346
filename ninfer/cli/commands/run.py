"""`ninfer run`: one answer."""

from __future__ import annotations

from typing import Annotated

import typer

from ninfer.cli import factories
from ninfer.cli.answers import AnswerPrinter, drain, result_json, statistics
from ninfer.cli.engine_flags import CapacityFlags, ComputeFlags
from ninfer.cli.failures import CommandError, UsageMistake
from ninfer.cli.flags import ModelFlags, SamplingFlags, TemplateFlags
from ninfer.cli.models import model_of
from ninfer.cli.outputs import print_json, say
from ninfer.cli.progress import ProgressBar
from ninfer.cli.prompts import chat_prompt, read_conversation, require_one, text_argument, text_file
from ninfer.types import FinishReason, GenerationRequest, GenerationResult, Message, Tool


def run(
    model: ModelFlags,
    sampling: SamplingFlags,
    template: TemplateFlags,
    compute: ComputeFlags,
    capacity: CapacityFlags,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="What to ask; - reads stdin.", show_default=False),
    ] = None,
    prompt_file: Annotated[
        str | None, typer.Option("--prompt-file", metavar="FILE", help="A UTF-8 file to ask.", show_default=False)
    ] = None,
    messages: Annotated[
        str | None,
        typer.Option("--messages", metavar="FILE", help="A conversation, as OpenAI-style JSON.", show_default=False),
    ] = None,
    tools: Annotated[
        str | None,
        typer.Option("--tools", metavar="FILE", help="Tools for --messages, as JSON.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the text.")] = False,
) -> None:
    """Answer one prompt: the text goes to stdout, everything else to stderr."""
    conversation, known_tools = _conversation(prompt, prompt_file, messages, tools)
    request = GenerationRequest(
        prompt=chat_prompt(conversation, known_tools, template),
        max_new_tokens=sampling.max_new,
        sampling=sampling.sampling(),
        stops=sampling.stops(),
    )
    path = model_of(model)
    with (
        ProgressBar() as bar,
        factories.open_engine(path, capacity.options(compute), bar.report) as engine,
    ):
        bar.close()
        with engine.generate(request) as handle:
            if json:
                _print_result(handle.result())
                return
            finish = drain(handle, AnswerPrinter())
        say(statistics(finish.usage, finish.timings, finish.reason))


def _print_result(result: GenerationResult) -> None:
    if result.finish_reason is FinishReason.ERROR:
        raise CommandError("generation failed")
    print_json(result_json(result))


def _conversation(
    prompt: str | None, prompt_file: str | None, messages: str | None, tools: str | None
) -> tuple[tuple[Message, ...], tuple[Tool, ...]]:
    source = require_one(prompt=prompt, prompt_file=prompt_file, messages=messages)
    if messages is not None:
        return read_conversation(messages, tools)
    if tools is not None:
        raise UsageMistake("--tools needs --messages")
    text = (
        text_argument(prompt or "", "--prompt") if source == "prompt" else text_file(prompt_file or "", "--prompt-file")
    )
    return (Message("user", text),), ()
