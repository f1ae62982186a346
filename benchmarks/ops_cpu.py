"""Times ops at official shapes against their floors: bytes over the read bandwidth, operations over the FMA peak.

Both limits are measured in the same run, with the same threads. Every op runs on memory that no cache holds.

    python benchmarks/ops_cpu.py [--ops linear,attention,recurrence,choice,rowwise,experts] [--geometry 0.8b]
        [--threads 2] [--tokens 1,8,64] [--formats bf16,q8,q4,q4-a8] [--seconds 0.5]
"""

from __future__ import annotations

import argparse
import time

import torch
from ops import FAMILIES, GEOMETRIES, Setting, Work
from ops.machine import Machine, measure


def best_time(work: Work, seconds: float) -> float:
    """Seconds of the fastest call."""
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        for call in work.calls:
            started = time.perf_counter()
            call()
            best = min(best, time.perf_counter() - started)
        if time.perf_counter() > end:
            return best


def line(work: Work, seconds: float, machine: Machine) -> str:
    """One row of the table."""
    floor = machine.floor(work.nbytes, work.flops)
    rates = f"{work.nbytes / seconds / 1e9:7.2f} {work.flops / seconds / 1e9:8.1f}"
    return f"{work.op:16} {work.shape:40} {seconds * 1e6:10.1f} {rates} {floor * 1e6:10.1f} {floor / seconds:6.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ops", default=",".join(FAMILIES))
    parser.add_argument("--geometry", choices=sorted(GEOMETRIES), default="0.8b")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tokens", default="1,8,64,512")
    parser.add_argument("--formats", default="bf16,q8,q6,q4,q8-a8,q4-a8")
    parser.add_argument("--seconds", type=float, default=0.5, help="to spend on each row")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    machine = measure()
    print(f"{options.threads} threads: {machine.bandwidth / 1e9:.1f} GB/s read, {machine.peak / 1e9:.0f} GFLOP/s")
    print(f"{'op':16} {'shape':40} {'us':>10} {'GB/s':>7} {'GFLOP/s':>8} {'floor us':>10} {'floor':>6}")
    tokens = [int(count) for count in options.tokens.split(",")]
    setting = Setting(GEOMETRIES[options.geometry], tokens, options.formats.split(","))
    for name in options.ops.split(","):
        for work in FAMILIES[name](setting):
            print(line(work, best_time(work, options.seconds), machine), flush=True)


if __name__ == "__main__":
    main()
