"""Weights that change while a real vLLM runs: reloaded ones, and those of adapters (LoRA). Run by ``vllm-long``.

vLLM tells a connector nothing of new weights. Whoever brings them resets what was computed from the old ones, also
what the connector has.
"""

import json

import pytest
from kv_vllm_runs import FIRST, MULTI, OURS, Engine, made_up, model_of_other_weights, with_extra

from kv_vllm.smoke.tiny_model import CONFIG

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("in_process")]

OTHER = [*FIRST, made_up(7, 150)]


def behind_memory(folder):
    """Files behind host memory."""
    own = {"file_dir": str(folder), "file_bytes_to_use": 64 << 20, "file_staging_bytes": 1 << 20, "name": "files"}
    spec = {"spec_name": "FileOffloadingSpec", "spec_module_path": "kv_offload_file"}
    files = {**OURS, "kv_connector_extra_config": {**spec, **own}}
    return with_extra(MULTI, connectors=[with_extra(OURS, cpu_bytes_to_use=12 * 32768), files])


def hits(engine):
    return engine.metric("vllm:external_prefix_cache_hits")


def twice(engine):
    """What prompts give, computed and then loaded."""
    told = [engine.run(OTHER)]
    assert engine.llm.reset_prefix_cache()
    return [*told, engine.run(OTHER)]


@pytest.mark.parametrize("has_files", [False, True])
def test_after_a_reset_of_the_connector_no_text_is_of_the_old_weights(tmp_path, has_files):
    new = str(model_of_other_weights())
    alone = Engine(model=new)
    expected = alone.run(OTHER)
    alone.close()
    engine = Engine(behind_memory(tmp_path) if has_files else OURS)
    old, _ = twice(engine)
    engine.llm.collective_rpc("reload_weights", kwargs={"weights_path": new})
    assert engine.llm.reset_prefix_cache()
    mixed = engine.run(OTHER)
    assert mixed not in (old, expected)
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    before = hits(engine)
    assert engine.run(OTHER) == expected
    assert engine.llm.reset_prefix_cache()
    assert engine.run(OTHER) == expected
    assert hits(engine) > before
    (engine.connector if has_files else engine.connector.side).check()
    engine.close()


def adapter(folder, seed):
    """An adapter of the tiny model, large enough to change what it says."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    source = torch.Generator().manual_seed(seed)
    width, keys = CONFIG["hidden_size"], CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    weights = {}
    for layer in range(CONFIG["num_hidden_layers"]):
        for name, size in (("q_proj", width), ("k_proj", keys), ("v_proj", keys)):
            of = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{of}.lora_A.weight"] = torch.randn((8, width), generator=source) * 0.2
            weights[f"{of}.lora_B.weight"] = torch.randn((size, 8), generator=source) * 0.2
    save_file(weights, str(folder / "adapter_model.safetensors"))
    modules = ["q_proj", "k_proj", "v_proj"]
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 8, "target_modules": modules}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "bias": "none"}))
    return str(folder)


def with_adapters(engine, adapters):
    """What the same prompts give with each adapter, all at once, three times.

    None comes without: among others vLLM on a CPU gives it the last adapter.
    """
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    requests = [LoRARequest(name, number, path) for number, (name, path) in enumerate(adapters, 1)]
    sampling = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": prompt} for prompt in FIRST for _ in requests]
    told = []
    for _ in range(3):
        outputs = engine.llm.generate(prompts, sampling, lora_request=requests * len(FIRST), use_tqdm=False)
        told.append([list(output.outputs[0].token_ids) for output in outputs])
        engine.llm.reset_prefix_cache()
    return told


def test_each_adapter_has_a_cache_of_its_own(tmp_path):
    adapters = [(name, adapter(tmp_path / name, seed)) for seed, name in enumerate(("one", "two"))]
    options = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    alone = Engine(**options)
    expected = with_adapters(alone, adapters)
    alone.close()
    assert expected[0][0] != expected[0][1]
    engine = Engine(behind_memory(tmp_path / "files"), **options)
    assert with_adapters(engine, adapters) == expected
    assert hits(engine) > 500
    engine.connector.check()
    engine.close()
