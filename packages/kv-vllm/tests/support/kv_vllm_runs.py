"""A real vLLM on the tiny model, in this process, and the history of requests that every connector is put through.

A model is written once a machine, into the folder for temporary files.
"""

import os
import random
from pathlib import Path
from tempfile import gettempdir

import pytest

from kv_vllm.smoke.tiny_model import CONFIG, make_model, shapes, write_model

BLOCK = 32
KEPT = 1 << 26
OURS = {
    "kv_connector": "OffloadingConnector",
    "kv_connector_module_path": "kv_vllm",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"cpu_bytes_to_use": KEPT},
}
VLLMS = "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector"
SPEC = {
    **{key: value for key, value in OURS.items() if key != "kv_connector_module_path"},
    "kv_connector_extra_config": {
        "cpu_bytes_to_use": KEPT,
        "spec_name": "HostOffloadingSpec",
        "spec_module_path": "kv_vllm",
    },
}
CHILDREN = [
    # One with little room, so that the other has tokens that it hasn't.
    {**OURS, "kv_connector_extra_config": {"cpu_bytes_to_use": 12 * 32768, "name": "small"}},
    {**SPEC, "kv_connector_module_path": VLLMS},
]
MULTI = {
    **OURS,
    "kv_connector": "MultiConnector",
    "kv_connector_extra_config": {"connectors": CHILDREN, "load_policy": "longest"},
}


def with_extra(transfer, **extra):
    """A configuration with more in its extra config."""
    return {**transfer, "kv_connector_extra_config": {**transfer["kv_connector_extra_config"], **extra}}


def model():
    """The tiny model's folder."""
    return make_model(Path(gettempdir(), f"kv-vllm-tiny-model-{os.getuid()}"))


def model_of_other_weights():
    """The folder of a tiny model of the same shape: the same draws, in another order."""
    weights = dict(reversed(shapes(CONFIG).items()))
    return write_model(Path(gettempdir(), f"kv-vllm-tiny-other-{os.getuid()}"), CONFIG, weights)


def model_of_three_layers():
    """The folder of a tiny model whose layers two stages of a pipeline can't share evenly."""
    config = {**CONFIG, "num_hidden_layers": 3}
    return write_model(Path(gettempdir(), f"kv-vllm-tiny-three-{os.getuid()}"), config, shapes(config))


def make_room_between_stages(worker):
    """What vLLM's runner on a CPU makes only where it compiles a model: memory for what the stage before sends.

    Says which layers of each KV cache group this stage has.
    """
    from vllm.distributed.parallel_state import get_pp_group

    runner = worker.model_runner
    if not get_pp_group().is_first_rank:
        runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
            batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
        )
    return [len(group.layer_names) for group in runner.kv_cache_config.kv_cache_groups]


WINDOW = 64
"""How far the layers with a window of the model of two groups look back, in tokens."""


def model_of_two_groups():
    """The folder of a tiny Gemma 3: two layers with a sliding window, two without, in a KV cache group each."""
    config = {
        **{key: value for key, value in CONFIG.items() if key not in ("architectures", "model_type")},
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "pad_token_id": 0,
    }
    width, head = config["hidden_size"], config["head_dim"]
    norms = {"pre_feedforward_layernorm": width, "post_feedforward_layernorm": width}
    norms |= {"self_attn.q_norm": head, "self_attn.k_norm": head}
    weights = {name: shape for name, shape in shapes(config).items() if name != "lm_head.weight"}
    for layer in range(config["num_hidden_layers"]):
        weights |= {f"model.layers.{layer}.{name}.weight": (size,) for name, size in norms.items()}
    return write_model(Path(gettempdir(), f"kv-vllm-tiny-gemma-{os.getuid()}"), config, weights)


def model_of_states():
    """The folder of a tiny LFM2: two layers of short convolutions, which keep a state, and two of attention."""
    kinds = ["conv", "full_attention"] * 2
    config = {
        **{
            key: value
            for key, value in CONFIG.items()
            if key not in ("architectures", "model_type", "rms_norm_eps")
        },
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": 3,
        "conv_bias": False,
        "norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
    }
    width, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    config |= {"block_dim": width, "conv_dim": width, "conv_dim_out": width, "block_ff_dim": inner}
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    every = {"operator_norm": (width,), "ffn_norm": (width,), "feed_forward.w2": (width, inner)}
    every |= {f"feed_forward.{name}": (inner, width) for name in ("w1", "w3")}
    own = {
        "conv": {
            "conv.conv": (width, 1, config["conv_L_cache"]),
            "conv.in_proj": (3 * width, width),
            "conv.out_proj": (width, width),
        },
        "full_attention": {
            "self_attn.q_proj": (queries, width),
            "self_attn.k_proj": (keys, width),
            "self_attn.v_proj": (keys, width),
            "self_attn.out_proj": (width, queries),
            "self_attn.q_layernorm": (head,),
            "self_attn.k_layernorm": (head,),
        },
    }
    weights = {
        f"model.layers.{layer}.{name}.weight": shape
        for layer, kind in enumerate(kinds)
        for name, shape in {**every, **own[kind]}.items()
    }
    weights["model.embed_tokens.weight"] = (config["vocab_size"], width)
    weights["model.embedding_norm.weight"] = (width,)
    return write_model(Path(gettempdir(), f"kv-vllm-tiny-lfm2-{os.getuid()}"), config, weights)


def model_of_mla():
    """The folder of a tiny DeepSeek V2 without experts: latents, which tensor-parallel workers all hold."""
    own = {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_key_value_heads": CONFIG["num_attention_heads"],
        **{"kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
        **{"v_head_dim": 128, "first_k_dense_replace": CONFIG["num_hidden_layers"], "moe_layer_freq": 1},
        **{"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    }
    config = {**{key: value for key, value in CONFIG.items() if key != "head_dim"}, **own}
    width, heads, latent = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    rope, plain, value = config["qk_rope_head_dim"], config["qk_nope_head_dim"], config["v_head_dim"]
    attention = {
        "self_attn.q_proj": (heads * (plain + rope), width),
        "self_attn.kv_a_proj_with_mqa": (latent + rope, width),
        "self_attn.kv_a_layernorm": (latent,),
        "self_attn.kv_b_proj": (heads * (plain + value), latent),
        "self_attn.o_proj": (width, heads * value),
    }
    others = {name: shape for name, shape in shapes(CONFIG).items() if "self_attn" not in name}
    others |= {
        f"model.layers.{layer}.{name}.weight": shape
        for layer in range(config["num_hidden_layers"])
        for name, shape in attention.items()
    }
    return write_model(Path(gettempdir(), f"kv-vllm-tiny-deepseek-{os.getuid()}"), config, others)


class Engine:
    """One vLLM."""

    def __init__(self, transfer=None, **options):
        from vllm import LLM

        usual = {
            "model": str(model()),
            "dtype": "float32",
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "enable_prefix_caching": True,
            "block_size": BLOCK,
            "max_model_len": 512,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 256,
            "kv_cache_memory_bytes": 1 << 28,
            "num_gpu_blocks_override": 24,
            "disable_log_stats": False,
            "seed": 0,
        }
        self.llm = LLM(**{**usual, **options}, kv_transfer_config=transfer)
        self.engine = self.llm.llm_engine
        self._count = 0
        self.after_step = lambda: None

    @property
    def scheduler(self):
        """vLLM's scheduler."""
        return self.engine.engine_core.engine_core.scheduler

    @property
    def connector(self):
        """The scheduler's connector."""
        return self.scheduler.connector

    def run(self, prompts, tokens=24, abort=(), steps=0):
        """Tokens that the prompts get; those in ``abort`` go away after some steps, and have None."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        names = [f"r{self._count + place}" for place in range(len(prompts))]
        self._count += len(prompts)
        for name, prompt in zip(names, prompts, strict=True):
            self.engine.add_request(name, {"prompt_token_ids": prompt}, params)
        found = {}
        for _ in range(steps):
            self._step(found)
        if abort:
            self.engine.abort_request([names[place] for place in abort])
        while self.engine.has_unfinished_requests() or self._has_steps_in_flight():
            self._step(found)
        return [None if place in abort else found[name] for place, name in enumerate(names)]

    def _has_steps_in_flight(self):
        """Whether one that was scheduled ahead has no request left, and still keeps their blocks."""
        core = getattr(self.engine.engine_core, "engine_core", None)  # not in another process
        return bool(core and core.batch_queue)

    def _step(self, found):
        for output in self.engine.step():
            if output.finished:
                found[output.request_id] = list(output.outputs[0].token_ids)
        self.after_step()

    def metric(self, name):
        """The sum over a metric's labels."""
        return sum(m.value for m in self.llm.get_metrics() if m.name == name and hasattr(m, "value"))

    def close(self):
        """End it."""
        self.engine.engine_core.shutdown()


def history_alone(**options):
    """What the history gives without a connector, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        engine = Engine(**options)
        told = history(engine)
        engine.close()
    return told


def recorded(inner, path):
    """A configuration with a recorder before it."""
    return {
        **OURS,
        "kv_connector": "RecordingConnector",
        "kv_connector_extra_config": {"record_path": str(path), "connector": inner},
    }


def made_up(seed, length):
    """A prompt."""
    source = random.Random(seed)
    return [source.randrange(3, 1000) for _ in range(length)]


SHARED = made_up(0, 96)
FIRST = [SHARED + made_up(seed, length) for seed, length in ((1, 4), (2, 60), (3, 33), (4, 128))]


def second_turns(told):
    """The first turns, what they got, and more."""
    return [prompt + answer + made_up(5, 40) for prompt, answer in zip(FIRST, told["shared"], strict=True)]


def prefixes(engine):
    """Shared prefixes, second turns, resets of the engine's own cache; what each gives."""
    told = {"shared": engine.run(FIRST)}
    second = second_turns(told)
    told["turns"] = engine.run(second[:3])
    assert engine.llm.reset_prefix_cache()
    told["again"] = engine.run(FIRST)
    assert engine.llm.reset_prefix_cache()
    told["turns again"] = engine.run(second)
    return told


def history(engine):
    """The same, then aborts in several states, more than fits, and a reset of everything; what each gives."""
    told = prefixes(engine)
    first, second = FIRST, second_turns(told)
    for steps in (1, 2, 4):
        engine.llm.reset_prefix_cache()
        told[f"aborts {steps}"] = engine.run([*first, *second], abort=(0, 2, 5), steps=steps)
    long = [made_up(seed, 200 + seed) for seed in (10, 20, 30, 40)]
    told["long"] = engine.run(long, tokens=90)
    told["long again"] = engine.run([*reversed(long)], tokens=90)
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    told["at last"] = engine.run(first[:2])
    return told
