"""How long calls take on the device: many of them recorded into one graph, so that the host is not what is measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from ninfer.kernels import jit

_LEAST_SECONDS = 0.02
_TRIALS = 5

Call = Callable[[], None]


def seconds_per_call(calls: Sequence[Call], launches_only: bool = True) -> float:
    """Of the fastest trial, the time of one call.

    Args:
        calls: the same work on memory of its own each, so that no call finds its operands in a cache.
        launches_only: whether calls launch kernels and do nothing else; the others run one by one, host included.
    """

    def all_calls() -> None:
        for call in calls:
            call()

    if launches_only:
        run = jit.record(all_calls).run
    else:
        all_calls()
        run = all_calls
    return best(run) / len(calls)


def best(run: Call) -> float:
    """Seconds of one run, in the fastest of some trials; of the only one, where a device is emulated."""
    once = elapsed(run, 1)
    if not torch.cuda.is_available():
        return once
    repeats = max(1, min(1000, round(_LEAST_SECONDS / once)))
    return min(elapsed(run, repeats) for _ in range(_TRIALS)) / repeats


def elapsed(run: Call, repeats: int) -> float:
    """Seconds that the device takes to run it so often; of the host, where a device is emulated."""
    if not torch.cuda.is_available():
        started = time.perf_counter()
        for _ in range(repeats):
            run()
        return time.perf_counter() - started
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3
