"""Outputs of a real vLLM that schedules a step before it knows the tokens of the last one, with our connectors.

That is asynchronous scheduling, which vLLM itself does only on GPUs. In one process a step has run when it has
been submitted, so this is a test of what schedulers are told: of tokens that are counted and not yet known, of
requests that end or are preempted with a step in flight, of blocks that are freed after it. Run by the session
`vllm-long`.
"""

import pytest
from kv_vllm_pulls import ask, come_to_rest, engines_apart, flood, serve_a_flood, transfer
from kv_vllm_runs import (
    MULTI,
    OURS,
    Engine,
    history,
    history_alone,
    made_up,
    model,
    model_of_two_groups,
    with_extra,
)

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

FILES = {"spec_name": "FileOffloadingSpec", "spec_module_path": "kv_offload_file", "file_bytes_to_use": 64 << 20}
FAILING = with_extra(OURS, spec_name="Failing", spec_module_path="kv_vllm_specs")
CORRUPTING = with_extra(OURS, spec_name="Corrupting", spec_module_path="kv_vllm_specs")
FEW = {
    "ours": OURS,
    "files": {**OURS, "kv_connector_extra_config": {**FILES, "file_staging_bytes": 1 << 20}},
    "failing": FAILING,
    "multi": MULTI,
}
CONFIGURATIONS = {
    **FEW,
    "within the step": with_extra(OURS, sync_load_budget_bytes=1 << 30),
    "chunks": with_extra(OURS, blocks_per_chunk=2),
    "evicted": with_extra(OURS, store_when="evicted"),
}
MODELS = {
    "one group": {},
    "drafts": {
        "speculative_config": {"method": "draft_model", "model": str(model()), "num_speculative_tokens": 3}
    },
    "two groups": {"model": str(model_of_two_groups()), "num_gpu_blocks_override": 36},
}
CASES = [
    *(("one group", name) for name in CONFIGURATIONS),
    *((kind, name) for kind in ("drafts", "two groups") for name in FEW),
]


@pytest.fixture
def ahead(monkeypatch, in_process):
    """Engines are in this process and schedule ahead; their options."""
    from kv_vllm_run_ahead import run_ahead

    return run_ahead(monkeypatch)


@pytest.fixture(scope="module")
def reference(request):
    """What the options are, and what the history gives without a connector, one step at a time."""
    options = {**MODELS[request.param], "disable_hybrid_kv_cache_manager": False}
    return options, history_alone(**options)


def put_through(transfer, **options):
    """What the history gives, how many tokens were loaded, and how often a request was preempted."""
    engine = Engine(transfer, **options)
    assert type(engine.scheduler).__name__ == "AsyncScheduler"
    told = history(engine)
    getattr(engine.connector, "side", engine.connector).check()
    counts = [engine.metric(f"vllm:{name}") for name in ("external_prefix_cache_hits", "num_preemptions")]
    engine.close()
    return told, *counts


@pytest.mark.parametrize(("reference", "name"), CASES, indirect=["reference"])
def test_outputs_are_identical(reference, ahead, name, tmp_path):
    options, expected = reference
    transfer = CONFIGURATIONS[name]
    told, hits, preemptions = put_through(
        with_extra(transfer, file_dir=str(tmp_path)) if name == "files" else transfer, **options, **ahead
    )
    assert told == expected
    assert hits > 500 and preemptions > 0


@pytest.mark.parametrize("reference", ["one group"], indirect=True)
def test_one_wrong_byte_in_a_load_changes_them(reference, ahead):
    options, expected = reference
    told, hits, _ = put_through(CORRUPTING, **options, **ahead)
    assert hits > 500
    assert told["shared"] == expected["shared"]
    assert told["again"] != expected["again"]


def test_a_server_that_prefills_and_decodes_has_more_to_do_than_room():
    """In processes of their own, a worker does one step while the scheduler plans the next; some clients leave."""
    from kv_vllm_run_ahead import run_ahead

    prompts = [made_up(seed, 60 + seed) for seed in range(100, 160)]
    with pytest.MonkeyPatch.context() as patch, engines_apart() as engines:
        options = {"enable_prefix_caching": False, "num_gpu_blocks_override": 64}
        both = engines(transfer("kv_both", hold_seconds=600), **options, **run_ahead(patch))
        assert both.engine.vllm_config.scheduler_config.async_scheduling
        expected = [ask(both, prompt, 24)[0] for prompt in prompts]
        serve_a_flood(both, prompts, expected)
        found, _ = flood(both, prompts, stay=lambda place: place // 3 % 11 if place % 3 else None)
        assert all(told in (None, whole) for told, whole in zip(found, expected, strict=True))
        assert come_to_rest(both) < 60
