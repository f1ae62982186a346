"""Writes into KERNELS.md what every CUDA kernel needs: registers, static shared memory and spills, for every target.

Compiles every module of the catalogue for every target, or takes it from the cache; a GPU is not needed.

    python benchmarks/kernels_report.py [--targets 80,86,89,90a,100a,120a] [--to benchmarks/KERNELS.md]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ninfer.kernels.jit import CudaSource, catalogue
from ninfer.kernels.jit.build import TARGETS, Compiled, Resources, build, compiler

Module = tuple[CudaSource, Mapping[str, int]]
BEGIN, END = "<!-- registers: written by kernels_report.py -->", "<!-- end of registers -->"
_LEGEND = """
Registers per thread of each kernel, compiled by NVRTC {release} for each target. `+N` are N bytes per thread that
spilled to local memory; `s N` are N bytes of local memory that the source asks for. Shared memory is the static part,
in bytes per block; what a launch adds, its plan says. **Bold** kernels run in every decode round and must not spill;
tests hold them to it.
"""


def compile_all(modules: Sequence[Module], targets: Sequence[str]) -> dict[tuple[int, str], Compiled]:
    """Every module, by its number, for every target. Raises CudaError for the first that does not compile."""
    by = compiler()
    wanted = [(number, target) for number in range(len(modules)) for target in targets]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        made = pool.map(lambda key: build(*modules[key[0]], key[1], by), wanted)
        return dict(zip(wanted, made, strict=True))


def rows(modules: Sequence[Module], targets: Sequence[str], compiled: Mapping[tuple[int, str], Compiled]) -> list[str]:
    """A row per kernel and combination of macros."""
    decode = catalogue.decode_kernels()
    found = []
    for number, (source, macros) in enumerate(modules):
        for kernel in source.kernels:
            needs = [compiled[number, target].resources[kernel] for target in targets]
            shared = " ".join(map(str, sorted({need.shared_bytes for need in needs})))
            name = f"**{kernel}**" if kernel in decode else kernel
            found.append(f"| {name} | {label(macros)} | {shared} | {' | '.join(map(cell, needs))} |")
    return sorted(found, key=lambda row: row.replace("*", ""))


def label(macros: Mapping[str, int]) -> str:
    """Macros as a reader wants them: without the prefix that they all have."""
    return ", ".join(f"{name.removeprefix('NINFER_').lower()} {value}" for name, value in macros.items())


def cell(need: Resources) -> str:
    """Registers, and what does not fit in them."""
    asked = f" s {need.stack_bytes}" if need.stack_bytes and not need.spill_bytes else ""
    return f"{need.registers}{f' +{need.spill_bytes}' if need.spill_bytes else ''}{asked}"


def section(targets: Sequence[str]) -> str:
    """The generated part of the document."""
    modules = catalogue.warm()
    table = rows(modules, targets, compile_all(modules, targets))
    heads = ["kernel", "macros", "shared", *(f"sm_{target}" for target in targets)]
    rule = "|".join(["---", "---", *["---:"] * (len(targets) + 1)])
    release = ".".join(map(str, compiler().nvrtc.version))
    return "\n".join([_LEGEND.format(release=release), f"| {' | '.join(heads)} |", f"|{rule}|", *table, ""])


def replaced(document: str, generated: str) -> str:
    """The document with a new generated part; all else stays as it is."""
    before, _, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"the document has lost its marks {BEGIN} and {END}"
    return f"{before}{BEGIN}\n{generated}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--to", type=Path, default=Path(__file__).with_name("KERNELS.md"))
    options = parser.parse_args()
    document = options.to.read_text(encoding="utf-8")
    options.to.write_text(replaced(document, section(options.targets.split(","))), encoding="utf-8")


if __name__ == "__main__":
    main()
