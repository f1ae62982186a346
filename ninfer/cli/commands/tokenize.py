"""`ninfer tokenize`: what the model would read."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from ninfer.cli import factories
from ninfer.cli.failures import UsageMistake
from ninfer.cli.flags import ModelFlags, TemplateFlags
from ninfer.cli.models import model_of
from ninfer.cli.outputs import print_json
from ninfer.cli.prompts import chat_prompt, read_conversation, require_one, text_argument
from ninfer.types import JsonValue, Prompt, TextPrompt


def tokenize(
    model: ModelFlags,
    template: TemplateFlags,
    text: Annotated[
        str | None,
        typer.Option("--text", metavar="TEXT", help="Plain text, as it is; - reads stdin.", show_default=False),
    ] = None,
    messages: Annotated[
        str | None,
        typer.Option("--messages", metavar="FILE", help="A conversation, as OpenAI-style JSON.", show_default=False),
    ] = None,
    tools: Annotated[
        str | None,
        typer.Option("--tools", metavar="FILE", help="Tools for --messages, as JSON.", show_default=False),
    ] = None,
    template_arg: Annotated[
        list[str] | None,
        typer.Option(
            "--template-arg", metavar="K=V", help="Given to the chat template; V is JSON or else text (repeatable)."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a prompt as the model reads it: the rendered text, then its token ids."""
    arguments = _template_arguments(template_arg or ())
    source = require_one(text=text, messages=messages)
    if source == "text" and (tools is not None or arguments):
        raise UsageMistake("--tools and --template-arg need --messages")
    prompt: Prompt = (
        TextPrompt(text_argument(text or "", "--text"))
        if source == "text"
        else _chat(messages or "", tools, template, arguments)
    )
    path = model_of(model)
    rendered = factories.render(path, prompt)
    shown = rendered.text if rendered.text is not None else text or ""
    if json:
        print_json({"text": shown, "ids": list(rendered.token_ids)})
    else:
        typer.echo(shown, nl=not shown.endswith("\n"))
        typer.echo(" ".join(map(str, rendered.token_ids)))


def _chat(messages: str, tools: str | None, template: TemplateFlags, arguments: dict[str, JsonValue]) -> Prompt:
    conversation, known_tools = read_conversation(messages, tools)
    return replace(chat_prompt(conversation, known_tools, template), template_args=arguments)


def _template_arguments(pairs: Sequence[str]) -> dict[str, JsonValue]:
    arguments: dict[str, JsonValue] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise UsageMistake(f"--template-arg {pair!r} is not of the form NAME=VALUE")
        arguments[key] = _json_or_text(value)
    return arguments


def _json_or_text(value: str) -> JsonValue:
    try:
        parsed: JsonValue = json_module.loads(value)
    except ValueError:
        return value
    return parsed
