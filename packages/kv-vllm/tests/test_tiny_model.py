"""The tiny model: its weights by name, and what is written of it."""

import json

import pytest

from kv_vllm.smoke.tiny_model import CONFIG, SCALE, VOCABULARY, make_model, shapes


def test_the_weights_of_a_llama():
    config = {
        "hidden_size": 12,
        "intermediate_size": 20,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 5,
        "num_hidden_layers": 2,
        "vocab_size": 7,
    }
    layer = {
        "self_attn.q_proj": (30, 12),
        "self_attn.k_proj": (10, 12),
        "self_attn.v_proj": (10, 12),
        "self_attn.o_proj": (12, 30),
        "mlp.gate_proj": (20, 12),
        "mlp.up_proj": (20, 12),
        "mlp.down_proj": (12, 20),
        "input_layernorm": (12,),
        "post_attention_layernorm": (12,),
    }
    assert shapes(config) == {
        "model.embed_tokens.weight": (7, 12),
        "model.norm.weight": (12,),
        "lm_head.weight": (7, 12),
        **{f"model.layers.{n}.{name}.weight": shape for n in (0, 1) for name, shape in layer.items()},
    }


@pytest.mark.vllm
def test_a_model_is_written_once_and_is_always_the_same(tmp_path):
    torch = pytest.importorskip("torch")
    load = pytest.importorskip("safetensors.torch").load_file
    folders = [make_model(tmp_path / name / "model") for name in "ab"]
    weights, again = (load(folder / "model.safetensors") for folder in folders)
    assert {name: tuple(weight.shape) for name, weight in weights.items()} == shapes(CONFIG)
    for name, weight in weights.items():
        assert torch.equal(weight, again[name])
        spread = 0 if weight.dim() == 1 else SCALE
        assert abs(float(weight.std()) - spread) < 0.01
        assert abs(float(weight.mean()) - (weight.dim() == 1)) < 0.01
    assert json.loads((folders[0] / "config.json").read_text()) == CONFIG
    (folders[0] / "model.safetensors").unlink()
    assert make_model(folders[0]) == folders[0]
    assert not (folders[0] / "model.safetensors").exists()


@pytest.mark.vllm
def test_its_tokenizer_has_a_token_for_each_byte(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    folder = make_model(tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode("a bé").ids
    assert (len(ids), tokenizer.decode(ids)) == (5, "a bé")
    assert tokenizer.get_vocab_size() == VOCABULARY
    assert [tokenizer.id_to_token(number) for number in (0, 1, 2, 259, VOCABULARY - 1)] == [
        "<unk>",
        "<s>",
        "</s>",
        "<259>",
        f"<{VOCABULARY - 1}>",
    ]
    assert json.loads((folder / "tokenizer_config.json").read_text()) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "eos_token": "</s>",
    }
