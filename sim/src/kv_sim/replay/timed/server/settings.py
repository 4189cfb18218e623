"""``EngineSettings``: everything an engine replay depends on except the trace."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from math import inf
from typing import Any, Final

from kv_api import ConfigError
from kv_offload import StoreWhen
from kv_sim.replay.caches.policies import USUAL_POLICY
from kv_sim.replay.sizing.transfer_config import disk_config, host_config
from kv_sim.replay.timed.server.hardware import GIB, GPUS, MODELS, Gpu, Model

_MOST: Final = 2**31 - 1
_MOST_TIME: Final = 1e15


class Stepping(Enum):
    """Whether steps that change nothing but time are taken together. The answers are the same."""

    FUSED = "fused"
    SINGLE = "single"


class Contents(Enum):
    """Whether blocks have bytes."""

    IGNORED = "ignored"
    CHECKED = "checked"
    """Real memory, and the testbed's checkers. Steps are single then."""


@dataclass(frozen=True)
class EngineSettings:
    """The settings of one server. A setting that is None follows from the GPU, the model or the trace."""

    model: Model = MODELS["Llama-3.1-8B"]
    gpu: Gpu = GPUS["H100"]
    tp_size: int = 1
    flops_efficiency: float = 0.5
    hbm_efficiency: float = 0.8
    link_efficiency: float = 0.85
    step_microseconds: float = 1000.0
    idle_step_microseconds: float = 1000.0
    copy_microseconds: float = 0.5
    page_tokens: int | None = None
    """Tokens of a layer that are contiguous in GPU memory: the real server's block size. Each page is one copy."""
    gpu_memory_utilization: float = 0.92
    gpu_blocks: int | None = None
    block_tokens: int | None = None
    max_step_tokens: int | None = None
    max_running: int | None = None
    max_model_len: int | None = None
    cpu_bytes_to_use: int = 64 * GIB
    """Host memory of the default connector, over all ranks. It may be 0 if there is a disk."""
    eviction_policy: str = USUAL_POLICY
    disk_bytes_to_use: int = 0
    """Files of the default connector, over all ranks, behind host memory; 0: none."""
    disk_folder: str = "/mnt/nvme/kv"
    """The folder of the files on the server. The replay doesn't touch it."""
    disk_store_threshold: int = 0
    """A block is written to a file when it is offered this many times; 0 and 1: at once."""
    disk_shared: bool = False
    """Whether several servers are on one machine, and read each other's files of the default connector."""
    store_when: StoreWhen = StoreWhen.COMPUTED
    """When the default connector stores a block: once it is computed, or when the GPU is about to evict it."""
    connector: Mapping[str, Any] | None = None
    """A ``--kv-transfer-config`` in place of the default connector."""
    disk_read_bandwidth: float = 6.8e9
    """Bytes a second, of all ranks together, and of all servers that share a disk."""
    disk_write_bandwidth: float = 4e9
    disk_microseconds: float = 25.0
    """Added for each chunk that is read or written, beside the time of its bytes; an average over all threads."""
    prefill_servers: int | None = None
    """How many of several servers compute prompts for the others, which pull them. None or 0: each does both."""
    network_bandwidth: float = 50e9
    """Bytes a second between a GPU and other servers, each way; pulls reach ``link_efficiency`` of it."""
    pull_microseconds: float = 100.0
    """Added for each pull, beside the time of its bytes."""
    stepping: Stepping = Stepping.FUSED
    contents: Contents = Contents.IGNORED
    arrival_scale: float = 1.0
    """A factor for the time between arrivals: 2 halves the load."""
    limit: int | None = None
    """Replay only the first so many requests."""

    def __post_init__(self) -> None:
        for name, (own, such) in _OBJECTS.items():
            if not isinstance(getattr(self, name), own):
                raise ConfigError(f"{name}: expected {such}, got {getattr(self, name)!r}")
        for name in ("flops_efficiency", "hbm_efficiency", "link_efficiency", "gpu_memory_utilization"):
            _check_share(name, getattr(self, name))
        for name in _TIMES:
            _check_time(name, getattr(self, name))
        for name in ("disk_read_bandwidth", "disk_write_bandwidth", "network_bandwidth"):
            _check_rate(name, getattr(self, name))
        for name, kind in _WHOLE.items():
            value = getattr(self, name)
            if value is None and kind is not int:
                continue
            is_alone = not self.disk_bytes_to_use and self.prefill_servers is None
            least = 0 if name in _MAY_BE_NONE or (name == "cpu_bytes_to_use" and not is_alone) else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"{name}: expected a whole number of at least {least}, got {value!r}")
            if value > _MOST and name not in _BYTES:
                raise ConfigError(f"{name}: expected at most {_MOST}, got {value}")
        _check_time("arrival_scale", self.arrival_scale)
        if self.idle_step_microseconds == 0:
            raise ConfigError("idle_step_microseconds: expected more than 0, or waiting for a copy takes no time")
        if max(self.tp_size, self.model.kv_heads) % min(self.tp_size, self.model.kv_heads):
            raise ConfigError(
                f"tp_size: got {self.tp_size}, which neither divides the {self.model.kv_heads} KV heads of "
                f"{self.model.name} nor is a multiple of them"
            )

    def transfer_config(self) -> dict[str, Any]:
        """The ``--kv-transfer-config`` of the server, as an operator would paste it; empty: no connector."""
        if self.connector is not None:
            return dict(self.connector)
        if not self.cpu_bytes_to_use and not self.disk_bytes_to_use:
            return {}
        if not self.disk_bytes_to_use:
            return host_config(self.cpu_bytes_to_use, self.eviction_policy, store_when=self.store_when)
        return disk_config(
            self.disk_folder,
            self.disk_bytes_to_use,
            self.cpu_bytes_to_use,
            self.eviction_policy,
            store_threshold=self.disk_store_threshold,
            store_when=self.store_when,
            shared=self.disk_shared,
        )


_OBJECTS: Final[Mapping[str, tuple[type, str]]] = {
    "model": (Model, "a Model, such as MODELS['Llama-3.1-8B']"),
    "gpu": (Gpu, "a Gpu, such as GPUS['H100']"),
    "stepping": (Stepping, "Stepping.FUSED or Stepping.SINGLE"),
    "contents": (Contents, "Contents.IGNORED or Contents.CHECKED"),
    "store_when": (StoreWhen, "StoreWhen.COMPUTED or StoreWhen.EVICTED"),
}
"""Settings that are objects: their type, and how to write one in an error."""
_TIMES: Final = tuple(f.name for f in fields(EngineSettings) if f.name.endswith("microseconds"))
_WHOLE: Final = {f.name: f.type for f in fields(EngineSettings) if f.type in (int, int | None)}
_BYTES: Final = ("cpu_bytes_to_use", "disk_bytes_to_use")
_MAY_BE_NONE: Final = ("disk_bytes_to_use", "disk_store_threshold", "prefill_servers")


def _check_share(name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise ConfigError(f"{name}: expected a number above 0 and up to 1, got {value!r}")


def _check_rate(name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < inf:
        raise ConfigError(f"{name}: expected a number above 0, got {value!r}")


def _check_time(name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < inf:
        raise ConfigError(f"{name}: expected a number of at least 0, got {value!r}")
    if value > _MOST_TIME:
        raise ConfigError(f"{name}: expected at most {_MOST_TIME:g}, got {value:g}")
