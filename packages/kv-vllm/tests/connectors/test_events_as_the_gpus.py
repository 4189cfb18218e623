"""A chunk is told of as vLLM tells of the same blocks on its GPU: a router that computes hashes finds both."""

import pytest
from kv_vllm_configs import transfer_of

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("a_vllm")]

FACTS = ("parent_block_hash", "token_ids", "block_size", "lora_id", "lora_name", "extra_keys")


def facts_by_hash(events, medium):
    """What is told of each block that is stored there."""
    found = {}
    for event in events:
        if event.medium != medium:
            continue
        extras = event.extra_keys or [None] * len(event.block_hashes)
        parents = [event.parent_block_hash, *event.block_hashes]
        size = event.block_size
        for place, name in enumerate(event.block_hashes):
            tokens = event.token_ids[place * size : (place + 1) * size]
            found[name] = (parents[place], tokens, size, event.lora_id, event.lora_name, extras[place])
    return found


@pytest.mark.parametrize("identity", [(None, None), ("s", None), (None, "l"), ("s", "l")])
@pytest.mark.parametrize("blocks_per_chunk", [1, 2])
def test_who_asks_by_salt_or_adapter(identity, blocks_per_chunk):
    """Of a whole life in vLLM's scheduler, with events of the GPU's blocks and of chunks side by side."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

    from kv_offload import OffloadingWorkerMetadata
    from kv_sim.config import WorldConfig
    from kv_vllm.vllm_scheduler import make_request, make_scheduler
    from kv_vllm.vllm_world import vllm_config

    world = WorldConfig()
    extra = {
        "cpu_bytes_to_use": 1 << 20,
        "hold_blocks": "never",
        "blocks_per_chunk": blocks_per_chunk,
        "self_describing_kv_events": True,
    }
    config = vllm_config(world, transfer_of("OffloadingConnector", extra))
    scheduler = make_scheduler(world, config, log_stats=False)
    told, published = [], scheduler.kv_event_publisher
    published.publish = lambda batch: told.extend(batch.events)
    prompt = list(range(4 * world.block_size + 1))
    request = make_request("r", prompt, SamplingParams(max_tokens=9, ignore_eos=True), world.block_size, identity)
    scheduler.add_request(request)
    ended: dict[int, int] = {}
    for _ in range(8):
        output = scheduler.schedule()
        sampled = [[7] if request.num_computed_tokens >= request.num_tokens else []]
        meta = OffloadingWorkerMetadata(ended)
        result = ModelRunnerOutput(
            req_ids=["r"],
            req_id_to_index={"r": 0},
            sampled_token_ids=sampled,
            kv_connector_output=KVConnectorOutput(kv_connector_worker_meta=meta),
        )
        scheduler.update_from_output(output, result)
        ended = dict.fromkeys(output.kv_connector_metadata.store_jobs, 1)
    on_gpu, in_host_memory = facts_by_hash(told, "GPU"), facts_by_hash(told, "CPU")
    assert len(in_host_memory) == 4
    assert in_host_memory == {name: on_gpu[name] for name in in_host_memory}


def test_what_vllm_hashes_of_images_and_embeddings():
    """By vLLM's own pool: images by their place in each block, an adapter in all, a salt in the first."""
    import torch
    from vllm.lora.request import LoRARequest
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    from kv_vllm import OffloadingConnector

    init_none_hash(sha256)
    images = [
        MultiModalFeatureSpec(
            data=None, modality="image", identifier=name, mm_position=PlaceholderRange(offset=at, length=length)
        )
        for name, at, length in (("cat", 1, 2), ("dog", 3, 6), ("cat", 13, 2))
    ]
    for more in ({"mm_features": images}, {"prompt_embeds": torch.arange(40.0).reshape(20, 2)}):
        params = SamplingParams(max_tokens=1)
        params.update_from_generation_config({}, None)
        request = Request(
            request_id="r",
            prompt_token_ids=list(range(20)),
            sampling_params=params,
            pooling_params=None,
            block_hasher=get_request_block_hasher(4, sha256),
            cache_salt="s",
            lora_request=LoRARequest("l", 1, "/none"),
            **more,
        )
        pool = BlockPool(9, enable_caching=True, hash_block_size=4, enable_kv_cache_events=True)
        pool.cache_full_blocks(request, pool.get_new_blocks(5), 0, 5, 4, 0)
        (stored,) = pool.take_events()
        extras = [OffloadingConnector.hash_extras(request, range(at, at + 4)) for at in range(0, 20, 4)]
        assert extras == stored.extra_keys
        assert all(extra[0] == "l" and ("s" in extra) == (not at) for at, extra in enumerate(extras))
        assert len({*map(len, extras)}) > 1
