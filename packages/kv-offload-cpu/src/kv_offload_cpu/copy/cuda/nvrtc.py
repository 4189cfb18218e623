"""Compiles the kernels in CUDA C++, whose sources are beside this file, by NVRTC, and loads them on a device.

Both go through cuda-bindings; its NVRTC is imported only when there is something to compile. All sources include
``job.h``.
"""

from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any, Final, NamedTuple

from kv_api import ConfigError
from kv_offload_cpu.copy.cuda.batch_call import load_bindings

_HEADER: Final = "job.h"


class WrongDeviceError(ConfigError):
    """The device can't run a kernel, whatever is installed."""


class Source(NamedTuple):
    """A file with kernels, and words for errors about them."""

    file: str
    defined: tuple[str, ...]
    """Options of the compiler, such as definitions."""
    kind: str
    """What the kernel is called in errors, such as "kernel of bulk copies"."""
    instead: str
    """What to use instead, as the end of an error."""
    oldest: tuple[int, int] | None = None
    """The least compute capability that it needs. None: it runs on all devices that the compiler knows."""


class MachineCode(NamedTuple):
    """Machine code, or PTX for a device that the compiler doesn't know, and the compiler's log.

    PTX is compiled for the oldest devices that can run the kernel; every later device accepts that.
    """

    code: bytes
    log: str


@cache
def compile_source(source: Source, capability: tuple[int, int]) -> MachineCode:
    """Compile the kernels for a device; a ConfigError if it can't run them, or if NVRTC fails."""
    number, oldest = _number(capability), _number(source.oldest or (0, 0))
    if number < oldest:
        raise WrongDeviceError(
            f"copy_engine: the device has compute capability {number / 10}, and a {source.kind} needs "
            f"{oldest / 10}; {source.instead}"
        )
    try:
        nvrtc = import_module("cuda.bindings.nvrtc")
        known = nvrtc.nvrtcGetSupportedArchs()[1]
    except Exception as error:  # the bindings find the library at the first call
        raise ConfigError(
            f"copy_engine: a {source.kind} needs NVRTC, which can't be used ({error}); install that of "
            f"cuda-bindings' CUDA (nvidia-cuda-nvrtc, or nvidia-cuda-nvrtc-cu12), or {source.instead}"
        ) from error
    is_known = number in known
    target = f"sm_{number}" if is_known else f"compute_{oldest or min(known)}"
    text, header = ((files(__package__) / name).read_bytes() for name in (source.file, _HEADER))
    options = [f"-arch={target}", "-std=c++17", "--ptxas-options=-v", *source.defined]
    _, program = nvrtc.nvrtcCreateProgram(text, source.file.encode(), 1, [header], [_HEADER.encode()])
    [result] = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    log = _answer(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode().strip("\0\n ")
    if int(result):
        raise ConfigError(f"copy_engine: NVRTC can't compile for {target}: error {int(result)}: {log}")
    if is_known:
        code = _answer(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    else:
        code = _answer(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
    return MachineCode(code, log)


class Loaded:
    """A source's kernels on the current device; a ConfigError if they can't be compiled or loaded."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._driver = load_bindings(f"a {source.kind}")
        [self._device] = self._asked("cuCtxGetDevice")
        major, minor = (self.device_attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
        [self._module] = self._asked("cuModuleLoadData", compile_source(source, (major, minor)).code)

    def device_attribute(self, name: str) -> int:
        """An attribute of the device."""
        attribute = getattr(self._driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        [number] = self._asked("cuDeviceGetAttribute", attribute, self._device)
        return int(number)

    def function(self, name: str) -> Any:
        """The address of a kernel. It is loaded on the device now, so that no launch has to load it."""
        [function] = self._asked("cuModuleGetFunction", self._module, name.encode())
        return function

    def allow_shared_bytes(self, function: Any, num_bytes: int) -> None:
        """Let launches of a kernel have ``num_bytes`` of shared memory."""
        most = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._asked("cuFuncSetAttribute", function, most, num_bytes)

    def _asked(self, name: str, *arguments: Any) -> Any:
        """Call a function of the driver; a ConfigError if it returns an error."""
        result, *answers = getattr(self._driver, name)(*arguments)
        if int(result):
            raise ConfigError(
                f"copy_engine: the driver can't run a {self._source.kind}: {name} returned error {int(result)}; "
                f"{self._source.instead}"
            )
        return answers


def _number(capability: tuple[int, int]) -> int:
    major, minor = capability
    return 10 * major + minor


def _answer(size_of: Any, get: Any, program: Any) -> bytes:
    _, size = size_of(program)
    answer = bytearray(int(size))  # and not bytes, of which Python keeps one object for all equal ones of length 1
    get(program, answer)
    return bytes(answer)
