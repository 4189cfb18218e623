"""Reads the attention of a model from the ``config.json`` beside its weights: the KV bytes of a token.

It works only if that is one number: every layer attends to all tokens, and keeps the same for each. Otherwise an
error names the reason, and the bytes of those layers that are of that kind.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kv_api import ConfigError
from kv_sim.replay.kv_bytes.kv_model import KVModel

FILE: Final = "config.json"

_TEXT: Final = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where a model of several media has its language model."""
_LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_QUERY_HEADS: Final = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "multi_query_group_num")
_HEAD_SIZE: Final = ("head_dim", "kv_channels", "attention_head_dim")
_WIDTH: Final = ("hidden_size", "n_embd", "d_model")

_FULL: Final = ("full_attention", "attention", "full")
_EXPANDED: Final = ("minicpm3", "youtu")
"""Models with a latent of which vLLM keeps K and V of each head all the same."""
_UNEVEN: Final = (
    "attention_chunk_size",
    "attn_layer_period",
    "attn_type_list",
    "block_configs",
    "compress_ratios",
    "full_attention_interval",
    "hybrid_override_pattern",
    "index_head_dim",
    "linear_attn_config",
    "mamba_d_state",
    "num_kv_shared_layers",
    "ssm_state_size",
    "state_size",
)
"""What tells of layers that keep something else than the others, or of each token something beside K and V."""


def read_model(path: Path) -> KVModel:
    """The model of a ``config.json``, or of the folder that it is in."""
    file = path / FILE if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--model: {str(file)!r} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"--model: {str(file)!r} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"--model: {str(file)!r}: expected an object, as in a {FILE}, got {config!r:.40}")
    try:
        return model_of(config)
    except ConfigError as error:
        raise ConfigError(
            f"--model: {str(file)!r}: {error}; give the KV bytes of a token with --bytes-per-token"
        ) from error


def model_of(config: Mapping[str, Any]) -> KVModel:
    """The same of what such a file has in it."""
    config = _text_of(config)
    if config.get("is_encoder_decoder"):
        raise ConfigError(
            "is_encoder_decoder: an encoder's KV belongs to no token of the decoder, so the bytes of a token "
            "can't be told"
        )
    model = KVModel(_required(config, _LAYERS), *_attention(config))
    _refuse_uneven(config, model)
    return model


def _text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that is of the language model."""
    while not any(name in config for name in _LAYERS):
        inner = next((config[name] for name in _TEXT if isinstance(config.get(name), dict)), None)
        if inner is None:
            break
        config = inner
    attention = config.get("attn_config")
    return {**config, **attention} if isinstance(attention, dict) else config


def _attention(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Heads, their size, and how many tensors."""
    if config.get("kv_lora_rank") is not None:
        if config.get("model_type") in _EXPANDED:
            raise ConfigError(f"model_type: for {config['model_type']} vLLM doesn't keep only the latent of MLA")
        return 1, _required(config, ("kv_lora_rank",)) + _required(config, ("qk_rope_head_dim",)), 1
    unknown = [name for name in config if {"kv", "heads"} <= {*name.split("_")} and name not in _KV_HEADS]
    if unknown:
        raise ConfigError(f"{unknown[0]}: the number of KV heads is read from {', '.join(_KV_HEADS)} only")
    query_heads = _required(config, _QUERY_HEADS)
    heads = _number(config, _KV_HEADS)
    if heads is None or (config.get("multi_query") and not config.get("new_decoder_architecture")):
        heads = 1 if config.get("multi_query") else query_heads
    size = _number(config, _HEAD_SIZE)
    if size is None:
        width = _required(config, _WIDTH)
        size, left = divmod(width, query_heads)
        if left:
            raise ConfigError(f"{width} numbers of a token are no multiple of {query_heads} heads")
    values = _number(config, ("v_head_dim",))
    if values not in (None, size):
        raise ConfigError(f"v_head_dim: a head keeps {size} numbers for K and {values} for V")
    return heads, size, 2


def _refuse_uneven(config: Mapping[str, Any], model: KVModel) -> None:
    """Refuse a model whose tokens don't take the same in each layer, whatever comes after them."""
    listed = config.get("layer_types") or config.get("layers_block_type") or []
    if not isinstance(listed, list):
        raise ConfigError(f"layer_types: expected a list, got {listed!r:.60}")
    kinds = Counter(map(str, listed))
    full = sum(kinds[kind] for kind in _FULL)
    if full < sum(kinds.values()):
        told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        taken = full * model.bytes_per_token("bf16") // model.layers
        hint = (
            f"; those that keep all take {taken:,} bytes in bf16"
            if full and "global_head_dim" not in config
            else ""
        )
        raise ConfigError(
            f"its layers are of several kinds ({told}), so the KV bytes of a token change as later tokens "
            f"follow{hint}"
        )
    if not kinds and config.get("sliding_window") and config.get("use_sliding_window", True):
        raise ConfigError(
            f"sliding_window: its layers drop KV after {config['sliding_window']} tokens, so the bytes of a "
            "token aren't constant"
        )
    found = next((name for name in _UNEVEN if config.get(name)), None)
    if found is not None:
        raise ConfigError(f"{found}: some of its layers keep something else than K and V of each token")


def _required(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    number = _number(config, names)
    if number is None:
        raise ConfigError(f"it has none of {', '.join(names)}" if len(names) > 1 else f"it has no {names[0]}")
    return number


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The first of some names that is there."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise ConfigError(f"{name}: expected a whole number of at least 1, got {value!r:.60}")
        return value
    return None
