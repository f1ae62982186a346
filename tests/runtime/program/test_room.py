"""What does not fit into a device's memory is refused before anything is taken, and the words say what to lower."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from ninfer.errors import ConfigError
from ninfer.kernels.placement import Host
from ninfer.runtime.instance import ModelInstance
from ninfer.types import EngineOptions

GIB = 1 << 30
OPTIONS = EngineOptions(threads=1, max_context=256, max_concurrency=2)


@dataclass(frozen=True)
class Counted(Host):
    """Main memory of which only so much may be taken."""

    free: int = 0

    def free_bytes(self) -> int | None:
        return self.free


def test_weights_must_fit(instance: ModelInstance) -> None:
    with pytest.raises(ConfigError, match=r"--device cpu: the weights take 0\.00 GiB, the device has 0\.00 GiB free"):
        ModelInstance.open(instance.path, placement=Counted(1000))


def test_pages_are_what_memory_allows(instance: ModelInstance) -> None:
    roomy = replace(instance, placement=Counted(64 * GIB)).settle(OPTIONS)
    assert roomy.limits.kv_pages == 16
    assert instance.settle(OPTIONS).limits.kv_pages == 7
    with pytest.raises(ConfigError, match=r"lower --max-context, --max-concurrency, .* or take a smaller --kv-dtype"):
        replace(instance, placement=Counted(GIB)).settle(OPTIONS)


def test_a_window_that_is_scored_must_fit(instance: ModelInstance) -> None:
    """Nothing is decoded then, so that less is needed, and other flags help."""
    tight = replace(instance, placement=Counted(GIB + 270 * (1 << 20)))
    settled = tight.settle(OPTIONS, planned=False)
    tight.window_scorer(settled, 256)
    with pytest.raises(ConfigError, match="lower --context or --prefill-chunk"):
        tight.window_scorer(settled, 32768)
