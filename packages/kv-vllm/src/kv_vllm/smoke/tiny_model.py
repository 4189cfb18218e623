"""Makes a tiny Llama with random weights, large enough that its output depends on its KV cache.

Weights are drawn from N(0, 0.15) with a fixed seed. With smaller ones (vLLM's ``load_format="dummy"``) greedy
output doesn't change when every loaded block is zeroed, and a comparison of outputs would prove nothing.
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any, Final

VOCABULARY: Final = 1000
SCALE: Final = 0.15

CONFIG: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The weights of a Llama, by name."""
    width, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    layer = {
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, queries),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
    }
    names = {
        f"model.layers.{number}.{name}.weight": shape
        for number in range(config["num_hidden_layers"])
        for name, shape in layer.items()
    }
    tokens = (config["vocab_size"], width)
    return {"model.embed_tokens.weight": tokens, **names, "model.norm.weight": (width,), "lm_head.weight": tokens}


def make_model(folder: Path) -> Path:
    """Write the Llama and its tokenizer, unless they exist."""
    return write_model(folder, CONFIG, shapes(CONFIG))


def write_model(folder: Path, config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> Path:
    """Write a model with random weights of these shapes (vectors are ones), unless it exists."""
    import torch

    save_file = import_module("safetensors.torch").save_file
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    source = torch.Generator().manual_seed(7)
    weights = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=source) * SCALE
        for name, shape in shapes.items()
    }
    save_file(weights, str(folder / "model.safetensors"), {"format": "pt"})
    _write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _write_tokenizer(folder: Path) -> None:
    """A tokenizer of one token a byte, with names for the rest of the vocabulary."""
    tokenizers = import_module("tokenizers")
    byte_level = tokenizers.pre_tokenizers.ByteLevel

    letters = sorted(byte_level.alphabet())
    names = ["<unk>", "<s>", "</s>", *letters]
    names += [f"<{number}>" for number in range(len(names), VOCABULARY)]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    kinds = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kinds))
