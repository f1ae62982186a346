"""From addresses in compiled code to lines of the source, by binutils' addr2line."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def describe(library: Path, base: int, frames: list[int], source: Path) -> str:
    """The place where `frames` (return addresses, innermost first) are, as "a.cuh:5 from kernel.cu:12"; or "".

    Only the innermost line, and the innermost of the kernel's own source, are named.
    """
    lines = [line for frame in frames for line in _lines(library, frame - base - 1)]
    if not lines:
        return ""
    own = next((line for line in lines if line.startswith(f"{source.name}:")), None)
    return lines[0] if own in (None, lines[0]) else f"{lines[0]} from {own}"


def _lines(library: Path, offset: int) -> list[str]:
    """The line of an instruction, and those of the calls that were inlined around it."""
    program = shutil.which("addr2line")
    if program is None:
        return []
    command = (program, "-i", "-e", str(library), hex(offset))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    lines = [Path(line.split(" ")[0]).name for line in done.stdout.splitlines()]
    return [line for line in lines if not line.startswith("?") and not line.endswith((":?", ":0"))]
