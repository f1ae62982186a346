"""Engine options, checked and settled against a model and this machine. Errors name the flag."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace

from ninfer.errors import ConfigError
from ninfer.kernels.kv_cache import KvCodec
from ninfer.models.qwen3_5.config import TextConfig
from ninfer.runtime.core.cache.options import CacheOptions
from ninfer.runtime.core.program import ProgramLimits
from ninfer.runtime.planning import Shape, memory_curve, plan_pages
from ninfer.runtime.program.pages import pages_for
from ninfer.runtime.program.stores import image_slots
from ninfer.types import EngineOptions, KvDtype

MAX_LANES = 8
MAX_SLOTS = 4096
DEFAULT_SLOTS = 32
DEFAULT_SLOT_BYTES = 1 << 30
DEFAULT_CONTEXT_CAP = 32768
CHUNK_STEP = 128
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


@dataclass(frozen=True, slots=True)
class SettledOptions:
    """What the options come to. `threads` are CPU threads; `limits` fix the Program."""

    threads: int
    kv_dtype: KvDtype
    cuda_graph: bool
    limits: ProgramLimits
    max_pending_requests: int
    concurrent_prefill: bool
    cache: CacheOptions


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory that is planned: `free` bytes, weights being in place, for a model of this config."""

    config: TextConfig
    free: int


def settle(
    options: EngineOptions, model_context: int, image_bytes: int, memory: DeviceMemory | None = None
) -> SettledOptions:
    """Check every option and fill in what was left open.

    Args:
        image_bytes: the size of one state image.
        memory: of the device; None where memory is not planned.

    Raises:
        ConfigError: naming the flag, its value and what is allowed, or what does not fit into memory.
    """
    check_device(options.device)
    if not isinstance(options.kv_dtype, KvDtype):
        names = ", ".join(f"KvDtype.{kind.name}" for kind in KvDtype)
        raise ConfigError(f"kv_dtype must be one of {names}, got {options.kv_dtype!r}")
    context = _context(options.max_context, model_context)
    lanes = _within("--max-concurrency", options.max_concurrency, 1, MAX_LANES)
    chunk = options.prefill_chunk
    if chunk < CHUNK_STEP or chunk % CHUNK_STEP:
        raise ConfigError(f"--prefill-chunk must be a positive multiple of {CHUNK_STEP}, got {chunk}")
    limits = ProgramLimits(
        max_concurrency=lanes,
        max_context=context,
        kv_pages=_default_pages(context, lanes),
        prefill_chunk=chunk,
        checkpoint_images=_state_slots(options.device_state_slots, image_bytes),
        host_images=_within("--host-state-slots", options.host_state_slots, 0, MAX_SLOTS),
        host_kv_bytes=_within("--host-kv-mib", options.host_kv_mib, 0, 1 << 24) << 20,
    )
    limits = replace(limits, kv_pages=_kv_pages(options, limits, memory))
    return SettledOptions(
        threads=settle_threads(options.threads),
        kv_dtype=options.kv_dtype,
        cuda_graph=options.cuda_graph,
        limits=limits,
        max_pending_requests=_within("--max-pending-requests", options.max_pending_requests, 1, 1 << 20),
        concurrent_prefill=options.concurrent_prefill,
        cache=_cache(options, limits),
    )


def physical_cores() -> int:
    """Cores that this process may use, hyper-threads counted once where the system tells."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    siblings = {_first_sibling(cpu) for cpu in allowed}
    return max(len(siblings), 1)


def _first_sibling(cpu: int) -> str:
    try:
        with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as file:
            return file.read().strip()
    except OSError:
        return str(cpu)


def check_device(device: str) -> None:
    """Refuse what is no device. Raises ConfigError saying what is one."""
    if not _DEVICE.fullmatch(device):
        raise ConfigError(f"--device must be auto, cpu, cuda or cuda:INDEX, got {device!r}")


def _context(asked: int | None, model_context: int) -> int:
    if asked is None:
        return min(model_context, DEFAULT_CONTEXT_CAP)
    return _within("--max-context", asked, 2, model_context, "the model's limit")


def _kv_pages(options: EngineOptions, limits: ProgramLimits, memory: DeviceMemory | None) -> int:
    """What was asked for, within bounds; else the default, or where memory is planned as many pages as it holds."""
    asked, lanes = options.kv_capacity, limits.max_concurrency
    least, most = _page_bounds(limits.max_context, lanes)
    if asked is not None and not least <= asked <= most:
        raise ConfigError(
            f"--kv-capacity must be from {least} to {most} pages of 64 tokens for a context of {limits.max_context} "
            f"and {lanes} lanes, got {asked}"
        )
    if memory is None:
        return limits.kv_pages if asked is None else asked
    shape = Shape(lanes, limits.prefill_chunk, pages_for(limits.max_context), image_slots(limits))
    curve = memory_curve(memory.config, KvCodec(options.kv_dtype.value), shape)
    return plan_pages(curve, memory.free, asked, least, most)


def _page_bounds(context: int, lanes: int) -> tuple[int, int]:
    """Room for one full context at least. More than every lane's is useful for what is kept for reuse."""
    full = pages_for(context)
    return max(full, lanes), 2 * lanes * full


def _default_pages(context: int, lanes: int) -> int:
    """A quarter more than one full context, and a page per lane to copy a shared tail to.

    Without the extra, a request that may use its whole context would push out the very checkpoint it starts from.
    """
    least, most = _page_bounds(context, lanes)
    return min(least + pages_for(context) // 4 + lanes, most)


def _cache(options: EngineOptions, limits: ProgramLimits) -> CacheOptions:
    names = ("max_private_continuations", "max_shared_prefixes", "max_long_anchors")
    for name in names:
        value: int | None = getattr(options, name)
        if value is not None:
            _within("--" + name.replace("_", "-"), value, 0, MAX_SLOTS)
    return CacheOptions.of(
        limits, options.max_private_continuations, options.max_shared_prefixes, options.max_long_anchors
    )


def _state_slots(asked: int | None, image_bytes: int) -> int:
    if asked is None:
        return min(DEFAULT_SLOTS, DEFAULT_SLOT_BYTES // image_bytes)
    return _within("--device-state-slots", asked, 0, MAX_SLOTS)


def settle_threads(asked: int | None) -> int:
    """CPU threads to use: what was asked for, else the physical cores."""
    return physical_cores() if asked is None else _within("--threads", asked, 1, 1024)


def _within(flag: str, value: int, least: int, most: int, limit: str = "") -> int:
    if not least <= value <= most:
        raise ConfigError(f"{flag} must be from {least} to {most}{f' ({limit})' if limit else ''}, got {value}")
    return value
