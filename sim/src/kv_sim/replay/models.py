"""How many bytes of KV cache a token of common models takes, as a sum that can be checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kv_api import ConfigError
from kv_api.errors import unknown_name

DTYPES: Final[Mapping[str, int]] = {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}


@dataclass(frozen=True)
class KVModel:
    """The attention of a model, as its configuration file has it."""

    layers: int
    heads: int
    """KV heads, not query heads."""
    head_size: int
    tensors: int = 2
    """2: K and V. 1: a latent vector in their place (MLA)."""

    def bytes_per_token(self, dtype: str) -> int:
        """Of all layers, over all workers."""
        return self.layers * self.tensors * self.heads * self.head_size * DTYPES[dtype]

    def sum_shown(self, dtype: str) -> str:
        """The sum, in words."""
        each = "K and V" if self.tensors == 2 else "latent"
        size = self.bytes_per_token(dtype)
        return (
            f"{self.layers} layers × {self.tensors} ({each}) × {self.heads} KV heads × {self.head_size} "
            f"× {DTYPES[dtype]} bytes ({dtype}) = {size:,} bytes a token"
        )


MODELS: Final[Mapping[str, KVModel]] = {
    "llama-3.1-8b": KVModel(32, 8, 128),
    "llama-3.1-70b": KVModel(80, 8, 128),
    "llama-3.1-405b": KVModel(126, 8, 128),
    "llama-3.2-3b": KVModel(28, 8, 128),
    "mistral-7b": KVModel(32, 8, 128),
    "mixtral-8x7b": KVModel(32, 8, 128),
    "qwen2.5-7b": KVModel(28, 4, 128),
    "qwen2.5-14b": KVModel(48, 8, 128),
    "qwen2.5-32b": KVModel(64, 8, 128),
    "qwen2.5-72b": KVModel(80, 8, 128),
    "qwen3-8b": KVModel(36, 8, 128),
    "qwen3-32b": KVModel(64, 8, 128),
    "qwen3-30b-a3b": KVModel(48, 4, 128),
    "qwen3-235b-a22b": KVModel(94, 4, 128),
    "deepseek-v3": KVModel(61, 1, 576, tensors=1),
    "kimi-k2": KVModel(61, 1, 576, tensors=1),
}
"""Models in which every layer attends to everything; where some layers have windows, give --bytes-per-token."""


def find_model(name: str, dtype: str = "bf16") -> KVModel:
    """A model of the table."""
    if dtype not in DTYPES:
        raise ConfigError(f"--kv-dtype: {unknown_name('dtype', dtype, DTYPES)}")
    model = MODELS.get(name.lower())
    if model is None:
        raise ConfigError(f"--model: {unknown_name('model', name, MODELS)}; any other: --bytes-per-token")
    return model
