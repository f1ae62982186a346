"""NVRTC, CUDA's compiler as a library, called directly: it needs neither a GPU nor a driver, nor CuPy."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

from ninfer.errors import CudaError

_Program = ctypes.c_void_p
_Strings = ctypes.POINTER(ctypes.c_char_p)
_SIGNATURES: dict[str, tuple[object, ...]] = {
    "nvrtcVersion": (ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int)),
    "nvrtcGetNumSupportedArchs": (ctypes.POINTER(ctypes.c_int),),
    "nvrtcGetSupportedArchs": (ctypes.POINTER(ctypes.c_int),),
    "nvrtcCreateProgram": (
        ctypes.POINTER(_Program),
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_int,
        _Strings,
        _Strings,
    ),
    "nvrtcCompileProgram": (_Program, ctypes.c_int, _Strings),
    "nvrtcDestroyProgram": (ctypes.POINTER(_Program),),
    "nvrtcGetCUBINSize": (_Program, ctypes.POINTER(ctypes.c_size_t)),
    "nvrtcGetCUBIN": (_Program, ctypes.c_char_p),
    "nvrtcGetProgramLogSize": (_Program, ctypes.POINTER(ctypes.c_size_t)),
    "nvrtcGetProgramLog": (_Program, ctypes.c_char_p),
}
_COMPILATION_FAILED = 6


class CompileError(Exception):
    """The source is wrong; the text is what the compiler says about it."""


class Nvrtc:
    """A loaded NVRTC library. Threads may compile at the same time.

    Attributes:
        version: as in (13, 5).
        archs: compute capabilities times ten that it compiles for.
    """

    def __init__(self, library: Path) -> None:
        """Raises CudaError if it cannot be loaded."""
        try:
            # It looks for its other half by name, and as wheels of CUDA 13.0 install it, not in its own folder.
            self._builtins = [ctypes.CDLL(str(path)) for path in library.parent.glob("libnvrtc-builtins.so.*")]
            self._library = ctypes.CDLL(str(library))
            for name, signature in _SIGNATURES.items():
                getattr(self._library, name).argtypes = signature
        except (OSError, AttributeError) as error:
            raise CudaError(f"{library} cannot be used ({error}): reinstall nvidia-cuda-nvrtc") from error
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        self.version = self._version()
        self.archs = self._archs()

    def compile(self, name: str, text: str, options: Sequence[str]) -> tuple[bytes, str]:
        """Compile one source for the target that the options name.

        Args:
            name: what messages call the source.

        Returns:
            The cubin, and what the compiler said.

        Raises:
            CompileError: the source is wrong.
            CudaError: the compiler itself fails.
        """
        program = _Program()
        self._call("nvrtcCreateProgram", ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
        try:
            arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self._library.nvrtcCompileProgram(program, len(options), arguments)
            log = self._fetch("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
            if status == _COMPILATION_FAILED:
                raise CompileError(log.strip())
            self._check("nvrtcCompileProgram", status)
            return self._fetch("CUBIN", program), log
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))

    def _version(self) -> tuple[int, int]:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def _archs(self) -> frozenset[int]:
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        archs = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", archs)
        return frozenset(archs)

    def _fetch(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def _call(self, name: str, *arguments: object) -> None:
        self._check(name, getattr(self._library, name)(*arguments))

    def _check(self, name: str, status: int) -> None:
        if status:
            said = self._library.nvrtcGetErrorString(status).decode()
            raise CudaError(f"CUDA's compiler failed ({name}: {said}); reinstall nvidia-cuda-nvrtc")
