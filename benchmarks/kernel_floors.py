"""Writes into KERNELS.md what every op must at least take on three GPUs at official shapes, and what it should reach.

Bytes and operations are those that `gpu/run.py` measures kernels against; nothing is run, and no GPU is needed. The
limits of the cards are assumed, not measured by this project.

    python benchmarks/kernel_floors.py [--to benchmarks/KERNELS.md]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from ops import FAMILIES, GEOMETRIES, Setting, Work

from ninfer.kernels.placement import Cuda

BEGIN, END = "<!-- floors: written by kernel_floors.py -->", "<!-- end of floors -->"
_LAUNCH_SECONDS = 5e-6
_NOWHERE = torch.device("meta")  # tensors that have shapes and no memory
_FORMATS = {"27b": ("q4", "q8", "bf16"), "35b-a3b": ("q4",)}
_TOKENS = (1, 8, 4096)
_LEGEND = """
Microseconds that each op takes at least: the greater of its bytes over the memory bandwidth and its operations over the
bf16 peak of the tensor cores. *aim* is what the kernel that its plan chooses is built to reach of that: 80 % of the
bandwidth for the linears and experts of a decode round, 70 % for its attention and recurrence, half of the peak for
products with a prompt, 30 % for a prompt's recurrence, whose chunks wait for one another; `launch` where the floor is
below {launch:.0f} µs on the fastest card, less than a launch costs: there it counts to be few launches of a graph.
"""


@dataclass(frozen=True, slots=True)
class Card:
    """Bytes and bf16 operations per second that a card is assumed to do."""

    name: str
    bandwidth: float
    peak: float

    def seconds(self, work: Work) -> float:
        return max(work.nbytes / self.bandwidth, work.flops / self.peak)


CARDS = (
    Card("H200", 4.3e12, 790e12),
    Card("RTX 4090", 0.92e12, 160e12),
    Card("RTX 5090", 1.6e12, 205e12),
)


def rows(name: str) -> Iterator[str]:
    """A row per op and shape of one geometry."""
    for family in FAMILIES:
        formats = _FORMATS[name] if family in ("linear", "experts") else ()
        for work in FAMILIES[family](Setting(GEOMETRIES[name], _TOKENS, formats, Cuda.at(_NOWHERE), cold_bytes=0)):
            times = " | ".join(f"{card.seconds(work) * 1e6:.1f}" for card in CARDS)
            sizes = f"{work.nbytes / 1e6:.2f} | {work.flops / 1e9:.2f}"
            yield f"| {work.op} | {work.shape} | {sizes} | {times} | {aim(work, family)} |"


def aim(work: Work, family: str) -> str:
    """What is expected of the kernel that serves this work on the fastest card."""
    fastest = CARDS[0]
    if fastest.seconds(work) < _LAUNCH_SECONDS:
        return "launch"
    if work.flops / fastest.peak > work.nbytes / fastest.bandwidth:
        return "30 %" if work.op == "gdn" else "50 %"
    return "70 %" if family in ("attention", "recurrence") else "80 %"


def section() -> str:
    """The section's text."""
    titles = ["op", "shape", "MB", "GFLOP", *(card.name for card in CARDS), "aim"]
    head = f"| {' | '.join(titles)} |\n|---|---|{'---:|' * (len(titles) - 3)}---|"
    limits = ", ".join(f"{c.name} {c.bandwidth / 1e12:.2f} TB/s and {c.peak / 1e12:.0f} TFLOP/s" for c in CARDS)
    parts = [_LEGEND.format(launch=_LAUNCH_SECONDS * 1e6), f"Limits, assumed and not measured here: {limits}."]
    with torch.device(_NOWHERE):
        for name in _FORMATS:
            parts += [f"\n### {name}\n", head, *rows(name)]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--to", type=Path, default=Path(__file__).with_name("KERNELS.md"))
    target = parser.parse_args().to
    text = target.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    target.write_text(f"{before}{BEGIN}\n{section()}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
