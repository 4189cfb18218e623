"""The call of the driver's batched copy of rectangles, over bindings whose driver is a function of Python."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from kv_api import ConfigError
from kv_offload_cpu import Direction
from kv_offload_cpu.copy.cuda import strided_call
from kv_offload_cpu.copy.cuda.methods.strided import StridedBatch
from kv_offload_cpu.copy.cuda.strided_call import StridedCall
from kv_offload_cpu.copy.ranges.rectangles import Rectangles

INT, SIZE = ctypes.c_int, ctypes.c_size_t


class Place(ctypes.Structure):
    _fields_ = (("ptr", SIZE), ("rowLength", SIZE), ("layerHeight", SIZE), ("hint", INT * 2))


class Union(ctypes.Union):
    _fields_ = (("ptr", Place), ("words", ctypes.c_longlong * 4))


class Operand(ctypes.Structure):
    _fields_ = (("type", INT), ("op", Union))


class Extent(ctypes.Structure):
    _fields_ = (("width", SIZE), ("height", SIZE), ("depth", SIZE))


class Operation(ctypes.Structure):
    """As CUDA's header has it."""

    _fields_ = (
        ("src", Operand),
        ("dst", Operand),
        ("extent", Extent),
        ("srcAccessOrder", INT),
        ("flags", ctypes.c_uint),
    )

    def getPtr(self):
        return ctypes.addressof(self)


class Other(Operation):
    """One that has its numbers elsewhere."""

    _fields_ = (("more", ctypes.c_longlong * 2),)

    def getPtr(self):
        return ctypes.addressof(self) + 16


class Bindings:
    """A driver that copies at once, and says what it was asked."""

    CUDA_MEMCPY3D_BATCH_OP = Operation
    CUmemcpySrcAccessOrder = SimpleNamespace(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM=1, CU_MEMCPY_SRC_ACCESS_ORDER_ANY=3)
    CUmemcpy3DOperandType = SimpleNamespace(CU_MEMCPY_OPERAND_TYPE_POINTER=1)
    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_MAX_PITCH=11)
    CUdeviceptr = int

    def __init__(self, error=0, address=None, asking=0):
        self.error, self.asking = error, asking
        self.calls, self.asked = [], []
        self.function = strided_call._SIGNATURE(self._copy)
        own = ctypes.cast(self.function, ctypes.c_void_p).value
        self.address = own if address is None else address

    def cuGetProcAddress(self, *arguments):
        self.asked.append(arguments)
        return 0, self.address, 0

    def cuDriverGetVersion(self):
        return 0, 12060

    def cuCtxGetDevice(self):
        return 0, 5

    def cuDeviceGetAttribute(self, attribute, device):
        assert (attribute, device) == (11, 5)
        return self.asking, 1 << 31

    def _copy(self, count, operations, wrong, flags, stream):
        self.calls.append((count, flags, stream))
        wrong[0] = 2
        for operation in (Operation * count).from_address(operations):
            assert operation.src.type == operation.dst.type == operation.extent.depth == 1
            assert (operation.flags, [*operation.src.op.ptr.hint], [*operation.dst.op.ptr.hint]) == (
                0,
                [0, 0],
                [0, 0],
            )
            assert operation.src.op.ptr.layerHeight == operation.dst.op.ptr.layerHeight == 0
            self.calls.append(operation.srcAccessOrder)
            if not self.error:
                self._copy_rows(operation.dst.op.ptr, operation.src.op.ptr, operation.extent)
        return self.error

    @staticmethod
    def _copy_rows(target, source, extent):
        for row in range(extent.height):
            places = (place.ptr + row * place.rowLength for place in (target, source))
            ctypes.memmove(*places, extent.width)


@pytest.fixture
def make(monkeypatch):
    """Makes the call over bindings."""

    def make_one(bindings):
        monkeypatch.setattr(strided_call, "load_bindings", lambda purpose: bindings)
        return StridedCall()

    return make_one


def batch_of(device, host, direction=Direction.STORE):
    """Three rectangles between arrays: of two rows, of three, and one row of all there is."""
    columns = ([0, 2, 20], [0, 10, 19], [8, 4, 0], [5, 3, 0], [2, 1, 4], [2, 3, 1])
    device_begins, host_begins, *rest = (np.array(column, np.int64) for column in columns)
    return StridedBatch(
        Rectangles(device_begins + device.ctypes.data, host_begins + host.ctypes.data, *rest), direction
    )


def test_rectangles_are_stored_and_loaded(make):
    bindings = Bindings()
    call = make(bindings)
    assert call.most_pitch == 1 << 31
    assert bindings.asked == [(b"cuMemcpy3DBatchAsync", 12080, 0)]
    device, host = np.arange(1, 25, dtype=np.uint8), np.zeros(23, np.uint8)
    call(77, batch_of(device, host), 0, 3)
    assert host.tolist() == [1, 2, 0, 0, 0, 9, 10, 0, 0, 0, 3, 0, 0, 7, 0, 0, 11, 0, 0, 21, 22, 23, 24]
    assert bindings.calls == [(3, 0, 77), 1, 1, 1]
    before = device.copy()
    device[:] = 0
    call(78, batch_of(device, host, Direction.LOAD), 1, 3)
    expected = np.zeros_like(device)
    for begin, end in ((2, 3), (6, 7), (10, 11), (20, 24)):
        expected[begin:end] = before[begin:end]
    assert device.tolist() == expected.tolist()
    assert bindings.calls[4:] == [(2, 0, 78), 3, 3]


def test_an_error_of_the_call_is_raised_with_its_number_and_copy(make):
    device, host = np.zeros(24, np.uint8), np.zeros(23, np.uint8)
    with pytest.raises(RuntimeError, match=r"^cuMemcpy3DBatchAsync gave error 1, at copy 2 of 3$"):
        make(Bindings(error=1))(0, batch_of(device, host), 0, 3)


def test_a_driver_that_is_too_old_is_named(make):
    with pytest.raises(ConfigError) as caught:
        make(Bindings(address=0))
    assert str(caught.value) == (
        "copy_engine: the driver is of CUDA 12.6 and has no batched copy, which came with 12.8; use 'cuda'"
    )


def test_a_device_that_cannot_be_asked_is_told(make):
    with pytest.raises(ConfigError) as caught:
        make(Bindings(asking=3))
    assert str(caught.value) == "copy_engine: the device can't be asked how far apart rows may be: error 3"


def test_bindings_of_another_form_are_refused(make):
    bindings = Bindings()
    bindings.CUDA_MEMCPY3D_BATCH_OP = Other
    with pytest.raises(ConfigError) as caught:
        make(bindings)
    assert str(caught.value).startswith(
        "copy_engine: cuda-bindings' CUDA_MEMCPY3D_BATCH_OP is not of the form that is known: ["
    )
    assert str(caught.value).endswith("]; use 'cuda-batch'")
