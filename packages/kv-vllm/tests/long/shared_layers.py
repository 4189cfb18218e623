"""Outputs of a model whose last layers read the KV of layers before them, and whose groups have unlike blocks.

A tiny Gemma 4: layers with a window have half the heads' size of the others, so vLLM gives them blocks of twice as
many tokens. Run by the session `vllm-long`.
"""

import os
from pathlib import Path
from tempfile import gettempdir

import pytest
from kv_vllm_predictions import check_prediction
from kv_vllm_runs import OURS, WINDOW, Engine, history, history_alone, with_extra

from kv_vllm.smoke.tiny_model import CONFIG, write_model

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("in_process")]

KINDS = ["sliding_attention", "full_attention"] * 3
SHARED = 2
"""Layers at the end without a KV cache of their own."""
HEADS = {"sliding_attention": 32, "full_attention": 64}
"""The size of a head."""
FILES = {"spec_name": "FileOffloadingSpec", "spec_module_path": "kv_offload_file", "file_bytes_to_use": 64 << 20}


def model_of_shared_layers():
    """The folder of the tiny Gemma 4."""
    own = {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "num_hidden_layers": len(KINDS),
        "layer_types": KINDS,
        "sliding_window": WINDOW,
        "num_kv_shared_layers": SHARED,
        "head_dim": HEADS["sliding_attention"],
        "global_head_dim": HEADS["full_attention"],
        "hidden_size_per_layer_input": 0,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "pad_token_id": 0,
    }
    config = {**CONFIG, **own}
    width, inner = config["hidden_size"], config["intermediate_size"]
    weights = {"model.embed_tokens.weight": (config["vocab_size"], width), "model.norm.weight": (width,)}
    for layer, kind in enumerate(KINDS):
        head = HEADS[kind]
        queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
        shapes = {"self_attn.q_proj": (queries, width), "self_attn.o_proj": (width, queries)}
        if layer < len(KINDS) - SHARED:
            shapes |= {"self_attn.k_proj": (keys, width), "self_attn.v_proj": (keys, width)}
            shapes |= {"self_attn.k_norm": (head,)}
        shapes |= {"mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width), "mlp.down_proj": (width, inner)}
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        shapes |= {"self_attn.q_norm": (head,), **{f"{name}_layernorm": (width,) for name in norms}}
        weights |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in shapes.items()}
        weights[f"model.layers.{layer}.layer_scalar"] = (1,)
    return write_model(Path(gettempdir(), f"kv-vllm-tiny-gemma4-{os.getuid()}"), config, weights)


OPTIONS = {"num_gpu_blocks_override": 44, "disable_hybrid_kv_cache_manager": False}


@pytest.fixture(scope="module")
def expected():
    """What the history gives without a connector."""
    return history_alone(model=str(model_of_shared_layers()), **OPTIONS)


def put_through(transfer):
    """What the history gives, and how many tokens were loaded."""
    engine = Engine(transfer, model=str(model_of_shared_layers()), **OPTIONS)
    groups = engine.scheduler.kv_cache_config.kv_cache_groups
    assert sorted(group.kv_cache_spec.block_size for group in groups) == [32, 64]
    told = history(engine)
    engine.connector.side.check()
    hits, preemptions = (
        engine.metric(f"vllm:{name}") for name in ("external_prefix_cache_hits", "num_preemptions")
    )
    engine.close()
    assert preemptions > 0
    return told, hits


@pytest.mark.parametrize("medium", ["memory", "files"])
def test_outputs_are_identical(expected, medium, tmp_path):
    files = {**OURS, "kv_connector_extra_config": {**FILES, "file_dir": str(tmp_path)}}
    told, hits = put_through(OURS if medium == "memory" else files)
    assert told == expected
    assert hits > 500


def test_one_wrong_byte_in_a_load_changes_them(expected):
    told, hits = put_through(with_extra(OURS, spec_name="Corrupting", spec_module_path="kv_vllm_specs"))
    assert hits > 500
    assert told["shared"] == expected["shared"]
    assert told["again"] != expected["again"]


def test_loads_are_those_of_the_testbed(tmp_path):
    """In a world with blocks of both sizes, whose engine keeps all of a window's blocks that a hit can need."""
    model = str(model_of_shared_layers())
    check_prediction(OURS, tmp_path, model=model, prefix_cache_retention_interval=None, **OPTIONS)
