"""How much the catalog may hold."""

from __future__ import annotations

from dataclasses import dataclass

from ninfer.runtime.core.program import ProgramLimits


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """Logical limits, besides the physical ones of Program.

    `max_private_continuations` counts owners of private checkpoints, `max_shared_prefixes` published shared prefixes,
    `max_long_anchors` anchors of all continuations together.
    """

    max_private_continuations: int
    max_shared_prefixes: int
    max_long_anchors: int

    @staticmethod
    def of(
        limits: ProgramLimits,
        max_private_continuations: int | None = None,
        max_shared_prefixes: int | None = None,
        max_long_anchors: int | None = None,
    ) -> CacheOptions:
        """None means what the image slots could hold anyway; for shared prefixes, one for each lane, at least 4."""
        slots = limits.checkpoint_images + limits.host_images
        return CacheOptions(
            slots if max_private_continuations is None else max_private_continuations,
            max(limits.max_concurrency, 4) if max_shared_prefixes is None else max_shared_prefixes,
            slots if max_long_anchors is None else max_long_anchors,
        )
