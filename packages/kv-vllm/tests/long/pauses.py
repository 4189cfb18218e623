"""A real vLLM that pauses again and again, keeps its requests, and loses what was in its KV caches meanwhile.

That is what a sleep is to a connector: the caches are emptied, and so are their books. An engine on CPUs can't let
go of memory, so the bytes are overwritten. In the caller's process vLLM waits for no transfer before it. Run by
the session `vllm-long`.
"""

import pytest
from kv_vllm_runs import MULTI, OURS, Engine, history, history_alone, with_extra

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("in_process")]

FILES = {"spec_name": "FileOffloadingSpec", "spec_module_path": "kv_offload_file", "file_bytes_to_use": 64 << 20}
CONFIGURATIONS = {
    "ours": OURS,
    "within the step": with_extra(OURS, sync_load_budget_bytes=1 << 30),
    "chunks": with_extra(OURS, blocks_per_chunk=2),
    "files": {**OURS, "kv_connector_extra_config": FILES},
    "multi": MULTI,
}
EVERY = 7
"""How many steps there are between two pauses."""
GARBAGE = 7.0
"""Any number will do, if it isn't what was there."""


@pytest.fixture(scope="module")
def reference():
    """What the history gives without a connector, and without a pause."""
    return history_alone()


def lose_what_is_in_the_caches(worker):
    """As a worker sleeps and wakes. Before 0.33 vLLM tells no connector of it."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1

    tells = hasattr(KVConnectorBase_V1, "unregister_kv_caches")
    if tells:
        get_kv_transfer_group().unregister_kv_caches()
    for cache in worker.model_runner.kv_caches:
        cache.fill_(GARBAGE)
    if tells:
        get_kv_transfer_group().restore_kv_caches()


class Sleeper:
    """Sends an engine to sleep after each so many steps, and counts how often it could."""

    def __init__(self, engine):
        self.engine = engine
        self.steps = self.slept = self.refused = self.kept = 0

    def __call__(self):
        self.steps += 1
        if self.steps % EVERY:
            return
        core = self.engine.engine.engine_core.engine_core
        kept = len(core.scheduler.requests)
        try:
            core.pause_scheduler("keep", clear_cache=True)
        except RuntimeError:  # a load or a held block
            self.refused += 1
        else:
            self.engine.llm.collective_rpc(lose_what_is_in_the_caches)
            self.slept += 1
            self.kept += kept
        core.resume_scheduler()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_outputs_are_those_of_an_engine_that_never_pauses(reference, name, tmp_path):
    transfer = CONFIGURATIONS[name]
    engine = Engine(with_extra(transfer, file_dir=str(tmp_path)) if name == "files" else transfer)
    engine.after_step = sleeper = Sleeper(engine)
    told = history(engine)
    hits = engine.metric("vllm:external_prefix_cache_hits")
    if hasattr(engine.connector, "check"):
        engine.connector.check()
    engine.close()
    assert told == reference
    assert sleeper.slept > 10 and sleeper.kept > 10 and hits > 100
