"""With a vLLM: what the testbed's replay reads in a model's configuration is what vLLM reads in it, or refused."""

import json

import pytest

from kv_api import ConfigError

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("a_vllm")]


def _read_by_vllm(config):
    import vllm.config  # noqa: F401 - comes first
    from vllm.transformers_utils.config import get_hf_text_config
    from vllm.transformers_utils.model_arch_config_convertor import (
        MODEL_ARCH_CONFIG_CONVERTORS,
        ModelArchConfigConvertorBase,
    )

    convertor = MODEL_ARCH_CONFIG_CONVERTORS.get(config.model_type, ModelArchConfigConvertorBase)
    read = convertor(config, get_hf_text_config(config)).convert()
    heads, tensors = (1, 1) if read.is_deepseek_mla else (read.total_num_kv_heads, 2)
    return read.total_num_hidden_layers, heads, read.head_size, tensors


def test_every_kind_of_language_model_is_read_as_vllm_reads_it_or_refused():
    """With what each kind's configuration has where nobody says otherwise."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from kv_sim.replay.kv_bytes.model_config import model_of

    alike, refused, different = [], [], {}
    for name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        try:
            config = CONFIG_MAPPING[name]()
            theirs = _read_by_vllm(config)
        except Exception:  # noqa: BLE001 - it can't be made without more, or is none of vLLM's
            continue
        try:
            model = model_of(json.loads(json.dumps(config.to_dict(), default=str)))
        except ConfigError:
            refused.append(name)
            continue
        ours = model.layers, model.heads, model.head_size, model.tensors
        if ours == theirs:
            alike.append(name)
        else:
            different[name] = ours, theirs
    assert not different
    assert {"llama", "qwen2", "qwen3", "qwen3_moe", "mixtral", "deepseek_v3", "falcon", "gpt2", "phi3"} <= {*alike}
    assert {"gemma3_text", "gpt_oss", "qwen3_next", "deepseek_v4"} <= {*refused}
    assert len(alike) > len(refused)
