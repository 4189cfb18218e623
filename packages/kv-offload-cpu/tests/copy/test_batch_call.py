"""The call of the driver's batched copy, over bindings whose driver is a function of Python."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from kv_api import ConfigError
from kv_offload_cpu.copy.cuda import batch_call
from kv_offload_cpu.copy.cuda.batch_call import BatchCall, load_bindings, mapped_address
from kv_offload_cpu.copy.cuda.methods.batch import Batch, SourceOrder
from kv_offload_cpu.copy.ranges.addresses import Moves


class Attributes(ctypes.Structure):
    """As the bindings' own: the first field is the order."""

    _fields_ = [("srcAccessOrder", ctypes.c_int), ("rest", ctypes.c_int * 5)]

    def getPtr(self):
        return ctypes.addressof(self)


class Bindings:
    """A driver that copies at once and notes what it was asked."""

    CUmemcpyAttributes = Attributes
    CUmemcpySrcAccessOrder = SimpleNamespace(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM=1, CU_MEMCPY_SRC_ACCESS_ORDER_ANY=3)

    def __init__(self, error=0, found=0, address=None, version=12090):
        self.error, self.found, self.version = error, found, version
        self.seen, self.asked = [], []
        self.function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * 9)(self._copy)
        own = ctypes.cast(self.function, ctypes.c_void_p).value
        self.address = own if address is None else address

    def cuGetProcAddress(self, *arguments):
        self.asked.append(arguments)
        return self.found, self.address, 0

    def cuDriverGetVersion(self):
        return 0, self.version

    def cuMemHostGetDevicePointer(self, address, flags):
        return self.error, address + flags + 0x1000

    def _copy(self, targets, sources, sizes, count, attributes, firsts, num_attributes, wrong, stream):
        order = ctypes.c_int.from_address(attributes).value
        first = ctypes.c_size_t.from_address(firsts).value
        self.seen.append((count, order, first, num_attributes, stream))
        ctypes.c_size_t.from_address(wrong).value = 1
        for n in range(count):
            ctypes.memmove(
                *(ctypes.c_int64.from_address(list_ + 8 * n).value for list_ in (targets, sources, sizes))
            )
        return 0


def three_moves(source, target, order=SourceOrder.ANY):
    """Bytes of one array to another, with columns that are no plain arrays."""
    rows = np.array([[target.ctypes.data + n, source.ctypes.data + 10 - n, 2] for n in (0, 4, 8)], np.int64)
    return Batch(Moves(*rows.T), order)


@pytest.mark.parametrize(("order", "value"), [(SourceOrder.STREAM, 1), (SourceOrder.ANY, 3)])
def test_the_call_gets_arrays_one_attribute_and_the_stream(monkeypatch, order, value):
    bindings = Bindings()
    monkeypatch.setattr(batch_call, "load_bindings", lambda purpose: bindings)
    source, target = np.arange(12, dtype=np.uint8), np.zeros(12, np.uint8)
    call, batch = BatchCall(), three_moves(source, target, order)
    bindings.function(*call.arguments(77, batch, 1, 3))
    assert target.tolist() == [0, 0, 0, 0, 6, 7, 0, 0, 2, 3, 0, 0]
    bindings.function(*call.arguments(78, batch, 0, 1))
    assert target.tolist() == [10, 11, 0, 0, 6, 7, 0, 0, 2, 3, 0, 0]
    assert bindings.asked == [(b"cuMemcpyBatchAsync", 12080, 0)]
    assert bindings.seen == [(2, value, 0, 1, 77), (1, value, 0, 1, 78)]


@pytest.mark.parametrize("answers", [{"found": 1}, {"address": 0}])
@pytest.mark.parametrize(("number", "version"), [(12040, "12.4"), (11990, "11.99"), (12000, "12.0")])
def test_a_driver_that_is_too_old_is_named(monkeypatch, answers, number, version):
    monkeypatch.setattr(batch_call, "load_bindings", lambda purpose: Bindings(**answers, version=number))
    with pytest.raises(ConfigError) as caught:
        BatchCall()
    assert str(caught.value) == (
        f"copy_engine: the driver is of CUDA {version} and has no batched copy, which came with 12.8; use 'cuda'"
    )


def test_a_machine_without_a_driver_is_told(monkeypatch):
    class Lost(Bindings):
        def cuGetProcAddress(self, *arguments):
            raise RuntimeError("no libcuda")

    monkeypatch.setattr(batch_call, "load_bindings", lambda purpose: Lost())
    with pytest.raises(ConfigError) as caught:
        BatchCall()
    assert str(caught.value) == "copy_engine: the CUDA driver can't be asked for a batched copy: no libcuda"


def test_without_the_bindings_the_extra_is_named(monkeypatch):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(batch_call, "import_module", missing)
    with pytest.raises(ConfigError) as caught:
        load_bindings("a batched copy")
    assert str(caught.value) == (
        "copy_engine: a batched copy needs cuda-bindings, which can't be imported (No module named "
        "'cuda.bindings.driver'); install kv-offload-cpu[cuda], or use 'cuda'"
    )


def test_where_the_device_finds_host_memory():
    assert mapped_address(Bindings(), 0x100) == 0x1100
    with pytest.raises(ConfigError) as caught:
        mapped_address(Bindings(error=2), 0x100)
    assert str(caught.value) == "copy_engine: the device can't reach host memory: error 2; use 'cuda'"
