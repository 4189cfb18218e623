"""A session of vLLM's: a request that pauses for its next input, and goes on without having been asked about."""

import pytest
from kv_vllm_configs import transfer_of

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]


def test_a_session_that_goes_on_stores_what_is_new_and_waits_for_nothing_of_its_own():
    pytest.importorskip("vllm")
    from vllm.sampling_params import SamplingParams
    from vllm.v1.outputs import ModelRunnerOutput

    from kv_sim.config import WorldConfig
    from kv_vllm.vllm_scheduler import make_request, make_scheduler
    from kv_vllm.vllm_world import vllm_config

    world = WorldConfig()
    size = world.block_size
    extra = {"cpu_bytes_to_use": 1 << 20, "hold_blocks": "never"}
    config = vllm_config(world, transfer_of("OffloadingConnector", extra))
    scheduler = make_scheduler(world, config, log_stats=False)

    def turn(tokens):
        params = SamplingParams(max_tokens=1, ignore_eos=True)
        request = make_request("session", list(tokens), params, size)
        request.resumable = True
        scheduler.add_request(request)
        output = scheduler.schedule()
        result = ModelRunnerOutput(req_ids=["session"], req_id_to_index={"session": 0}, sampled_token_ids=[[7]])
        scheduler.update_from_output(output, result)
        meta = output.kv_connector_metadata
        stored = [list(job.gpu_spec.block_indices) for job in meta.store_jobs.values()]
        return output.scheduled_new_reqs[0].block_ids[0], stored, meta.jobs_to_flush

    first, stored, _ = turn(range(2 * size))
    assert (len(first), stored) == (2, [[0]])
    again, stored, flushed = turn(range(100, 100 + 2 * size))
    assert again[:2] == first
    assert (len(again), stored, flushed) == (4, [[2]], set())
