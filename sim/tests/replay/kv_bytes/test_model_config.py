"""What a token takes by a model's own ``config.json``."""

import json
from pathlib import Path

import pytest

from kv_api import ConfigError
from kv_sim.cli.main import main
from kv_sim.replay.kv_bytes.kv_model import DTYPES, KVModel
from kv_sim.replay.kv_bytes.model_config import model_of, read_model
from kv_sim.replay.kv_bytes.models import MODELS, find_model

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "num_hidden_layers": 61,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA, MODELS["llama-3.1-8b"]),
        ({**LLAMA, "head_dim": 96}, KVModel(32, 8, 96)),
        ({**LLAMA, "head_dim": None, "sliding_window": None}, KVModel(32, 8, 128)),
        ({**LLAMA, "num_key_value_heads": None}, KVModel(32, 32, 128)),
        ({**LLAMA, "v_head_dim": 128}, KVModel(32, 8, 128)),
        ({**LLAMA, "sliding_window": 4096, "use_sliding_window": False}, KVModel(32, 8, 128)),
        ({**LLAMA, "sliding_window": 4096, "layer_types": ["full_attention"] * 32}, KVModel(32, 8, 128)),
        (DEEPSEEK, MODELS["deepseek-v3"]),
        (DEEPSEEK, MODELS["kimi-k2"]),
        ({"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768}, KVModel(12, 12, 64)),
        ({"text_config": LLAMA, "vision_config": {"hidden_size": 8}}, KVModel(32, 8, 128)),
        ({"thinker_config": {"text_config": LLAMA}}, KVModel(32, 8, 128)),
        # Falcon 7B, 40B; StarCoder; ChatGLM; DBRX
        ({**LLAMA, "num_kv_heads": 71, "num_key_value_heads": None, "multi_query": True}, KVModel(32, 1, 128)),
        (
            {
                "num_hidden_layers": 60,
                "hidden_size": 8192,
                "num_attention_heads": 128,
                "num_kv_heads": 8,
                "multi_query": True,
                "new_decoder_architecture": True,
            },
            KVModel(60, 8, 64),
        ),
        ({"n_layer": 40, "n_head": 48, "n_embd": 6144, "multi_query": True}, KVModel(40, 1, 128)),
        (
            {
                "num_layers": 28,
                "num_attention_heads": 32,
                "multi_query_attention": True,
                "multi_query_group_num": 2,
                "kv_channels": 128,
            },
            KVModel(28, 2, 128),
        ),
        (
            {"n_layers": 40, "n_heads": 48, "d_model": 6144, "attn_config": {"kv_n_heads": 8, "clip_qkv": 8}},
            KVModel(40, 8, 128),
        ),
    ],
)
def test_what_is_kept_of_a_token(config: dict[str, object], expected: KVModel) -> None:
    assert model_of(config) == expected


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"vision_config": LLAMA}, "it has none of num_hidden_layers, n_layer, n_layers, num_layers"),
        (
            {**LLAMA, "num_hidden_layers": "32"},
            "num_hidden_layers: expected a whole number of at least 1, got '32'",
        ),
        (
            {**LLAMA, "num_hidden_layers": True},
            "num_hidden_layers: expected a whole number of at least 1, got True",
        ),
        (
            {**LLAMA, "num_key_value_heads": [8, 4]},
            "num_key_value_heads: expected a whole number of at least 1, got [8, 4]",
        ),
        ({**LLAMA, "num_key_value_heads": 0}, "num_key_value_heads: expected a whole number of at least 1, got 0"),
        ({**LLAMA, "num_attention_heads": None}, "it has none of num_attention_heads, n_head, n_heads"),
        ({**LLAMA, "hidden_size": 4097}, "4097 numbers of a token are no multiple of 32 heads"),
        (
            {**LLAMA, "kv_heads_of_it": 8},
            "kv_heads_of_it: the number of KV heads is read from num_key_value_heads, num_kv_heads, n_head_kv, "
            "kv_n_heads, multi_query_group_num only",
        ),
        ({**LLAMA, "layer_types": 5}, "layer_types: expected a list, got 5"),
        ({**LLAMA, "v_head_dim": 64}, "v_head_dim: a head keeps 128 numbers for K and 64 for V"),
        (
            {**LLAMA, "sliding_window": 4096},
            "sliding_window: its layers drop KV after 4096 tokens, so the bytes of a token aren't constant",
        ),
        (
            {**LLAMA, "is_encoder_decoder": True},
            "is_encoder_decoder: an encoder's KV belongs to no token of the decoder, so the bytes of a token "
            "can't be told",
        ),
        (
            {**LLAMA, "mamba_d_state": 16},
            "mamba_d_state: some of its layers keep something else than K and V of each token",
        ),
        (
            {**DEEPSEEK, "index_head_dim": 128},
            "index_head_dim: some of its layers keep something else than K and V of each token",
        ),
        ({**DEEPSEEK, "qk_rope_head_dim": None}, "it has no qk_rope_head_dim"),
        (
            {**DEEPSEEK, "model_type": "minicpm3"},
            "model_type: for minicpm3 vLLM doesn't keep only the latent of MLA",
        ),
        (
            {**LLAMA, "layer_types": ["full_attention", "sliding_attention"] * 16},
            "its layers are of several kinds (16 full_attention, 16 sliding_attention), so the KV bytes of a "
            "token change as later tokens follow; those that keep all take 65,536 bytes in bf16",
        ),
        (
            {**LLAMA, "layers_block_type": ["mamba"] * 31 + ["attention"]},
            "its layers are of several kinds (1 attention, 31 mamba), so the KV bytes of a token change as "
            "later tokens follow; those that keep all take 4,096 bytes in bf16",
        ),
    ],
)
def test_what_is_no_one_number_is_refused(config: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        model_of(config)
    assert str(raised.value) == problem


@pytest.mark.parametrize("more", [{"layer_types": ["sliding_attention"]}, {"global_head_dim": 512}])
def test_no_number_is_told_of_layers_that_keep_all_where_there_are_none_or_others(more: dict[str, object]) -> None:
    kinds = {"layer_types": ["full_attention", "sliding_attention"]}
    with pytest.raises(ConfigError, match=r"as later tokens follow$"):
        model_of({**LLAMA, **kinds, **more})


def test_a_file_or_the_folder_that_it_is_in(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA), encoding="utf-8")
    assert read_model(file) == read_model(tmp_path) == find_model(str(file)) == find_model(str(tmp_path))
    assert find_model(str(file)) == MODELS["llama-3.1-8b"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[1, 2]", ": expected an object, as in a config.json, got [1, 2]"),
        ("", " is no JSON: Expecting value: line 1 column 1 (char 0)"),
        (
            "{}",
            ": it has none of num_hidden_layers, n_layer, n_layers, num_layers; give the KV bytes of a token "
            "with --bytes-per-token",
        ),
    ],
)
def test_a_file_that_says_nothing_is_named(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        read_model(tmp_path)
    assert str(raised.value) == f"--model: {str(file)!r}{problem}"


def test_a_folder_without_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--model: '.*config\.json' can't be read: No such file or directory$"):
        read_model(tmp_path)


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK), encoding="utf-8")
    replay = ["replay", "mooncake-conversation", "--requests", "20", "--capacity", "64GiB"]
    assert main([*replay, "--model", str(tmp_path), "--kv-dtype", "fp8"]) == 0
    assert (
        "61 layers × 1 (latent) × 1 KV heads × 576 × 1 bytes (fp8) = 35,136 bytes a token"
        in capsys.readouterr().out
    )
    assert main([*replay, "--model", str(tmp_path), "--fidelity", "engine"]) == 2
    assert (
        "only its KV cache size is known, not its parameters; models with both: Llama-3.1"
        in capsys.readouterr().err
    )


def test_what_a_number_of_each_type_takes() -> None:
    one = KVModel(layers=1, heads=1, head_size=1, tensors=1)
    assert {dtype: one.bytes_per_token(dtype) for dtype in DTYPES} == {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
