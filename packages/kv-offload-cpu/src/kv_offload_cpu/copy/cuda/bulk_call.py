"""The kernel of ``bulk_kernel.cu``: compiled by NVRTC, launched by the driver, both by way of cuda-bindings.

What it is told of a job is what the gathering kernel is told, too: see ``methods/page_table.py``.
"""

import ctypes
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any, Final, NamedTuple

from kv_api import ConfigError
from kv_offload_cpu.copy.cuda.batch_call import load_bindings
from kv_offload_cpu.copy.cuda.methods.page_table import STEP_BYTES
from kv_offload_cpu.copy.ranges.addresses import WIDEST_WORD_BYTES

CAPABILITY: Final = (9, 0)
"""Hopper, which has bulk copies. All later devices have them."""

LANES: Final = 8
"""Threads of a warp that have a buffer."""

WARPS: Final = {False: 6, True: 2}
"""Of a program, by whether it stores; fewer where a device has no room for so many. Stores have under way what
fills a link, two programs of 16 buffers on an H200, and with fewer not quite; loads three times that, for answers
that come later beside stores."""

MOST_ITEMS: Final = 1 << 31
"""Steps of a launch. Threads count theirs with 32 bits, and go beyond the last."""

_BARRIER_BYTES: Final = 8


class WrongDeviceError(ConfigError):
    """A device can't do this, whatever is installed."""


class Told(ctypes.Structure):
    """What a kernel is told, as ``Job`` in its source."""

    _fields_ = (
        ("table", ctypes.c_void_p),
        ("steps", ctypes.c_void_p),
        ("num_rows", ctypes.c_longlong),
        ("begin", ctypes.c_longlong),
        ("num_items", ctypes.c_uint),
        ("num_steps", ctypes.c_uint),
        ("is_store", ctypes.c_int),
    )


class KernelCall(NamedTuple):
    """What ``cuLaunchKernel`` is called with, and what it reads."""

    arguments: tuple[int, ...]
    kept: tuple[object, ...]


class Compiled(NamedTuple):
    """Machine code, or PTX for a device that the compiler doesn't know, and what the compiler said.

    The PTX is that of the oldest devices with bulk copies, which every later one takes, whatever its family.
    """

    code: bytes
    log: str


@cache
def compile_kernel(capability: tuple[int, int]) -> Compiled:
    """The kernel for a device; a ConfigError where it has no bulk copies, or nothing compiles."""
    number, oldest = (10 * major + minor for major, minor in (capability, CAPABILITY))
    if capability < CAPABILITY:
        raise WrongDeviceError(
            f"copy_engine: the device has compute capability {number / 10}, and bulk copies came with "
            f"{CAPABILITY[0]}.{CAPABILITY[1]}; use 'cuda-gather'"
        )
    try:
        nvrtc = import_module("cuda.bindings.nvrtc")
        is_known = number in nvrtc.nvrtcGetSupportedArchs()[1]
    except Exception as error:  # the bindings find the library at the first call
        raise ConfigError(
            f"copy_engine: a kernel of bulk copies needs NVRTC, which can't be used ({error}); install that of "
            f"cuda-bindings' CUDA (nvidia-cuda-nvrtc, or nvidia-cuda-nvrtc-cu12), or use 'cuda-gather'"
        ) from error
    target = f"sm_{number}" if is_known else f"compute_{oldest}"
    source = (files(__package__) / "bulk_kernel.cu").read_bytes()
    defined = (f"-DSTEP_BYTES={STEP_BYTES}", f"-DLANES={LANES}")
    options = [b"-arch=" + target.encode(), b"-std=c++17", b"--ptxas-options=-v", *map(str.encode, defined)]
    _, program = nvrtc.nvrtcCreateProgram(source, b"bulk_kernel.cu", 0, [], [])
    [result] = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = _answer(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode().strip("\0\n ")
    if int(result):
        raise ConfigError(f"copy_engine: NVRTC can't compile for {target}: error {int(result)}: {log}")
    if is_known:
        code = _answer(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    else:
        code = _answer(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program)
    return Compiled(code, log)


class BulkCall:
    """The kernel on the current device; a ConfigError where that can't be."""

    def __init__(self) -> None:
        self.bindings = load_bindings("a kernel of bulk copies")
        [self._device] = self._asked("cuCtxGetDevice")
        names = self.bindings.CUdevice_attribute
        major = self._attribute(names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)
        minor = self._attribute(names.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)
        code = compile_kernel((major, minor)).code
        room = self._attribute(names.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
        self.warps = {is_store: max(1, min(warps, room // shared_bytes(1))) for is_store, warps in WARPS.items()}
        [self._module] = self._asked("cuModuleLoadData", code)
        [self.function] = self._asked("cuModuleGetFunction", self._module, b"move_pages")
        most = self.bindings.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._asked("cuFuncSetAttribute", self.function, most, shared_bytes(max(self.warps.values())))

    def kernel(self, steps: Any, num_steps: int, *, is_store: bool, word: int) -> "BulkKernel":
        """The kernel for one direction and these steps, a tensor on the device."""
        if word < WIDEST_WORD_BYTES:
            raise ConfigError(
                f"copy_engine: 'cuda-bulk' copies multiples of {WIDEST_WORD_BYTES} bytes, and these pages or "
                f"slots are multiples of {word}; use 'cuda-gather'"
            )
        return BulkKernel(self, steps, num_steps, is_store=is_store)

    def _attribute(self, attribute: Any) -> int:
        [number] = self._asked("cuDeviceGetAttribute", attribute, self._device)
        return int(number)

    def _asked(self, name: str, *arguments: Any) -> Any:
        """What a function of the driver answers."""
        result, *answers = getattr(self.bindings, name)(*arguments)
        if int(result):
            raise ConfigError(
                f"copy_engine: the driver takes no kernel of bulk copies: {name} gave error {int(result)}; "
                f"use 'cuda-gather'"
            )
        return answers


class BulkKernel:
    """The kernel for one direction."""

    def __init__(self, call: BulkCall, steps: Any, num_steps: int, *, is_store: bool) -> None:
        warps = call.warps[is_store]
        self._function = int(call.function)
        self._steps = steps
        self._num_steps = num_steps
        self._is_store = is_store
        self._shape = (32 * warps, 1, 1, shared_bytes(warps))
        self._buffers = LANES * warps

    def call(self, stream: int, table: int, num_rows: int, rows: range, programs: int) -> KernelCall:
        """The call that gives a stream, by its handle, the moves of some pages of a table at that address."""
        items = len(rows) * self._num_steps
        if items > MOST_ITEMS:
            raise RuntimeError(
                f"a kernel of bulk copies takes {MOST_ITEMS} steps at most, and this job has {items}"
            )
        told = Told(table, self._steps.data_ptr(), num_rows, rows.start, items, self._num_steps, self._is_store)
        programs = max(1, min(programs, -(-items // self._buffers)))
        where = (ctypes.c_void_p * 1)(ctypes.addressof(told))
        grid = (self._function, programs, 1, 1, *self._shape)
        return KernelCall((*grid, stream, ctypes.addressof(where), 0), (told, where, self._steps))


def shared_bytes(warps: int) -> int:
    """Of the buffers of so many warps, and a barrier for each."""
    return LANES * warps * (STEP_BYTES + _BARRIER_BYTES)


def _answer(size_of: Any, get: Any, program: Any) -> bytes:
    _, size = size_of(program)
    answer = bytearray(int(size))  # and not bytes, of which Python keeps one object for all equal ones of length 1
    get(program, answer)
    return bytes(answer)
