"""The entry point: one Typer application whose every ending becomes an exit code."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ninfer import __version__
from ninfer.cli.commands.bench import bench
from ninfer.cli.commands.chat import chat
from ninfer.cli.commands.convert import convert, with_proposal_rows
from ninfer.cli.commands.doctor import doctor
from ninfer.cli.commands.inspect import inspect
from ninfer.cli.commands.run import run as run_command
from ninfer.cli.commands.score import score
from ninfer.cli.commands.tokenize import tokenize
from ninfer.cli.failures import guarded
from ninfer.cli.outputs import say
from ninfer.cli.spread import DebugFlag, spread
from ninfer.errors import CompiledKernelsWarning


class GuardedGroup(TyperGroup):
    """The command group: errors become one line and an exit code, `--debug` anywhere shows the traceback."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        arguments = list(sys.argv[1:] if args is None else args)
        if "convert" in arguments[:2]:
            arguments = with_proposal_rows(arguments)
        extra["standalone_mode"] = False
        body = super().main
        sys.exit(guarded(lambda: body(arguments, *rest, **extra), debug="--debug" in arguments))


# Rich help costs 0.2 s of imports, more than everything else on the way to it.
app = typer.Typer(cls=GuardedGroup, rich_markup_mode=None, add_completion=False)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: DebugFlag = False,
) -> None:
    """Convert, run, chat, score and bench Qwen3.5-family models on this machine."""
    if version:
        typer.echo(f"ninfer {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


for command in (convert, inspect, run_command, chat, tokenize, score, bench, doctor):
    app.command(name=command.__name__)(spread(command))


def run() -> None:
    """The `ninfer` console script."""
    _open_closed_streams()
    warnings.showwarning = partial(_show_warning, warnings.showwarning)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets its escape, not a crash in mid-answer.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="ninfer")


def _show_warning(default: Callable[..., None], message: Warning | str, category: type[Warning], *where: Any) -> None:
    """What a user can do something about, in one line; the rest as Python shows it."""
    if issubclass(category, CompiledKernelsWarning):
        say(f"warning: {message}")
    else:
        default(message, category, *where)


def _open_closed_streams() -> None:
    """Where the parent closed a standard stream, read nothing and write nowhere; no file may take its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
