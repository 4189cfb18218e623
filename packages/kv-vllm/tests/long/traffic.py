"""A real vLLM writes its traffic, and what the replay says of that trace is what the engine counted.

Run by ``vllm-long``.
"""

import json
import random

import pytest
from kv_vllm_runs import BLOCK, OURS, Engine, history, made_up, with_extra

from kv_sim.replay.caches.beside import BesideSums, ObservedSums
from kv_sim.replay.caches.cache import replay_cache
from kv_sim.replay.caches.outcome import Setup
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import TraceOptions
from kv_sim.replay.sizing.transfer_config import disk_bytes_for, disk_config

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

CHUNK_BYTES = 32768
"""Of a block of the tiny model in host memory."""


def tracing(path, behind=None):
    """The configuration of an engine that writes its traffic."""
    extra = {"trace_path": str(path)}
    if behind is not None:
        extra["connector"] = behind
    return {
        "kv_connector": "TraceConnector",
        "kv_connector_module_path": "kv_vllm",
        "kv_role": "kv_producer" if behind is None else "kv_both",
        "kv_connector_extra_config": extra,
    }


def prompts(seed):
    """Some that share a beginning of some blocks, with tails of any length; they come back now and then.

    None is of full blocks alone: vLLM computes the last token of a prompt anew, and with it that block.
    """
    source = random.Random(seed)
    trunks = [made_up(seed + number, BLOCK * 6) for number in range(3)]
    known = []
    for number in range(80):
        if known and source.random() < 0.3:
            yield source.choice(known)
            continue
        trunk = trunks[source.randrange(3)][: BLOCK * source.randrange(7)]
        known.append(trunk + made_up(1000 + number, BLOCK * source.randrange(3) + source.randrange(1, BLOCK)))
        yield known[-1]


def test_outputs_are_those_of_an_engine_without_it(tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    plain = Engine()
    expected = history(plain)
    plain.close()
    engine = Engine(tracing(tmp_path / "traffic.jsonl"))
    assert history(engine) == expected
    requests = engine._count
    engine.close()
    records = [json.loads(line) for line in (tmp_path / "traffic.jsonl").read_text().splitlines()]
    assert len(records) == requests
    assert {record["block_size"] for record in records} == {BLOCK}
    assert {(record["block_bytes"], record["gpu_blocks"]) for record in records} == {(CHUNK_BYTES, 23)}
    assert all(len(record["hash_ids"]) == record["input_length"] // BLOCK for record in records)
    assert {0, 24, 90} <= {record["output_length"] for record in records} <= {*range(25), 90}


def test_what_the_gpu_answers_is_what_the_replay_says(tmp_path, monkeypatch):
    """One after the other, and none leaves: in vLLM blocks that aren't full take room, too."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    engine, asked = Engine(tracing(tmp_path / "traffic.jsonl"), num_gpu_blocks_override=600), [*prompts(1)]
    for prompt in asked:
        engine.run([prompt], tokens=1)
    counted = engine.metric("vllm:prefix_cache_hits")
    engine.close()
    columns = open_trace(tmp_path / "traffic.jsonl")
    assert [request.input_tokens for request in columns] == [*map(len, asked)]
    outcome = replay_cache(columns, Setup(gpu_blocks=600))
    assert counted == BLOCK * int(outcome.gpu_hits.sum()) > 1000
    assert counted == columns.observed.cached.sum() and not columns.observed.loaded.any()
    assert BesideSums.of(columns, outcome).apart == 0, "it says of each request what the engine had"


def asked_in_every_way():
    """Prompts that share a beginning, and how each is sampled; the last one's prompt is to be judged, too."""
    trunk = made_up(7, BLOCK * 4)
    ways = [{}, {"n": 3}, {"salt": "a"}, {"salt": "a"}, {"salt": "b"}, {"max_tokens": 1}, {"logprobs": 2}, {}]
    ways += [{"n": 2, "salt": "b"}, {"prompt_logprobs": 1}]
    return [(trunk + made_up(20 + place, 5 + place), way) for place, way in enumerate(ways)]


def test_what_the_gpu_answers_to_requests_of_every_kind(tmp_path, monkeypatch):
    """Several answers to a prompt are requests of their own; who has a prompt judged reads nothing of it."""
    from vllm import SamplingParams

    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    engine = Engine(tracing(tmp_path / "traffic.jsonl"), num_gpu_blocks_override=600)
    for prompt, way in asked_in_every_way():
        named = {key: value for key, value in way.items() if key != "salt"}
        salted = {"cache_salt": way["salt"]} if "salt" in way else {}
        params = SamplingParams(**{"max_tokens": 2, "seed": 0, "detokenize": False, **named})
        engine.llm.generate({"prompt_token_ids": prompt, **salted}, params, use_tqdm=False)
    counted = engine.metric("vllm:prefix_cache_hits")
    engine.close()
    columns = open_trace(tmp_path / "traffic.jsonl")
    outcome = replay_cache(columns, Setup(gpu_blocks=600))
    *others, judged = zip(columns.observed.cached.tolist(), (BLOCK * outcome.gpu_hits).tolist(), strict=True)
    assert counted == sum(had for had, _ in others) == 9 * 4 * BLOCK
    assert len(columns) == 13 and all(had == said for had, said in others)
    assert judged == (0, 4 * BLOCK), "a replay can't know that it asks for that"


def let_copies_end():
    """On busy cores a store may go on beside the next request, whose chunks then find other ones pinned."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    side = get_kv_transfer_group().inner.side
    for one in [child.connector.side for child in side._children] if hasattr(side, "_children") else [side]:
        one.medium_worker.wait({*one.medium_worker._running})


def counted_and_written(file, behind):
    """The hits that an engine counts, its own cache emptied before each prompt, and the trace it wrote."""
    engine = Engine(tracing(file, behind))
    for prompt in prompts(2):
        engine.run([prompt], tokens=1)
        let_copies_end()
        assert engine.llm.reset_prefix_cache()
    counted = engine.metric("vllm:external_prefix_cache_hits")
    engine.close()
    return counted, open_trace(file, TraceOptions(format="recorded"))


@pytest.mark.parametrize("policy", ["lru", "s3fifo"])
def test_what_host_memory_answers_is_what_the_replay_says(tmp_path, monkeypatch, policy):
    """It is too small, so chunks leave; the GPU's cache is emptied before each request."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    behind = with_extra(OURS, cpu_bytes_to_use=20 * CHUNK_BYTES, eviction_policy=policy)
    counted, columns = counted_and_written(tmp_path / "traffic.jsonl", behind)
    small, large = (replay_cache(columns, Setup(policy=policy, capacity=size)) for size in (20, 1000))
    assert counted == BLOCK * int(small.cpu_hits.sum()) > 1000
    assert counted == columns.observed.loaded.sum() == columns.observed.cached.sum()
    assert (columns.engine.host_bytes, columns.engine.policy) == (20 * CHUNK_BYTES, policy)
    assert BesideSums.of(columns, small).apart == 0 < BesideSums.of(columns, large).apart
    assert small.cpu_hits.sum() < 0.95 * large.cpu_hits.sum()


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_what_a_disk_behind_host_memory_answers_is_what_the_replay_says(tmp_path, monkeypatch, policy):
    """Either is too small, and the configuration is what ``kv-sim size --disk`` prints."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    files = disk_config(str(tmp_path / "files"), disk_bytes_for(45, CHUNK_BYTES), 20 * CHUNK_BYTES, policy)
    counted, columns = counted_and_written(tmp_path / "traffic.jsonl", files)
    both, host, disk = (
        replay_cache(columns, Setup(policy, capacity, disk=room))
        for capacity, room in ((20, 45), (20, 0), (0, 45))
    )
    assert counted == BLOCK * int(both.loaded.sum()) > 1000
    assert (columns.engine.host_bytes, columns.engine.policy) == (20 * CHUNK_BYTES, policy)
    assert columns.engine.disk_bytes == disk_bytes_for(45, CHUNK_BYTES)
    assert BesideSums.of(columns, both).apart == 0 < BesideSums.of(columns, host).apart
    assert both.cpu_hits.any() and both.disk_hits.any()
    assert max(host.loaded.sum(), disk.loaded.sum()) <= both.loaded.sum()


def test_a_gpus_cache_and_host_memory_are_told_apart(tmp_path, monkeypatch):
    """Both are too small. Of what the engine had the trace says which part came from where."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    behind = with_extra(OURS, cpu_bytes_to_use=60 * CHUNK_BYTES)
    engine = Engine(tracing(tmp_path / "traffic.jsonl", behind))
    for prompt in prompts(3):
        engine.run([prompt], tokens=1)
        let_copies_end()
    in_gpu, loaded = (engine.metric(f"vllm:{name}prefix_cache_hits") for name in ("", "external_"))
    engine.close()
    columns = open_trace(tmp_path / "traffic.jsonl", TraceOptions(format="recorded"))
    found = ObservedSums.of(columns)
    assert (found.requests, found.split) == (80, 80)
    assert (found.cached - found.loaded, found.loaded) == (in_gpu, loaded)
    assert min(in_gpu, loaded) > 100
    gpu_blocks = columns.engine.gpu_tokens // BLOCK
    outcome = replay_cache(columns, Setup(capacity=60, gpu_blocks=gpu_blocks))
    assert BesideSums.of(columns, outcome).apart == 0, "all of the GPU's are in host memory, too"
