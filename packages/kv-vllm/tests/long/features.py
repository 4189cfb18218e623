"""What servers use beside a connector: outputs are those without one, and more is loaded than nothing.

Run by the session `vllm-long`. Two features at a time would be more; one at a time is what fails readably.
"""

import pytest
from kv_vllm_runs import FIRST, OURS, SHARED, Engine, made_up, model, prefixes, with_extra

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("in_process")]

FEW_BLOCKS = {"num_gpu_blocks_override": 18}
ITSELF = {"method": "draft_model", "model": str(model()), "num_speculative_tokens": 3}
"""The model drafts for itself: its drafts are right as long as the draft model's layers have the right KV, too."""
SALTED = [SHARED + made_up(1, 40)] * 4

SAMPLED = {
    "without a prefix cache": ({"enable_prefix_caching": False}, {}),
    "several answers": ({}, {"n": 3, "temperature": 1.0, "seed": 5}),
    "logprobs of prompts": ({}, {"prompt_logprobs": 2}),
    "small chunks": ({"max_num_batched_tokens": 64, "long_prefill_token_threshold": 48}, {}),
    "blocks of 64 tokens": ({"block_size": 64, "num_gpu_blocks_override": 14}, {}),
    "drafts of a model": ({"speculative_config": ITSELF}, {}),
    "a cache of FP8": ({"kv_cache_dtype": "fp8"}, {}),
    "priorities": ({"scheduling_policy": "priority", **FEW_BLOCKS}, {"max_tokens": 80}),
}
"""Options of the engine, and how is sampled."""


def files_behind_memory(folder):
    """Host memory that is too small, and files behind it."""
    own = {"file_dir": str(folder), "file_bytes_to_use": 64 << 20, "file_staging_bytes": 1 << 20, "name": "files"}
    files = {**OURS, "kv_connector_extra_config": {"spec_name": "FileOffloadingSpec", **own}}
    children = [
        with_extra(OURS, cpu_bytes_to_use=12 * 32768),
        with_extra(files, spec_module_path="kv_offload_file"),
    ]
    transfer = {"connectors": children, "load_policy": "longest"}
    return {**OURS, "kv_connector": "MultiConnector", "kv_connector_extra_config": transfer}


def told_by(output):
    """Everything that somebody is told of a request."""
    answers = [tuple(one.token_ids) for one in output.outputs]
    logprobs = output.prompt_logprobs and [
        one and {token: round(found.logprob, 3) for token, found in one.items()} for one in output.prompt_logprobs
    ]
    return answers, logprobs


def sampled(engine, sampling, prompts=FIRST, priorities=False):
    """What the prompts give, three times, with vLLM's own cache emptied between."""
    from vllm import SamplingParams

    usual = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "detokenize": False}
    told = []
    for _ in range(3):
        outputs = engine.llm.generate(
            [one if isinstance(one, dict) else {"prompt_token_ids": one} for one in prompts],
            SamplingParams(**{**usual, **sampling}),
            priority=[len(prompts) - place for place in range(len(prompts))] if priorities else None,
            use_tqdm=False,
        )
        told.append([told_by(output) for output in outputs])
        engine.llm.reset_prefix_cache()
    return told


def both(folder, options, run):
    """What a run gives without a connector, what it gives with one, and what that loaded and preempted."""
    engine = Engine(**options)
    expected = run(engine)
    engine.close()
    engine = Engine(files_behind_memory(folder), **options)
    told = run(engine)
    engine.connector.check()
    counts = [engine.metric(f"vllm:{name}") for name in ("external_prefix_cache_hits", "num_preemptions")]
    engine.close()
    return expected, told, counts


def knows_fp8():
    """Whether this processor has what vLLM asks for; elsewhere no engine begins."""
    import torch

    return torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported()


@pytest.mark.parametrize("feature", SAMPLED)
def test_outputs_are_identical(tmp_path, feature):
    options, sampling = SAMPLED[feature]
    if options.get("kv_cache_dtype") == "fp8" and not knows_fp8():
        pytest.skip("vLLM has no cache of FP8 on a processor with neither AVX-512 nor AMX")

    def run(engine):
        return sampled(engine, sampling, [*FIRST, made_up(7, 150)], feature == "priorities")

    expected, told, (hits, preemptions) = both(tmp_path, options, run)
    assert told == expected
    # vLLM reads no cache where the logprobs of a whole prompt are wanted.
    assert (hits > 500) != (feature == "logprobs of prompts")
    assert (preemptions > 0) == (feature == "priorities")


def test_a_salt_sets_apart(tmp_path):
    def run(engine):
        salted = [{"prompt_token_ids": one, "cache_salt": "ab"[place % 2]} for place, one in enumerate(SALTED)]
        return sampled(engine, {}, salted)

    expected, told, (hits, _) = both(tmp_path, {}, run)
    assert told == expected
    engine = Engine(files_behind_memory(tmp_path))
    sampled(engine, {}, [{"prompt_token_ids": SALTED[0], "cache_salt": "c"}][:1])
    fresh = engine.metric("vllm:external_prefix_cache_hits")
    engine.close()
    assert hits > 500 and fresh == 2 * 128  # its own second and third time; nothing of the others' in the files


def test_prompts_of_embeddings(tmp_path):
    import torch

    weights = torch.randn((1000, 128), generator=torch.Generator().manual_seed(3)) * 0.15
    prompts = [{"prompt_embeds": weights[torch.tensor(prompt)]} for prompt in [*FIRST, made_up(7, 150)]]
    expected, told, (hits, _) = both(
        tmp_path, {"enable_prompt_embeds": True}, lambda engine: sampled(engine, {}, prompts)
    )
    assert told == expected and hits > 500


def test_embeddings_of_prompts(tmp_path):
    def run(engine):
        told = []
        for _ in range(3):
            outputs = engine.llm.embed([{"prompt_token_ids": one} for one in FIRST], use_tqdm=False)
            told.append([[round(value, 4) for value in output.outputs.embedding] for output in outputs])
            engine.llm.reset_prefix_cache()
        return told

    options = {"runner": "pooling", "convert": "embed", "skip_tokenizer_init": False}
    expected, told, (hits, _) = both(tmp_path, options, run)
    assert told == expected and hits > 500


def test_the_layers_of_a_draft_model_are_loaded_too():
    """With other bytes there the texts are the same, and fewer drafts are right."""
    told, shares = [], []
    for spec in ("CPUOffloadingSpec", "CorruptingDrafts"):
        named = {"spec_name": spec, **({"spec_module_path": "kv_vllm_specs"} if told else {})}
        engine = Engine(with_extra(OURS, **named), speculative_config=ITSELF)
        told.append(prefixes(engine))
        drafted, accepted = (
            engine.metric(f"vllm:spec_decode_num_{name}_tokens") for name in ("draft", "accepted")
        )
        shares.append(accepted / drafted)
        assert engine.metric("vllm:external_prefix_cache_hits") > 500
        engine.close()
    assert told[0] == told[1]
    # After a load vLLM pads a step with drafts that are none, and counts them.
    assert shares[0] > 0.95 > 0.8 > shares[1], shares


def test_resets_with_running_requests(tmp_path):
    """vLLM refuses one while a request waits for its load; what it did until then harms nobody."""
    refused = []

    def run(engine):
        steps = iter(range(10_000))

        def reset():
            if (step := next(steps)) % 5:
                return
            try:
                engine.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=step % 3 == 0)
            except RuntimeError:
                refused.append(step)

        engine.after_step = reset
        told = [engine.run(FIRST, tokens=40) for _ in range(6)]
        engine.after_step = lambda: None
        return told

    expected, told, (hits, preemptions) = both(tmp_path, {}, run)
    assert told == expected
    assert hits > 0 and preemptions > 50 and refused


def test_what_is_stored_when_it_is_evicted():
    """Prompts that take turns in a GPU cache with room for half of them. A reset would lose what is there."""
    prompts = [made_up(20 + number, 300) for number in range(8)]
    options = {"num_gpu_blocks_override": 40, "max_model_len": 512}

    def run(engine):
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, detokenize=False)
        asked = [{"prompt_token_ids": prompt} for _ in range(3) for prompt in prompts]
        return [told_by(engine.llm.generate([one], params, use_tqdm=False)[0]) for one in asked]

    engine = Engine(**options)
    expected = run(engine)
    engine.close()
    engine = Engine(with_extra(OURS, store_when="evicted", cpu_bytes_to_use=8 << 20), **options)
    assert run(engine) == expected
    engine.connector.side.check()
    assert engine.metric("vllm:external_prefix_cache_hits") > len(prompts) * 256
    engine.close()
