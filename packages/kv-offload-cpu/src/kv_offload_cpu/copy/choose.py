"""Which copy engine a worker gets: by its configuration, or else by where the KV caches are."""

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache, partial
from typing import Any, Final

from kv_api import CanonicalKVCaches, ConfigError
from kv_offload_cpu.copy.checksum import ChecksummingEngine
from kv_offload_cpu.copy.compiled import Unavailable
from kv_offload_cpu.copy.cuda.engine import CudaCopyEngine, EachRange, Method, Stream
from kv_offload_cpu.copy.cuda.methods.batch import OneBatch
from kv_offload_cpu.copy.cuda.methods.gather import BULK_PROGRAMS, OneKernel
from kv_offload_cpu.copy.cuda.methods.page_table import Kernels
from kv_offload_cpu.copy.cuda.methods.staged import HALF_BYTES, TwoHalves
from kv_offload_cpu.copy.cuda.nvrtc import WrongDeviceError
from kv_offload_cpu.copy.cuda.table import STAND_INS, TABLE, ByTable, Row, fitting, is_odd
from kv_offload_cpu.copy.cuda.trial import TINY, Seconds, Shape, Trial, rows_of
from kv_offload_cpu.copy.engine import CopyEngine, HostMemory
from kv_offload_cpu.copy.host.engine import HostCopyEngine
from kv_offload_cpu.copy.host.memmove import BY_C
from kv_offload_cpu.copy.host.moves import Mover
from kv_offload_cpu.copy.host.streaming import find_streaming
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan
from kv_offload_cpu.copy.ranges.tensors import DeviceTensor, device_tensors
from kv_offload_cpu.memory import MappedMemory
from kv_offload_cpu.options import CopyEngineChoice, CopySubmission, Options

_log = logging.getLogger("kv_offload_cpu")


def by_buffer(driver: Any, stream: Stream, plan: CopyPlan, half_bytes: int = HALF_BYTES) -> Method:
    """The method that copies through a buffer on the device, with the kernels that the driver has for it."""
    return TwoHalves(driver, stream, plan, half_bytes, driver.stage_kernels)


METHODS: Final[dict[CopyEngineChoice, Callable[[Any, Stream, CopyPlan], Method]]] = {
    CopyEngineChoice.CUDA: EachRange,
    CopyEngineChoice.CUDA_BATCH: OneBatch,
    CopyEngineChoice.CUDA_GATHER: OneKernel,
    CopyEngineChoice.CUDA_BULK: partial(OneKernel, programs=BULK_PROGRAMS, kernels=Kernels.BULK),
    CopyEngineChoice.CUDA_STAGED: by_buffer,
}
"""The engines that copy on a CUDA device; the first one is the default."""

_TRIED: Final = tuple(choice for choice in METHODS if choice is not CopyEngineChoice.CUDA)
"""The methods that ``cuda-best`` tries."""

_FITTING = {
    "cpu": (CopyEngineChoice.HOST, CopyEngineChoice.HOST_STREAM),
    "cuda": (*METHODS, CopyEngineChoice.CUDA_BEST),
}
_NEED_BATCHES = (CopyEngineChoice.CUDA_BATCH, CopyEngineChoice.CUDA_STAGED)
_NEED_KERNELS = (CopyEngineChoice.CUDA_GATHER,)
_NEED_BULK = (CopyEngineChoice.CUDA_BULK,)
_NEED_STAGES = (CopyEngineChoice.CUDA_STAGED,)


def make_copy_engine(kv_caches: CanonicalKVCaches, memory: HostMemory, options: Options) -> CopyEngine:
    """The engine for these KV caches and this memory."""
    assert isinstance(memory, MappedMemory), (
        f"{type(memory).__name__}: a spec that makes other memory must make its copy engine, too"
    )
    tensors = device_tensors(kv_caches)
    pages = [tensor.pages for tensor in tensors]
    plan = CopyPlan(pages, kv_caches.group_data_refs, memory.layout, memory.slot, memory.address)
    choice = options.copy_engine
    device = fitting_device(choice, tensors)
    engine: CopyEngine
    if device == "cpu":
        engine = HostCopyEngine(plan, tensors, options.copy_threads, host_mover(choice))
    else:
        from kv_offload_cpu.copy.cuda.torch_driver import TorchDriver

        notes = options.copy_submission is CopySubmission.THREAD
        driver = TorchDriver(tensors, memory.bytes, pin_memory=options.pin_memory, notes=notes)
        try:
            engine = CudaCopyEngine(plan, driver, method_maker(driver, choice, plan))
        except BaseException:
            driver.shutdown()
            raise
    return ChecksummingEngine(engine, plan, memory.bytes, memory.sums) if options.checksum else engine


def fitting_device(asked: CopyEngineChoice, tensors: list[DeviceTensor]) -> str:
    """The one device that all tensors are on; a ConfigError if the engine asked for can't copy there.

    A rank has no tensors if other pipeline stages have all layers that are offloaded. It copies nothing.
    """
    if not tensors:
        return "cpu"
    devices = sorted({tensor.device for tensor in tensors})
    if len(devices) != 1 or devices[0] not in _FITTING:
        raise ConfigError(f"KV caches are in memory of {devices}; there are copy engines for {sorted(_FITTING)}")
    fitting = _FITTING[devices[0]]
    if asked is not CopyEngineChoice.AUTO and asked not in fitting:
        names = " or ".join(repr(choice.value) for choice in fitting)
        raise ConfigError(f"copy_engine: {asked.value!r} can't copy KV caches in {devices[0]} memory; use {names}")
    return devices[0]


def host_mover(choice: CopyEngineChoice) -> Mover:
    """The function that moves bytes in host memory; a ConfigError if it can't be had. AUTO streams if it can."""
    found = BY_C if choice is CopyEngineChoice.HOST else find_streaming()
    if not isinstance(found, Unavailable):
        return found
    if choice is CopyEngineChoice.HOST_STREAM:
        raise ConfigError(f"copy_engine: {choice.value!r} {found.reason}; {found.remedy}")
    _tell(found)
    return BY_C


@cache
def _tell(missing: Unavailable) -> None:
    """Log once in a process, not for each engine, why streaming isn't used."""
    _log.log(missing.level, "copy_engine: 'host', since 'host-stream' %s", missing.reason)


def method_maker(
    driver: Any, choice: CopyEngineChoice, plan: CopyPlan, table: Sequence[Row] = TABLE
) -> Callable[[Stream], Method]:
    """The function that makes a lane's method; a ConfigError if this machine lacks what the method needs.

    AUTO follows the rows of ``table`` whose methods pass a trial. CUDA_BEST follows rows measured in trials with
    ranges like those of ``plan``. A job that no row fits is copied range by range.
    """
    if choice in METHODS:
        _enable(driver, choice)
        return lambda stream: METHODS[choice](driver, stream, plan)
    if choice is CopyEngineChoice.CUDA_BEST:
        rows = _best_rows(driver, plan)
    else:
        passes = cache(lambda name: _tried(driver, choice, name, TINY) is not None)
        rows = []
        for row in fitting(table, plan):
            names = (row.method, STAND_INS.get(row.method))
            if found := next((name for name in names if name and passes(name)), None):
                rows.append(row._replace(method=found))
    used = [CopyEngineChoice.CUDA, *dict.fromkeys(row.method for row in rows)]
    return lambda stream: ByTable(rows, {name: METHODS[name](driver, stream, plan) for name in used}, plan.extent)


def _best_rows(driver: Any, plan: CopyPlan) -> list[Row]:
    """The table that trials give, of the methods that pass them and can copy the pages of ``plan``.

    A trial's pages are well aligned, so a trial doesn't show whether a method can copy those of ``plan``.
    """
    shape = Shape(plan.range_bytes, plan.num_ranges_a_page)
    choices = [choice for choice in _TRIED if not (choice in STAND_INS and is_odd(plan))]
    tried = {choice: _tried(driver, CopyEngineChoice.CUDA_BEST, choice, shape) for choice in choices}
    rows = rows_of({choice: seconds for choice, seconds in tried.items() if seconds is not None})
    for row in rows:
        size = "any size" if row.below_bytes == sys.maxsize else f"less than {row.below_bytes} bytes"
        told = (row.direction.value, row.least_bytes, size, row.method.value)
        _log.info("cuda-best: a %s of %d bytes or more in ranges of %s is %r", *told)
    return rows


def _tried(driver: Any, asked: CopyEngineChoice, choice: CopyEngineChoice, shape: Shape) -> Seconds | None:
    """The seconds of a method that wasn't asked for by name. None: it fails here, and the log says why."""
    try:
        if not driver.is_pinned:
            raise ConfigError("host memory is not pinned")
        _enable(driver, choice)
        if driver.mapped_shift and choice in (*_NEED_KERNELS, *_NEED_BULK, *_NEED_STAGES):
            raise ConfigError("the device sees host memory at other addresses than the host")
        stream = driver.new_stream()
        with closing(Trial(driver, stream, shape)) as trial:
            return trial.run(partial(METHODS[choice], driver, stream))
    except Exception as error:  # noqa: BLE001 - there are other methods
        level = logging.INFO if isinstance(error, WrongDeviceError) else logging.WARNING
        _log.log(level, "copy_engine: %r does without %r: %s", asked.value, choice.value, error)
        return None


def _enable(driver: Any, choice: CopyEngineChoice) -> None:
    """Have the driver find the functions and kernels that a method needs."""
    if choice in _NEED_BATCHES:
        driver.enable_batches()
    if choice in _NEED_KERNELS:
        driver.enable_kernels()
    if choice in _NEED_BULK:
        driver.enable_bulk()
    if choice in _NEED_STAGES:
        driver.enable_stages()
