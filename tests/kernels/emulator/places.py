"""From addresses in compiled code to lines of the source, by binutils' addr2line."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ninfer.kernels.jit.headers import OURS
from tests.kernels.emulator.modules import Module
from tests.kernels.emulator.recipes import HERE


def describe(module: Module, frames: Sequence[int]) -> str:
    """The place of code at `frames`, as "memory.cuh:5 from rmsnorm.cu:12"; or "".

    Only the innermost line is named, and if that is of a header for all kernels, the innermost of the kernel's own.

    Args:
        frames: return addresses, the innermost first; zeros are none.
    """
    lines = [line for frame in frames if frame for line in _lines(module.path, frame - module.segments.base - 1)]
    lines = [line for line in lines if line[0].parent != HERE]
    own = [line for line in lines if line[0].parent != OURS]
    named = [f"{path.name}:{number}" for path, number in (*lines[:1], *own[:1])]
    return " from ".join(dict.fromkeys(named))


def _lines(library: Path, offset: int) -> list[tuple[Path, str]]:
    """The line of an instruction, and those of the calls that were inlined around it."""
    program = shutil.which("addr2line")
    if program is None:
        return []
    command = (program, "-i", "-e", str(library), hex(offset))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    pairs = (line.split(" ")[0].rpartition(":") for line in done.stdout.splitlines())
    return [(Path(path).resolve(), number) for path, _, number in pairs if number.isdecimal() and int(number)]
