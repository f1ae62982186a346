"""Facts about this machine and installation. No heavy library is loaded, except to try out compiled kernels."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ninfer import __version__
from ninfer.cli import factories
from ninfer.cli.models import demo_model

_X86_FEATURES = (
    "avx2",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
)
_ARM_FEATURES = ("asimd", "asimddp", "i8mm", "bf16", "sve", "sve2")
_FEATURES = {*_X86_FEATURES, *_ARM_FEATURES}
_LIBRARIES = ("torch", "numpy", "tokenizers", "jinja2", "typer", "rich")
_EXTRAS = ("matplotlib",)
_CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
_COMPILERS = ("c++", "g++", "clang++")
_NVIDIA_QUERY = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor: `features` are the instruction sets that matter for inference."""

    model: str
    architecture: str
    features: tuple[str, ...]
    physical_cores: int
    logical_cores: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Main memory, in bytes."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Device:
    """A place to compute, whether this installation can use it, and why."""

    name: str
    usable: bool
    reason: str


@dataclass(frozen=True, slots=True)
class CompiledKernels:
    """Whether C++ kernels can be compiled and run here.

    Attributes:
        body: which instructions they use, "cpu_avx512", "cpu_avx2" or "cpu_portable"; None where there are none.
        compiler: the command that compiles them, as far as it was found.
        cache: the folder that keeps them, as far as there is one.
        reason: why there are none, and what to do.
    """

    body: str | None
    compiler: str | None
    cache: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class CudaPart:
    """One thing that CUDA needs.

    Attributes:
        name: as in "driver".
        found: what is there; None where nothing is.
        remedy: what is wrong and what to do; None where nothing is wrong.
    """

    name: str
    found: str | None
    remedy: str | None


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything `ninfer doctor` reports. `libraries` maps names to versions, None if not installed."""

    ninfer: str
    system: str
    python: str
    cpu: Cpu
    memory: Memory | None
    compiler: str | None
    kernels: CompiledKernels
    gpus: tuple[str, ...]
    libraries: Mapping[str, str | None]
    demo_model: str | None
    cuda: tuple[CudaPart, ...]
    devices: tuple[Device, ...]


def examine() -> Machine:
    """Look at the machine. Nothing here fails: what cannot be found out is None or empty."""
    libraries = {name: installed(name) for name in (*_LIBRARIES, *_EXTRAS)}
    libraries["cupy"] = next((found for found in map(installed, _CUPY) if found), None)
    demo, kernels, cuda = demo_model(), factories.compiled_kernels(), factories.cuda_parts()
    return Machine(
        ninfer=__version__,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
        cpu=_cpu(),
        memory=read_memory(),
        compiler=_compiler(),
        kernels=kernels,
        gpus=_gpus(),
        libraries=libraries,
        demo_model=str(demo) if demo.is_file() else None,
        cuda=cuda,
        devices=_devices(libraries["torch"], kernels, cuda),
    )


def installed(distribution: str) -> str | None:
    """The version of an installed distribution, read from its metadata without importing it."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _devices(torch: str | None, kernels: CompiledKernels, cuda: tuple[CudaPart, ...]) -> tuple[Device, ...]:
    routes = f"compiled kernels ({kernels.body})" if kernels.body else "torch routes, which are slower"
    cpu = Device("cpu", torch is not None, routes if torch else "torch is not installed: pip install torch")
    wrong = [part.name for part in cuda if part.remedy]
    gpu = next((part.found for part in cuda if part.name == "GPU" and part.found), "no GPU is seen")
    return (cpu, Device("cuda", not wrong, f"see {', '.join(wrong)} under CUDA" if wrong else gpu))


def _cpu() -> Cpu:
    info = _read("/proc/cpuinfo")
    words = {
        word for line in info.splitlines() if line.lower().startswith(("flags", "features")) for word in line.split()
    }
    return Cpu(
        model=cpu_model(info),
        architecture=platform.machine(),
        features=tuple(sorted(words & _FEATURES)),
        physical_cores=_physical_cores(),
        logical_cores=os.cpu_count() or 1,
    )


def cpu_model(cpuinfo: str) -> str:
    """The processor's name from the text of /proc/cpuinfo, or what the platform calls it."""
    names = (line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _physical_cores() -> int:
    """Groups of sibling threads; the logical count where the system does not tell."""
    topologies = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
    return len({_read(str(path)).strip() for path in topologies}) or os.cpu_count() or 1


def read_memory() -> Memory | None:
    """Main memory from /proc/meminfo (kB), where there is one."""
    rows = dict(line.split(":", 1) for line in _read("/proc/meminfo").splitlines() if ":" in line)
    if "MemTotal" not in rows or "MemAvailable" not in rows:
        return None
    total, available = (int(rows[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return Memory(total, available)


def _compiler() -> str | None:
    """The first line of the version of the compiler that CXX names, or of the first one found."""
    name = os.environ.get("CXX") or next((name for name in _COMPILERS if shutil.which(name)), None)
    return next(iter(_lines((name, "--version"))), None) if name else None


def _gpus() -> tuple[str, ...]:
    return _lines(_NVIDIA_QUERY)


def _lines(command: tuple[str, ...]) -> tuple[str, ...]:
    """Lines that a short command prints; none if it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip())


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
