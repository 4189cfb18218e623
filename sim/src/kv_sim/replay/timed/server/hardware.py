"""GPUs and models, as their makers describe them: the input of the timing model.

Rates are peaks; the settings say which share of them a server reaches. The gigabytes of a data sheet's memory are
taken as GiB, which is what a driver shows, within two percent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from kv_api import ConfigError
from kv_api.errors import unknown_name
from kv_sim.replay.kv_bytes.models import MODELS as KV_MODELS

GIB: Final = 1 << 30


@dataclass(frozen=True)
class Gpu:
    """A GPU's figures for the timing model, and vLLM's defaults for it."""

    name: str
    flops: float
    """Dense 16-bit floating-point operations a second."""
    hbm_bandwidth: float
    """Bytes a second."""
    memory_bytes: int
    link_bandwidth: float
    """Bytes a second between the GPU and host memory, in each direction."""
    step_tokens: int
    """vLLM's default of ``max_num_batched_tokens`` on it, in its API server."""
    running: int
    """vLLM's default of ``max_num_seqs`` on it, in its API server."""


@dataclass(frozen=True)
class Model:
    """One dense decoder with full attention in every layer."""

    name: str
    parameters: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_tokens: int
    """The longest context."""
    dtype_bytes: int = 2
    """Bytes of one weight, and of one number of a key or value."""

    def kv_bytes_per_token(self, tp_size: int) -> int:
        """Bytes of KV a token, over all ranks. Ranks beyond the number of KV heads hold copies."""
        return 2 * self.layers * max(self.kv_heads, tp_size) * self.head_dim * self.dtype_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights, over all ranks."""
        return self.parameters * self.dtype_bytes


_PCIE4, _PCIE5 = 32e9, 64e9

_GPUS: Final = (
    Gpu("A100-40", 312e12, 1.555e12, 40 * GIB, _PCIE4, 2048, 256),
    Gpu("A100-80", 312e12, 2.039e12, 80 * GIB, _PCIE4, 2048, 256),
    Gpu("H100", 989e12, 3.35e12, 80 * GIB, _PCIE5, 8192, 1024),
    Gpu("H100-PCIe", 756e12, 2.0e12, 80 * GIB, _PCIE5, 8192, 1024),
    Gpu("H200", 989e12, 4.8e12, 141 * GIB, _PCIE5, 8192, 1024),
    Gpu("GH200", 989e12, 4.0e12, 96 * GIB, 450e9, 8192, 1024),
    Gpu("B200", 2250e12, 8.0e12, 180 * GIB, _PCIE5, 16384, 1024),
    Gpu("L4", 121e12, 0.3e12, 24 * GIB, _PCIE4, 2048, 256),
    Gpu("L40S", 362e12, 0.864e12, 48 * GIB, _PCIE4, 2048, 256),
    Gpu("A10", 125e12, 0.6e12, 24 * GIB, _PCIE4, 2048, 256),
)
GPUS: Final[Mapping[str, Gpu]] = {gpu.name: gpu for gpu in _GPUS}


def _dense(
    name: str, parameters: int, heads: int, max_tokens: int, shape: str = "", dtype_bytes: int = 2
) -> Model:
    """A model with its KV cache from the table of KV caches, under its own name or another model's."""
    kv = KV_MODELS[shape or name.lower()]
    return Model(name, parameters, kv.layers, heads, kv.heads, kv.head_size, max_tokens, dtype_bytes)


_MODELS: Final = (
    _dense("Llama-3.1-8B", 8_030_261_248, 32, 131_072),
    _dense("Llama-3.1-70B", 70_553_706_496, 64, 131_072),
    _dense("Llama-3.1-70B-FP8", 70_553_706_496, 64, 131_072, shape="llama-3.1-70b", dtype_bytes=1),
    _dense("Llama-3.2-3B", 3_212_749_824, 24, 131_072),
    _dense("Qwen2.5-7B", 7_615_616_512, 28, 32_768),
    _dense("Qwen2.5-14B", 14_770_033_664, 40, 32_768),
    _dense("Qwen2.5-32B", 32_763_876_352, 40, 32_768),
    _dense("Qwen2.5-72B", 72_706_203_648, 64, 32_768),
    _dense("Qwen3-8B", 8_190_735_360, 32, 40_960),
    _dense("Qwen3-32B", 32_762_123_264, 64, 40_960),
    _dense("Mistral-7B", 7_248_023_552, 32, 32_768),
)
MODELS: Final[Mapping[str, Model]] = {model.name: model for model in _MODELS}

_T = TypeVar("_T")


def find_gpu(name: str) -> Gpu:
    """A GPU by name."""
    return _find("GPU", name, GPUS)


def find_model(name: str) -> Model:
    """A model by name."""
    if name.lower() in KV_MODELS.keys() - {known.lower() for known in MODELS} or Path(name).exists():
        known = ", ".join(sorted(MODELS))
        raise ConfigError(
            f"model {name!r}: only its KV cache size is known, not its parameters; models with both: {known}"
        )
    return _find("model", name, MODELS)


def _find(kind: str, name: str, known: Mapping[str, _T]) -> _T:
    for own, found in known.items():
        if own.lower() == name.lower():
            return found
    raise ConfigError(unknown_name(kind, name, known))
