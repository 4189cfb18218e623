"""Which copy engine a worker gets: by its configuration, or else by where the KV caches are."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from logging import getLogger
from typing import Any, Final

from kv_api import CanonicalKVCaches, ConfigError
from kv_offload_cpu.checksum import ChecksummingEngine
from kv_offload_cpu.copy.cuda import CudaCopyEngine, EachRange, Method, Stream
from kv_offload_cpu.copy.cuda_batch import OneBatch, prove_batches
from kv_offload_cpu.copy.descriptors import CopyPlan
from kv_offload_cpu.copy.engine import CopyEngine
from kv_offload_cpu.copy.gather import OneKernel
from kv_offload_cpu.copy.host import HostCopyEngine
from kv_offload_cpu.copy.memmove import BY_C
from kv_offload_cpu.copy.moves import Mover
from kv_offload_cpu.copy.staged import TwoHalves
from kv_offload_cpu.copy.streaming import Unavailable, find_streaming
from kv_offload_cpu.copy.table import TABLE, ByTable, Row, known
from kv_offload_cpu.copy.tensors import DeviceTensor, device_tensors
from kv_offload_cpu.memory import MappedMemory
from kv_offload_cpu.options import CopyEngineChoice, Options
from kv_offload_cpu.worker import HostMemory

_log = getLogger("kv_offload_cpu")

METHODS: Final[dict[CopyEngineChoice, Callable[[Any, Stream], Method]]] = {
    CopyEngineChoice.CUDA: EachRange,
    CopyEngineChoice.CUDA_BATCH: OneBatch,
    CopyEngineChoice.CUDA_GATHER: OneKernel,
    CopyEngineChoice.CUDA_STAGED: TwoHalves,
}
"""What copies on a CUDA device; the first is for whoever has no wish."""

_FITTING = {"cpu": (CopyEngineChoice.HOST, CopyEngineChoice.HOST_STREAM), "cuda": tuple(METHODS)}
_NEED_BATCHES = (CopyEngineChoice.CUDA_BATCH, CopyEngineChoice.CUDA_STAGED)
_NEED_KERNELS = (CopyEngineChoice.CUDA_GATHER, CopyEngineChoice.CUDA_STAGED)


def make_copy_engine(kv_caches: CanonicalKVCaches, memory: HostMemory, options: Options) -> CopyEngine:
    """The engine for these KV caches and this memory."""
    assert isinstance(memory, MappedMemory), (
        f"{type(memory).__name__}: whoever makes other memory makes the engine"
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
        from kv_offload_cpu.copy.torch_driver import TorchDriver

        driver = TorchDriver(tensors, memory.bytes, pin_memory=options.pin_memory)
        try:
            engine = CudaCopyEngine(plan, driver, method_maker(driver, choice))
        except BaseException:
            driver.shutdown()
            raise
    return ChecksummingEngine(engine, plan, memory.bytes, memory.sums) if options.checksum else engine


def fitting_device(asked: CopyEngineChoice, tensors: list[DeviceTensor]) -> str:
    """The one device that all tensors are on, if what was asked for copies there."""
    devices = sorted({tensor.device for tensor in tensors})
    if len(devices) != 1 or devices[0] not in _FITTING:
        raise ConfigError(f"KV caches: in {devices} memory; there are copy engines for {sorted(_FITTING)}")
    fitting = _FITTING[devices[0]]
    if asked is not CopyEngineChoice.AUTO and asked not in fitting:
        names = " or ".join(repr(choice.value) for choice in fitting)
        raise ConfigError(f"copy_engine: {asked.value!r} can't copy KV caches in {devices[0]} memory; use {names}")
    return devices[0]


def host_mover(choice: CopyEngineChoice) -> Mover:
    """What moves bytes within host memory; a ConfigError where that can't be had. AUTO streams if it can."""
    found = BY_C if choice is CopyEngineChoice.HOST else find_streaming()
    if not isinstance(found, Unavailable):
        return found
    if choice is CopyEngineChoice.HOST_STREAM:
        raise ConfigError(f"copy_engine: {choice.value!r} {found.reason}; {found.remedy}")
    _tell(found)
    return BY_C


@cache
def _tell(missing: Unavailable) -> None:
    """Once in a process, not for each engine."""
    _log.log(missing.level, "copy_engine: 'host', since 'host-stream' %s", missing.reason)


def method_maker(
    driver: Any, choice: CopyEngineChoice, table: Sequence[Row] = TABLE
) -> Callable[[Stream], Method]:
    """What makes the method of a lane; a ConfigError where this machine lacks what it needs.

    AUTO follows the rows of ``table`` that are no guesses, as far as the machine has their methods, and where none
    fits a job it goes range by range.
    """
    if choice is not CopyEngineChoice.AUTO:
        _enable(driver, [choice])
        return lambda stream: METHODS[choice](driver, stream)
    wanted = {row.method for row in known(table)}
    used = [name for name in METHODS if name in wanted and _proves_itself(driver, name)]
    rows = [row for row in known(table) if row.method in used]
    used = [CopyEngineChoice.CUDA, *used]
    return lambda stream: ByTable(rows, {name: METHODS[name](driver, stream) for name in used})


def _proves_itself(driver: Any, choice: CopyEngineChoice) -> bool:
    """Whether a method that nobody asked for by name can be relied on here. The log says why not."""
    try:
        if not driver.is_pinned:
            raise ConfigError("host memory is not pinned")
        _enable(driver, [choice])
        if choice in _NEED_BATCHES:
            prove_batches(driver)
    except Exception as error:  # noqa: BLE001 - whatever the reason, there is a way without
        _log.warning("copy_engine: 'auto' does without %r: %s", choice.value, error)
        return False
    return True


def _enable(driver: Any, choices: Iterable[CopyEngineChoice]) -> None:
    for choice in choices:
        if choice in _NEED_BATCHES:
            driver.enable_batches()
        if choice in _NEED_KERNELS:
            driver.enable_kernels()
