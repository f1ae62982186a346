"""Engine options, checked and settled against a model and this machine. Errors name the flag."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ninfer.errors import ConfigError
from ninfer.runtime.core.cache.options import CacheOptions
from ninfer.runtime.core.program import ProgramLimits
from ninfer.runtime.program.pages import pages_for
from ninfer.types import EngineOptions, KvDtype

MAX_LANES = 8
MAX_SLOTS = 4096
DEFAULT_SLOTS = 32
DEFAULT_SLOT_BYTES = 1 << 30
DEFAULT_CONTEXT_CAP = 32768
CHUNK_STEP = 128


@dataclass(frozen=True, slots=True)
class SettledOptions:
    """What the options come to. `threads` are CPU threads; `limits` fix the Program."""

    threads: int
    kv_dtype: KvDtype
    limits: ProgramLimits
    max_pending_requests: int
    concurrent_prefill: bool
    cache: CacheOptions


def settle(options: EngineOptions, model_context: int, image_bytes: int) -> SettledOptions:
    """Check every option and fill in what was left open. `image_bytes` is the size of one state image.

    Raises:
        ConfigError: naming the flag, its value and what is allowed.
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
        kv_pages=_kv_pages(options.kv_capacity, context, lanes),
        prefill_chunk=chunk,
        checkpoint_images=_state_slots(options.device_state_slots, image_bytes),
        host_images=_within("--host-state-slots", options.host_state_slots, 0, MAX_SLOTS),
        host_kv_bytes=_within("--host-kv-mib", options.host_kv_mib, 0, 1 << 24) << 20,
    )
    return SettledOptions(
        threads=settle_threads(options.threads),
        kv_dtype=options.kv_dtype,
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
    """Refuse a device that this release cannot run on. Raises ConfigError saying what to do instead."""
    if device in ("auto", "cpu"):
        return
    if device == "cuda" or device.startswith("cuda:"):
        raise ConfigError(f"--device {device}: this release runs on CPUs only; use --device cpu")
    raise ConfigError(f"--device must be auto or cpu, got {device!r}")


def _context(asked: int | None, model_context: int) -> int:
    if asked is None:
        return min(model_context, DEFAULT_CONTEXT_CAP)
    return _within("--max-context", asked, 2, model_context, "the model's limit")


def _kv_pages(asked: int | None, context: int, lanes: int) -> int:
    """Room for one full context at least; by default a quarter more, and a page per lane to copy a shared tail to.

    Without the extra, a request that may use its whole context would push out the very checkpoint it starts from. More
    than every lane's full context is useful for what is kept for reuse.
    """
    full = pages_for(context)
    least, most = max(full, lanes), 2 * lanes * full
    if asked is None:
        return min(least + full // 4 + lanes, most)
    if not least <= asked <= most:
        raise ConfigError(
            f"--kv-capacity must be from {least} to {most} pages of 64 tokens for a context of {context} "
            f"and {lanes} lanes, got {asked}"
        )
    return asked


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
