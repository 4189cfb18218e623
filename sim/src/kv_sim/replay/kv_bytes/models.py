"""Models that are known by name, and those whose configuration lies in a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kv_api import ConfigError
from kv_api.errors import unknown_name
from kv_sim.replay.kv_bytes.kv_model import DTYPES, KVModel
from kv_sim.replay.kv_bytes.model_config import FILE, read_model

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
"""Models in which every layer attends to everything, and keeps the same of each token."""


def find_model(name: str, dtype: str = "bf16") -> KVModel:
    """A model of the table, or one whose configuration lies in a file or folder of that name."""
    if dtype not in DTYPES:
        raise ConfigError(f"--kv-dtype: {unknown_name('dtype', dtype, DTYPES)}")
    model = MODELS.get(name.lower())
    if model is not None:
        return model
    if Path(name).exists():
        return read_model(Path(name))
    other = f"any other: the path of its {FILE}, or --bytes-per-token"
    raise ConfigError(f"--model: {unknown_name('model', name, MODELS, hint=other)}")
