"""What CUDA needs on a machine, part by part: what is there, and for what is not, what to install.

CuPy is only looked for here, not imported; a CPU needs none of this.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import torch

from ninfer.errors import CudaError
from ninfer.kernels.jit.build import compiler, target_of
from ninfer.kernels.jit.headers import INSTALL, toolkit

LEAST_ARCH = 80
_GENERATIONS = "8.0 and later: Ampere (A100, RTX 30), Ada (RTX 40), Hopper (H100), Blackwell (B200, RTX 50)"
_CUPY = {"cupy-cuda13x": 13, "cupy-cuda12x": 12}
_TORCH = "https://pytorch.org/get-started/locally"


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that CUDA needs.

    Attributes:
        name: as in "driver".
        found: what is there, with its version; None where it is missing.
        remedy: what is wrong and what to do; None where nothing is.
    """

    name: str
    found: str | None
    remedy: str | None = None


def parts() -> tuple[Part, ...]:
    """Every part, in the order in which to install them. Nothing fails: what is missing has a remedy."""
    release = driver_release()
    looks: tuple[tuple[str, Callable[[], Part]], ...] = (
        ("driver", partial(_driver, release)),
        ("torch", partial(_torch, release)),
        ("GPU", _gpu),
        ("CuPy", partial(_cupy, release)),
        ("headers", partial(_headers, release)),
        ("NVRTC", partial(_nvrtc, release)),
    )
    found = []
    for name, look in looks:
        try:
            found.append(look())
        except CudaError as error:
            found.append(Part(name, None, str(error)))
    return tuple(found)


def driver_release() -> tuple[int, int] | None:
    """The last release of CUDA that the driver supports, as in (13, 0); None without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int()
    failed = library.cuDriverGetVersion(ctypes.byref(number))
    return None if failed else (number.value // 1000, number.value % 1000 // 10)


def _driver(release: tuple[int, int] | None) -> Part:
    if release is None:
        return Part("driver", None, "no NVIDIA driver is installed (libcuda.so.1); install it from nvidia.com/drivers")
    old = "the driver is too old; install one for CUDA 12 or later from nvidia.com/drivers"
    return Part("driver", f"for CUDA {_dotted(release)}", None if release[0] >= 12 else old)


def _torch(release: tuple[int, int] | None) -> Part:
    built = torch.version.cuda
    if built is None:
        return Part("torch", torch.__version__, f"this torch has no CUDA; install one that has, see {_TORCH}")
    if release and int(built.partition(".")[0]) > release[0]:
        remedy = f"update it, or install a torch for CUDA {release[0]}, see {_TORCH}"
        return Part("torch", torch.__version__, f"the driver is too old for this torch (CUDA {built}); {remedy}")
    return Part("torch", torch.__version__)


def _gpu() -> Part:
    if torch.version.cuda is None:
        return Part("GPU", None)  # nothing to say, before there is a torch that can look
    if not torch.cuda.is_available():
        return Part("GPU", None, "torch sees no GPU; see nvidia-smi, CUDA_VISIBLE_DEVICES, and a container's options")
    arch = arch_of(torch.cuda.current_device())
    shown = f"{torch.cuda.get_device_name()}, compute capability {arch // 10}.{arch % 10}"
    if arch < LEAST_ARCH:
        return Part("GPU", shown, f"the GPU is too old; these are supported: compute capability {_GENERATIONS}")
    return Part("GPU", shown)


def arch_of(index: int) -> int:
    """The compute capability of a CUDA device times ten."""
    major, minor = torch.cuda.get_device_capability(index)
    return major * 10 + minor


def _cupy(release: tuple[int, int] | None) -> Part:
    for name, major in _CUPY.items():
        try:
            shown = f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
        if release and major > release[0]:
            return Part("CuPy", shown, f"the driver is of CUDA {_dotted(release)}: pip install 'ninfer[cuda12]'")
        return Part("CuPy", shown)
    return Part("CuPy", None, f"CuPy is not installed: {INSTALL}")


def _headers(release: tuple[int, int] | None) -> Part:
    found = toolkit() if release is None else toolkit(release[0])
    return Part("headers", f"CUDA {_dotted(found.release)} in {found.includes[0]}")


def _nvrtc(release: tuple[int, int] | None) -> Part:
    by = compiler() if release is None else compiler(release[0])
    shown = f"{_dotted(by.nvrtc.version)} in {by.toolkit.nvrtc}"
    if torch.cuda.is_available():
        arch = arch_of(torch.cuda.current_device())
        if arch not in by.nvrtc.archs:
            return Part("NVRTC", shown, f"it does not compile for sm_{target_of(arch)}: {INSTALL}")
    return Part("NVRTC", shown)


def _dotted(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]}"
