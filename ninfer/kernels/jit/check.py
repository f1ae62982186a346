"""Compiles one `.cu` file and says what its kernels need: `python -m ninfer.kernels.jit.check FILE.cu -DNINFER_X=1`."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from ninfer.errors import CudaError
from ninfer.kernels.jit import CudaSource
from ninfer.kernels.jit.build import Compiler, compile_text, compiler, options_for, resources
from ninfer.kernels.jit.catalogue import route_modules
from ninfer.kernels.jit.headers import KERNELS
from ninfer.kernels.jit.nvrtc import CompileError

_KERNEL = re.compile(r"\bNINFER_KERNEL\(\s*(\w+)")
_UNCHECKED = "-DNINFER_ARGS_UNCHECKED=1"


def main(arguments: list[str] | None = None) -> int:
    """Compile a file for the targets asked for, and print a line per kernel. Returns 1 if one does not compile."""
    parser = argparse.ArgumentParser(prog="python -m ninfer.kernels.jit.check", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("-D", dest="macros", action="append", default=[], metavar="NINFER_X=1")
    parser.add_argument("--arch", action="append", metavar="90a", help="may be repeated; 90a if not given")
    chosen = parser.parse_args(arguments)
    try:
        by = compiler()
        passed = [_check(chosen.file.resolve(), chosen.macros, arch, by) for arch in chosen.arch or ["90a"]]
    except CudaError as error:
        print(error, file=sys.stderr)
        return 1
    return 0 if all(passed) else 1


def _check(path: Path, macros: list[str], arch: str, by: Compiler) -> bool:
    values = {name: int(value or "1", 0) for name, _, value in (macro.partition("=") for macro in macros)}
    source = source_of(path)
    options = (*options_for(source or CudaSource(path, {}), values, arch), *(() if source else (_UNCHECKED,)))
    try:
        _, said = compile_text(path, options, by)
    except CompileError as error:
        print(error, file=sys.stderr)
        return False
    print("\n".join(line for line in said.splitlines() if "warning" in line.lower()), end="")
    for kernel, need in resources(said).items():
        print(
            f"sm_{arch} {kernel}: {need.registers} registers, {need.shared_bytes} B static shared, "
            f"{need.spill_bytes} B spilled, {need.stack_bytes} B stack"
        )
    return True


def source_of(path: Path) -> CudaSource | None:
    """The source as the op's route module declares it; None where there is none that has every kernel of the file.

    Args:
        path: a `.cu` file of an op's folder.
    """
    if not path.is_relative_to(KERNELS):
        return None
    named = set(_KERNEL.findall(path.read_text(encoding="utf-8")))
    for module in route_modules(path.parent.name):
        for value in vars(module).values():
            if isinstance(value, CudaSource) and value.path == path and named <= set(value.kernels):
                return value
    return None


if __name__ == "__main__":
    sys.exit(main())
