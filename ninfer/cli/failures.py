"""From exceptions to exit codes: 0 ok, 1 failure, 2 usage, 130 interrupted; one `error: …` line on stderr."""

from __future__ import annotations

import enum
import sys
import traceback
from collections.abc import Callable

import typer
from typer.exceptions import TyperException

from ninfer.errors import NinferError


class ExitCode(enum.IntEnum):
    """What the process tells its parent."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    INTERRUPTED = 130


class CommandError(NinferError):
    """A command cannot go on; the message names the file or flag and the remedy."""


class UsageMistake(TyperException):
    """Flags that contradict each other or are incomplete: exit code 2."""

    exit_code = ExitCode.USAGE


def guarded(body: Callable[[], object], debug: bool) -> int:
    """Run `body` and turn every way it can end into an exit code. `debug` shows tracebacks."""
    try:
        code = body()
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _report(error)
    return code if isinstance(code, int) else ExitCode.OK


def _report(error: Exception) -> int:
    print(f"error: {' '.join(describe(error).split())}", file=sys.stderr)
    return error.exit_code if isinstance(error, TyperException) else ExitCode.FAILURE


def describe(error: Exception) -> str:
    """What went wrong, in one sentence for a user."""
    match error:
        case TyperException():
            return f"{error.format_message().rstrip('.')} (see --help)"
        case NinferError():
            return str(error)
        case OSError(filename=str() | bytes() as name, strerror=str() as reason):
            return f"{name!s}: {reason}"
        case OSError(strerror=str() as reason):
            return f"{reason}: check what standard input and output are connected to, and the free space there"
        case MemoryError():
            return "out of memory: lower --max-context, --kv-capacity or --max-concurrency, or use a smaller model"
        case typer.Abort():
            return "aborted: the input ended"
        case _:
            return f"internal error, {type(error).__name__}: {error} (run again with --debug for the traceback)"
