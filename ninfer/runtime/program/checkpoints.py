"""Checkpoints: immutable continuations that a later request with the same history may start from."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from ninfer.runtime.core.program import CheckpointFacts, CheckpointHandle
from ninfer.runtime.program.pages import FrozenPages


@dataclass(frozen=True, slots=True)
class Identity:
    """Everything that shaped a state: the tokens consumed, as i32 words, and the digest of all else (mode, media)."""

    tokens: array[int]
    digest: bytes

    def common_prefix(self, tokens: array[int], digest: bytes) -> int:
        """Leading tokens that another history repeats; 0 when anything else differs."""
        if digest != self.digest:
            return 0
        high = min(len(self.tokens), len(tokens))
        if self.tokens[:high] == tokens[:high]:
            return high
        low = 0
        while high - low > 1:
            middle = (low + high) // 2
            if self.tokens[low:middle] == tokens[low:middle]:
                low = middle
            else:
                high = middle
        return low


@dataclass(slots=True, eq=False)
class Checkpoint:
    """A complete state at its frontier: pages, and the state image in a device slot, a host slot or both."""

    handle: CheckpointHandle
    identity: Identity
    device_image: int | None
    host_image: int | None = None
    pages: FrozenPages = field(default_factory=FrozenPages)

    @property
    def frontier(self) -> int:
        return self.pages.frontier

    def facts(self, page_bytes: int, image_bytes: int) -> CheckpointFacts:
        """The summary that the control plane may read; the arguments are the packed sizes of one page and one image."""
        pages = self.pages
        on_host = self.host_image is not None and all(
            page.host_covers(pages.columns(index)) for index, page in enumerate(pages.pages)
        )
        return CheckpointFacts(
            frontier=pages.frontier,
            on_device=self.device_image is not None and not any(pages.missing()),
            on_host=on_host,
            exclusive_pages=sum(page.device is not None and page.holders.keys() == {self} for page in pages.pages),
            restore_bytes=len(pages.pages) * page_bytes + image_bytes,
        )
