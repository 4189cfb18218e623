"""A compiler that makes of a source its options, and a driver that notes what it is told of kernels."""

import ctypes
from enum import Enum
from types import SimpleNamespace

from kv_offload_cpu.copy.cuda.kernel_call import Told


class Compiler:
    """NVRTC."""

    def __init__(self, known=(75, 80, 90, 100), result=0, log=b"fine\n\0"):
        self.known, self.result, self.log = known, result, log
        self.options, self.compiled = [], []

    def nvrtcGetSupportedArchs(self):
        return 0, [*self.known]

    def nvrtcCreateProgram(self, source, name, count, headers, names):
        assert (count, names) == (1, [b"job.h"])
        assert b'#include "job.h"' in source and b"struct Job" in headers[0]
        self.compiled.append(name.decode())
        return 0, "program"

    def nvrtcCompileProgram(self, program, count, options):
        assert (program, count) == ("program", len(options))
        self.options = [option.decode() for option in options]
        return (self.result,)

    def nvrtcGetProgramLogSize(self, program):
        return 0, len(self.log)

    def nvrtcGetProgramLog(self, program, room):
        self._fill(room, self.log)

    def nvrtcGetCUBINSize(self, program):
        return 0, 4

    def nvrtcGetCUBIN(self, program, room):
        self._fill(room, b"code")

    def nvrtcGetPTXSize(self, program):
        return 0, 3

    def nvrtcGetPTX(self, program, room):
        self._fill(room, b"ptx")

    def _fill(self, room, answer):
        writable = (ctypes.c_char * len(answer)).from_buffer(room)
        assert len(room) == len(answer)
        ctypes.memmove(writable, answer, len(answer))


class Attribute(Enum):
    """Of a device, by what an H200 answers."""

    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 9
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 0
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 227 << 10


class KernelDriver:
    """The driver of an H200, and what it launched. ``failing`` names a function that gives an error."""

    CUdevice_attribute = Attribute
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="most")

    def __init__(self, failing=None, room=227 << 10):
        self.failing, self.room = failing, room
        self.functions, self.launched, self.loaded, self.most = [], [], None, None

    def cuCtxGetDevice(self):
        return self._result("cuCtxGetDevice"), 3

    def cuDeviceGetAttribute(self, attribute, device):
        assert device == 3
        is_room = attribute is Attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        return self._result("cuDeviceGetAttribute"), self.room if is_room else attribute.value

    def cuModuleLoadData(self, code):
        self.loaded = code
        return self._result("cuModuleLoadData"), "module"

    def cuModuleGetFunction(self, module, name):
        assert module == "module"
        self.functions.append(name.decode())
        return self._result("cuModuleGetFunction"), len(self.functions)

    def cuFuncSetAttribute(self, function, attribute, value):
        assert (self.functions[function - 1], attribute) == ("move_pages", "most")
        self.most = value
        return (self._result("cuFuncSetAttribute"),)

    def cuLaunchKernel(self, function, *shape_and_rest):
        *shape, stream, arguments, extra = shape_and_rest
        assert extra == 0
        told = Told.from_address(ctypes.c_void_p.from_address(arguments).value)
        told = {name: getattr(told, name) for name, _ in Told._fields_}
        self.launched.append((self.functions[function - 1], shape, stream, told))

    def _result(self, name):
        return 700 if name == self.failing else 0


class Tensor:
    """Numbers at an address."""

    def __init__(self, address):
        self.address = address

    def data_ptr(self):
        return self.address


def launched_twice(driver, kernel, *, is_store):
    """What a driver was given by two calls, of 600 steps and of three; checks what both are told of their jobs."""
    calls = [kernel.call(77, 9000, 400, range(100, 300), 2), kernel.call(78, 8000, 40, range(1), 2)]
    for arguments, kept in calls:
        driver.cuLaunchKernel(*arguments)
        assert kernel._steps in kept
    [first, last] = driver.launched
    assert first[3] == {
        "table": 9000,
        "steps": 5000,
        "num_rows": 400,
        "begin": 100,
        "num_items": 600,
        "num_steps": 3,
        "is_store": is_store,
    }
    assert (last[3]["table"], last[3]["begin"], last[3]["num_items"]) == (8000, 0, 3)
    return first[:3], last[:3]
