"""`ninfer chat`: a conversation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from ninfer.cli import factories
from ninfer.cli.engine_flags import CapacityFlags, ComputeFlags
from ninfer.cli.flags import ModelFlags, SamplingFlags, TemplateFlags
from ninfer.cli.models import model_of
from ninfer.cli.outputs import say
from ninfer.cli.progress import ProgressBar
from ninfer.cli.prompts import chat_prompt
from ninfer.types import GenerationRequest, Message


def chat(
    model: ModelFlags,
    sampling: SamplingFlags,
    template: TemplateFlags,
    compute: ComputeFlags,
    capacity: CapacityFlags,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="The system message.", show_default=False)
    ] = None,
) -> None:
    """Talk to a model. With piped input, every line is one turn and only answers go to stdout."""
    from ninfer.cli.chat_input import line_source
    from ninfer.cli.chat_session import ChatSession

    chosen, stops = sampling.sampling(), sampling.stops()
    blank = chat_prompt((), (), template)

    def request(messages: Sequence[Message], session_key: str) -> GenerationRequest:
        prompt = replace(blank, messages=tuple(messages))
        return GenerationRequest(prompt, sampling.max_new, chosen, stops, session_key=session_key)

    path = model_of(model)
    interactive = sys.stdin.isatty()
    with ProgressBar() as bar, factories.open_engine(path, capacity.options(compute), bar.report) as engine:
        bar.close()
        if interactive:
            say(f"{engine.info.name}: /help for help, Ctrl-D to leave")
        ChatSession(engine, request, system, interactive).loop(line_source(interactive))
