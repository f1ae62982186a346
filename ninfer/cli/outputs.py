"""Standard output, standard error and files. Files appear whole or not at all."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ninfer.cli.failures import CommandError

if TYPE_CHECKING:
    from rich.console import Console


def say(text: str) -> None:
    """One line of information, on stderr."""
    print(text, file=sys.stderr, flush=True)


def print_json(value: Mapping[str, object]) -> None:
    """The one JSON object of a `--json` run, on stdout."""
    sys.stdout.write(to_json(value) + "\n")
    sys.stdout.flush()


def to_json(value: Mapping[str, object]) -> str:
    """Indented JSON. Values must be finite: RFC 8259 has no NaN."""
    return json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False)


def write_text(path: Path, text: str) -> None:
    """Write a whole UTF-8 file."""
    with whole_file(path) as stream:
        stream.write(text)


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """A UTF-8 text file that takes its name when the block ends well and leaves nothing behind otherwise."""
    with whole_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as stream:
        yield stream


@contextmanager
def whole_path(path: Path) -> Iterator[Path]:
    """A temporary sibling of `path` (same suffix) that is renamed to it when the block ends well."""
    import tempfile

    check_writable(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def check_writable(path: Path) -> None:
    """Refuse an output path that cannot work, before any work is done for it."""
    if path.is_dir():
        raise CommandError(f"{path} is a directory: name a file to write")
    if not path.parent.is_dir():
        raise CommandError(f"{path}: the folder {path.parent} does not exist: create it first")
    if not os.access(path.parent, os.W_OK):
        raise CommandError(f"{path}: the folder {path.parent} cannot be written to")


def table_console(stderr: bool = False) -> Console:
    """A Rich console for tables. Width follows the terminal; piped output is wide enough not to fold."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else 120, highlight=False)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
