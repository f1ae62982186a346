"""Device memory before the first request: what fits is computed, and what does not is refused with figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.errors import ConfigError
from ninfer.kernels.kv_cache import KvCodec
from ninfer.models.qwen3_5.config import TextConfig
from ninfer.models.qwen3_5.state import allocate_state, image_bytes, page_bytes
from ninfer.runtime.options import DeviceMemory, settle
from ninfer.runtime.planning import HEADROOM, MemoryCurve, Shape, memory_curve, plan_pages
from ninfer.types import EngineOptions, KvDtype
from tests.models.configs import DENSE, MOE

GIB = 1 << 30
CONFIG = TextConfig.from_artifact(DENSE, "text")
EXPERTS = TextConfig.from_artifact(MOE, "text")
SHAPE = Shape(lanes=2, chunk=1024, sequence_pages=64, images=8)


@given(
    fixed=st.integers(0, 1 << 40),
    per_page=st.integers(1, 1 << 24),
    least=st.integers(1, 1000),
    spare=st.integers(0, 5000),
    free=st.integers(0, 1 << 42),
)
def test_auto_takes_the_most_that_fits(fixed: int, per_page: int, least: int, spare: int, free: int) -> None:
    curve, most = MemoryCurve(fixed, per_page), least + spare
    if curve.total(least) + HEADROOM > free:
        with pytest.raises(ConfigError, match=f"^{least} pages of 64 tokens .* GiB free"):
            plan_pages(curve, free, None, least, most)
        return
    pages = plan_pages(curve, free, None, least, most)
    assert least <= pages <= most
    assert curve.total(pages) + HEADROOM <= free
    assert pages == most or curve.total(pages + 1) + HEADROOM > free


def test_what_was_asked_for_is_taken_or_refused() -> None:
    curve = MemoryCurve(GIB, 1 << 20)
    assert plan_pages(curve, 4 * GIB, 100, 10, 200) == 100
    with pytest.raises(ConfigError, match=r"^3000 pages of 64 tokens .* need 4\.93 GiB beside the weights"):
        plan_pages(curve, 4 * GIB, 3000, 10, 4000)


@pytest.mark.parametrize("codec", [KvCodec.BF16, KvCodec.INT8, KvCodec.K8V4])
@pytest.mark.parametrize("config", [CONFIG, EXPERTS], ids=["dense", "moe"])
def test_a_page_is_counted_as_it_is_allocated(config: TextConfig, codec: KvCodec) -> None:
    state = allocate_state(config, codec, 3, 2)
    assert state.nbytes == 3 * page_bytes(config, codec) + 2 * image_bytes(config)


@pytest.mark.parametrize(
    "more",
    [{"lanes": 3}, {"chunk": 2048}, {"sequence_pages": 640}, {"images": 9}],
)
def test_every_part_of_the_shape_costs_memory(more: dict[str, int]) -> None:
    small, large = memory_curve(CONFIG, KvCodec.BF16, SHAPE), memory_curve(CONFIG, KvCodec.BF16, replace(SHAPE, **more))
    assert large.fixed > small.fixed
    assert large.per_page == small.per_page


def test_options_are_settled_for_what_a_device_has_left() -> None:
    options = EngineOptions(max_context=4096, max_concurrency=4)
    image = image_bytes(CONFIG)
    on_cpu = settle(options, 4096, image)
    roomy = settle(options, 4096, image, DeviceMemory(CONFIG, 64 * GIB))
    assert on_cpu.limits.kv_pages == 64 + 16 + 4
    assert roomy.limits.kv_pages == 2 * 4 * 64, "what all lanes can use, and as much again for reuse"
    assert replace(roomy.limits, kv_pages=0) == replace(on_cpu.limits, kv_pages=0)
    with pytest.raises(ConfigError, match=r"the device has 1\.00 GiB free; lower --max-context"):
        settle(options, 4096, image, DeviceMemory(CONFIG, GIB))


def test_a_smaller_codec_leaves_room_for_more_pages() -> None:
    """Between the two limits the number follows the size of a page."""
    options = EngineOptions(max_context=32768, max_concurrency=8)
    curve = memory_curve(CONFIG, KvCodec.BF16, Shape(8, 1024, 512, 16 + 32))
    free = curve.total(1000) + HEADROOM
    pages = [
        settle(replace(options, kv_dtype=kind), 32768, 1, DeviceMemory(CONFIG, free)).limits.kv_pages
        for kind in (KvDtype.BF16, KvDtype.INT8)
    ]
    assert pages[0] == 1000
    assert pages[1] == 1000 * page_bytes(CONFIG, KvCodec.BF16) // page_bytes(CONFIG, KvCodec.INT8)
