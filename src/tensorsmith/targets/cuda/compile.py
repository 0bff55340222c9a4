"""CUDA C++ text -> cubin, in this process, through NVRTC: no toolkit, no host compiler and no GPU needed."""

from __future__ import annotations

from typing import Any

# Contraction would round differently from the other targets; kernels that want a fused multiply-add say so.
OPTIONS = ("--fmad=false", "--std=c++17")
DEFAULT_ARCHITECTURE = "sm_90a"


class CudaUnavailableError(RuntimeError):
    """NVIDIA's compiler, driver or a device is missing."""


class CudaCompileError(RuntimeError):
    """NVRTC refused a kernel; `log` is what it said, `source` the text."""

    def __init__(self, name: str, arch: str, log: str, source: str) -> None:
        numbered = "\n".join(f"{number:4d}  {line}" for number, line in enumerate(source.splitlines(), 1))
        super().__init__(f"CUDA kernel {name} does not compile for {arch}:\n{log.strip()}\n\n{numbered}")
        self.log = log
        self.source = source


def compile_cubin(source: str, name: str = "kernel", arch: str = DEFAULT_ARCHITECTURE) -> bytes:
    """The cubin of CUDA C++ text.

    name: how errors call the kernel; arch: the architecture, `sm_90a` for the H200 (`sm_90` has no wgmma)
    Errors: CudaUnavailableError without the compiler; CudaCompileError with its log.
    """
    nvrtc = _nvrtc()
    program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), f"{name}.cu".encode(), 0, [], []))
    try:
        options = [option.encode() for option in (f"--gpu-architecture={arch}", *OPTIONS)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CudaCompileError(name, arch, _log(nvrtc, program) or _message(nvrtc, status), source)
        cubin = bytes(_checked(nvrtc, nvrtc.nvrtcGetCUBINSize(program)))
        _checked(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin))
        return cubin
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def compiler_version() -> tuple[int, int]:
    """NVRTC's version, part of the key of any cached cubin."""
    nvrtc = _nvrtc()
    major, minor = _checked(nvrtc, nvrtc.nvrtcVersion())
    return int(major), int(minor)


def _nvrtc() -> Any:
    """The bindings of NVRTC; the library itself comes from the nvidia-cuda-nvrtc package (found by cuda-pathfinder)."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()  # loads the library
    except (ImportError, RuntimeError) as error:
        raise CudaUnavailableError(
            f"compiling CUDA kernels needs NVIDIA's compiler library: pip install 'tensorsmith[cuda]' ({error})"
        ) from error
    return nvrtc


def _checked(nvrtc: Any, returned: tuple[Any, ...]) -> Any:
    """The results of a call of the bindings, whose first item is a status."""
    status, *results = returned
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC: {_message(nvrtc, status)}")
    return results[0] if len(results) == 1 else results


def _message(nvrtc: Any, status: Any) -> str:
    _, text = nvrtc.nvrtcGetErrorString(status)
    return bytes(text).decode(errors="replace")


def _log(nvrtc: Any, program: Any) -> str:
    buffer = bytes(_checked(nvrtc, nvrtc.nvrtcGetProgramLogSize(program)))
    _checked(nvrtc, nvrtc.nvrtcGetProgramLog(program, buffer))
    return buffer.rstrip(b"\0").decode(errors="replace")
