"""The cost model: nanoseconds of prefill and of transfers. It ranks choices; it never decides what is possible.

Coefficients are measured values for a hardware class and a `prefill_signature` (a digest of the Text/Vision config,
bindings and Uses in force); generic ones serve where nothing was measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CostModel:
    """Integer nanoseconds, so that equal inputs give equal choices everywhere. Bytes are priced per KiB."""

    token_ns: int
    pair_ns: int
    transfer_batch_ns: int
    transfer_operation_ns: int
    kib_ns: int

    def prefill(self, reused: int, total: int) -> int:
        """Work on tokens reused … total: per-token work and R·N + N(N+1)/2 attention pairs, N = total − reused."""
        remaining = total - reused
        pairs = reused * remaining + remaining * (remaining + 1) // 2
        return self.token_ns * remaining + self.pair_ns * pairs

    def saved(self, frontier: int) -> int:
        """What a checkpoint at `frontier` saves its user over starting from root."""
        return self.prefill(0, frontier)

    def transfer(self, size: int, operations: int) -> int:
        """One batch of copies: bound by its operations or by its bytes. Nothing to move costs nothing."""
        if operations == 0:
            return 0
        return max(self.transfer_batch_ns + operations * self.transfer_operation_ns, size * self.kib_ns // 1024)


GENERIC = {
    "cpu": CostModel(2_000_000, 60, 20_000, 5_000, 150),
    "cuda": CostModel(60_000, 2, 20_000, 4_000, 80),
}
"""By hardware class: a machine with a few cores and a small model; one GPU with its host link."""


@dataclass(frozen=True, slots=True)
class CostTable:
    """Measured models by (hardware class, prefill signature), over the generic ones."""

    measured: Mapping[tuple[str, str], CostModel]

    def select(self, hardware: str, signature: str) -> CostModel:
        """The measured model if there is one; else the generic one of the hardware class, else that of a CPU."""
        return self.measured.get((hardware, signature), GENERIC.get(hardware, GENERIC["cpu"]))
