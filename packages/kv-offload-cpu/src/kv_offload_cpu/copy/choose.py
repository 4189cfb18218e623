"""Which copy engine a worker gets: by its configuration, or else by where the KV caches are."""

from kv_api import CanonicalKVCaches, ConfigError
from kv_offload_cpu.checksum import ChecksummingEngine
from kv_offload_cpu.copy.descriptors import CopyPlan
from kv_offload_cpu.copy.engine import CopyEngine
from kv_offload_cpu.copy.host import HostCopyEngine
from kv_offload_cpu.copy.tensors import DeviceTensor, device_tensors
from kv_offload_cpu.memory import MappedMemory
from kv_offload_cpu.options import CopyEngineChoice, Options
from kv_offload_cpu.worker import HostMemory

_DEVICES = {"cpu": CopyEngineChoice.HOST, "cuda": CopyEngineChoice.CUDA}


def make_copy_engine(kv_caches: CanonicalKVCaches, memory: HostMemory, options: Options) -> CopyEngine:
    """The engine for these KV caches and this memory."""
    assert isinstance(memory, MappedMemory), (
        f"{type(memory).__name__}: whoever makes other memory makes the engine"
    )
    tensors = device_tensors(kv_caches)
    pages = [tensor.pages for tensor in tensors]
    plan = CopyPlan(pages, kv_caches.group_data_refs, memory.layout, memory.slot)
    engine: CopyEngine
    if choose(options.copy_engine, tensors) is CopyEngineChoice.HOST:
        engine = HostCopyEngine(plan, tensors, memory.address, options.copy_threads)
    else:
        from kv_offload_cpu.copy.cuda import CudaCopyEngine
        from kv_offload_cpu.copy.torch_driver import TorchDriver

        engine = CudaCopyEngine(plan, TorchDriver(tensors, memory.bytes, pin_memory=options.pin_memory))
    return ChecksummingEngine(engine, plan, memory.bytes, memory.sums) if options.checksum else engine


def choose(asked: CopyEngineChoice, tensors: list[DeviceTensor]) -> CopyEngineChoice:
    """What was asked for, if it can copy these tensors."""
    devices = sorted({tensor.device for tensor in tensors})
    if len(devices) != 1 or devices[0] not in _DEVICES:
        raise ConfigError(f"KV caches: in {devices} memory; there are copy engines for {sorted(_DEVICES)}")
    fitting = _DEVICES[devices[0]]
    if asked not in (CopyEngineChoice.AUTO, fitting):
        raise ConfigError(
            f"copy_engine: {asked.value!r} can't copy KV caches in {devices[0]} memory; use {fitting.value!r}"
        )
    return fitting
