"""The kernel of bulk copies: for which device it is compiled, what the driver is told, and what is refused how.

Compiler and driver are functions of Python here. What the kernel does ``nox -s kernel`` shows, and on a GPU
``nox -s gpu``.
"""

import ctypes
from enum import Enum
from types import SimpleNamespace

import pytest

from kv_api import ConfigError
from kv_offload_cpu.copy.cuda import bulk_call
from kv_offload_cpu.copy.cuda.bulk_call import (
    LANES,
    WARPS,
    BulkCall,
    Told,
    WrongDeviceError,
    compile_kernel,
    shared_bytes,
)

H200 = (9, 0)


class Compiler:
    """NVRTC, which makes of a source its options."""

    def __init__(self, known=(75, 80, 90, 100), result=0, log=b"fine\n\0"):
        self.known, self.result, self.log = known, result, log
        self.options = []

    def nvrtcGetSupportedArchs(self):
        return 0, [*self.known]

    def nvrtcCreateProgram(self, source, name, count, headers, names):
        assert (name, count, headers, names) == (b"bulk_kernel.cu", 0, [], [])
        assert b"move_pages" in source
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
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 9
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 0
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 227 << 10


FUNCTION = 0xF00


class Driver:
    """The driver of an H200, and what it launched. ``failing`` names a function that gives an error."""

    CUdevice_attribute = Attribute
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="most")

    def __init__(self, failing=None, room=227 << 10):
        self.failing, self.room = failing, room
        self.launched, self.loaded, self.most = [], None, None

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
        assert (module, name) == ("module", b"move_pages")
        return self._result("cuModuleGetFunction"), FUNCTION

    def cuFuncSetAttribute(self, function, attribute, value):
        assert (function, attribute) == (FUNCTION, "most")
        self.most = value
        return (self._result("cuFuncSetAttribute"),)

    def cuLaunchKernel(self, function, *shape_and_rest):
        *shape, stream, arguments, extra = shape_and_rest
        assert (function, extra) == (FUNCTION, 0)
        told = Told.from_address(ctypes.c_void_p.from_address(arguments).value)
        self.launched.append((shape, stream, {name: getattr(told, name) for name, _ in Told._fields_}))

    def _result(self, name):
        return 700 if name == self.failing else 0


@pytest.fixture(autouse=True)
def _anew():
    """Nothing was compiled before, and nothing stays."""
    compile_kernel.cache_clear()
    yield
    compile_kernel.cache_clear()


@pytest.fixture
def compiler(monkeypatch):
    """Lets a compiler be used, by default one that knows the H200."""

    def use(compiler):
        monkeypatch.setattr(bulk_call, "import_module", lambda name: {"cuda.bindings.nvrtc": compiler}[name])
        return compiler

    use(Compiler())
    return use


@pytest.fixture
def make(compiler, monkeypatch):
    """Makes calls over a driver."""

    def make_one(driver):
        monkeypatch.setattr(bulk_call, "load_bindings", lambda purpose: driver)
        return BulkCall()

    return make_one


class Tensor:
    """Numbers at an address."""

    def __init__(self, address):
        self.address = address

    def data_ptr(self):
        return self.address


@pytest.mark.parametrize(
    ("capability", "known", "target", "code"),
    [
        (H200, (80, 90, 100), "sm_90", b"code"),
        ((10, 0), (80, 90, 100), "sm_100", b"code"),
        ((10, 3), (80, 90, 100, 101, 120), "compute_90", b"ptx"),
        ((12, 1), (80, 90), "compute_90", b"ptx"),
    ],
)
def test_a_device_gets_code_of_its_own_or_what_its_driver_can_translate(compiler, capability, known, target, code):
    used = compiler(Compiler(known))
    assert compile_kernel(capability) == (code, "fine")
    assert used.options[0] == f"-arch={target}"
    assert {"-DSTEP_BYTES=4096", f"-DLANES={LANES}"} <= {*used.options}


def test_nothing_is_compiled_twice(compiler):
    used = compiler(Compiler())
    first = compile_kernel(H200)
    used.options = []
    assert compile_kernel(H200) is first
    assert used.options == []


def test_an_older_device_is_told_what_it_lacks(compiler):
    with pytest.raises(WrongDeviceError) as caught:
        compile_kernel((8, 9))
    assert str(caught.value) == (
        "copy_engine: the device has compute capability 8.9, and bulk copies came with 9.0; use 'cuda-gather'"
    )


def test_what_does_not_compile_is_refused_in_the_words_of_the_compiler(compiler):
    compiler(Compiler(result=6, log=b"error: no such instruction\n\0"))
    with pytest.raises(ConfigError) as caught:
        compile_kernel(H200)
    assert str(caught.value) == ("copy_engine: NVRTC can't compile for sm_90: error 6: error: no such instruction")


@pytest.mark.parametrize("lacking", ["module", "library"])
def test_without_the_compiler_what_has_it_is_named(monkeypatch, lacking):
    def asked(*arguments):
        raise ImportError("not here") if lacking == "module" else RuntimeError("not here")

    given = SimpleNamespace(nvrtcGetSupportedArchs=asked)
    monkeypatch.setattr(bulk_call, "import_module", asked if lacking == "module" else lambda name: given)
    with pytest.raises(ConfigError) as caught:
        compile_kernel(H200)
    assert str(caught.value) == (
        "copy_engine: a kernel of bulk copies needs NVRTC, which can't be used (not here); install that of "
        "cuda-bindings' CUDA (nvidia-cuda-nvrtc, or nvidia-cuda-nvrtc-cu12), or use 'cuda-gather'"
    )


CALLS = (
    "cuCtxGetDevice",
    "cuDeviceGetAttribute",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
)


@pytest.mark.parametrize("failing", CALLS)
def test_a_driver_that_refuses_is_quoted(make, failing):
    with pytest.raises(ConfigError) as caught:
        make(Driver(failing))
    assert str(caught.value) == (
        f"copy_engine: the driver takes no kernel of bulk copies: {failing} gave error 700; use 'cuda-gather'"
    )


@pytest.mark.parametrize(
    ("room", "warps"),
    [
        (227 << 10, WARPS),
        (99 << 10, {False: 3, True: 2}),
        (40 << 10, {False: 1, True: 1}),
        (1, {False: 1, True: 1}),
    ],
)
def test_a_program_has_as_many_buffers_as_there_is_room_for(make, room, warps):
    driver = Driver(room=room)
    call = make(driver)
    assert call.warps == warps
    assert driver.loaded == b"code"
    assert driver.most == shared_bytes(max(warps.values()))
    assert driver.most <= room or room < shared_bytes(1)


def test_a_program_of_loads_fits_into_an_h200():
    assert shared_bytes(WARPS[False]) <= 227 << 10


@pytest.mark.parametrize("is_store", [False, True])
def test_a_launch_tells_where_everything_is(make, is_store):
    driver = Driver()
    kernel = make(driver).kernel(Tensor(5000), 3, is_store=is_store, word=16)
    calls = [kernel.call(77, 9000, 400, range(100, 300), 2), kernel.call(78, 8000, 40, range(1), 2)]
    for arguments, kept in calls:
        driver.cuLaunchKernel(*arguments)
        assert kernel._steps in kept
    [(shape, stream, told), (last_shape, last_stream, last_told)] = driver.launched
    warps = WARPS[is_store]
    assert (shape, stream) == ([2, 1, 1, 32 * warps, 1, 1, shared_bytes(warps)], 77)
    assert told == {
        "table": 9000,
        "steps": 5000,
        "num_rows": 400,
        "begin": 100,
        "num_items": 600,
        "num_steps": 3,
        "is_store": is_store,
    }
    assert (last_shape[0], last_stream) == (1, 78)
    assert (last_told["table"], last_told["begin"], last_told["num_items"]) == (8000, 0, 3)


@pytest.mark.parametrize(("rows", "programs"), [(0, 1), (1, 1), (16, 1), (17, 2), (33, 2)])
def test_as_many_programs_as_have_something_to_do(make, rows, programs):
    driver = Driver()
    call = make(driver).kernel(Tensor(1), 1, is_store=True, word=16).call(7, 1, 99, range(rows), 2)
    assert call.arguments[1] == programs


def test_a_launch_of_more_steps_than_a_thread_can_count_is_refused(make):
    driver = Driver()
    kernel = make(driver).kernel(Tensor(1), 1 << 20, is_store=True, word=16)
    call = kernel.call(7, 1, 9999, range(2048), 2)  # which the driver reads
    driver.cuLaunchKernel(*call.arguments)
    with pytest.raises(
        RuntimeError, match=r"^a kernel of bulk copies takes 2147483648 steps at most, and this job has"
    ):
        kernel.call(7, 1, 9999, range(2049), 2)
    assert [told["num_items"] for _, _, told in driver.launched] == [1 << 31]


def test_odd_pages_are_refused_with_what_copies_them(make):
    with pytest.raises(ConfigError) as caught:
        make(Driver()).kernel(Tensor(1), 1, is_store=True, word=8)
    assert str(caught.value) == (
        "copy_engine: 'cuda-bulk' copies multiples of 16 bytes, and these pages or slots are multiples of 8; "
        "use 'cuda-gather'"
    )
