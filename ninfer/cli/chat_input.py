"""Reading what the user says: lines, continued lines and quoted blocks."""

from __future__ import annotations

import sys
from collections.abc import Callable

PROMPT, CONTINUATION = "> ", "… "
QUOTES = '"""'

ReadLine = Callable[[str], str]


def read_turn(read_line: ReadLine) -> str:
    """One turn. Raises EOFError where the input ends before it begins.

    A line that ends in a backslash goes on in the next one; a turn that begins with three quotes goes on until three
    quotes end a line.
    """
    line = read_line(PROMPT)
    if line.lstrip().startswith(QUOTES):
        return _block(line.lstrip().removeprefix(QUOTES), read_line)
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(_next(read_line))
    return "\n".join(lines)


def _block(first: str, read_line: ReadLine) -> str:
    lines = [first]
    while not lines[-1].rstrip().endswith(QUOTES):
        following = read_line_or_none(read_line)
        if following is None:
            return "\n".join(lines).strip("\n")
        lines.append(following)
    lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
    return "\n".join(lines).strip("\n")


def _next(read_line: ReadLine) -> str:
    following = read_line_or_none(read_line)
    return "" if following is None else following


def read_line_or_none(read_line: ReadLine) -> str | None:
    """The next line of an unfinished turn; None where the input ends."""
    try:
        return read_line(CONTINUATION)
    except EOFError:
        return None


def line_source(interactive: bool) -> ReadLine:
    """Lines from a terminal, with editing and history where the platform has them, or from a pipe, without prompts."""
    if not interactive:
        return _piped_line
    try:
        import readline
    except ImportError:
        return _typed_line
    readline.set_auto_history(True)
    return _typed_line


def _piped_line(prompt: str) -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n").removesuffix("\r")


def _typed_line(prompt: str) -> str:
    """The prompt goes to stderr where stdout is a file: the file is for answers."""
    if sys.stdout.isatty():
        return input(prompt)
    print(prompt, end="", file=sys.stderr, flush=True)
    return input()
