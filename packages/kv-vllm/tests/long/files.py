"""Files as a medium in a real vLLM: outputs are those without, over restarts and with bytes spoilt, too.

Run by the session `vllm-long`.
"""

import json
import os
import subprocess
import sys

import pytest
from kv_vllm_runs import MULTI, OURS, Engine, history, history_alone, prefixes, with_extra

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("in_process")]

ROOM = 64 << 20


@pytest.fixture(scope="module")
def reference():
    """What the history gives without a connector."""
    return history_alone()


def files(folder):
    own = {"file_dir": str(folder), "file_bytes_to_use": ROOM, "file_staging_bytes": 1 << 20}
    spec = {"spec_name": "FileOffloadingSpec", "spec_module_path": "kv_offload_file"}
    return {**OURS, "kv_connector_extra_config": {**spec, **own}}


def counted(engine, *names):
    return [engine.metric(f"vllm:{name}") for name in names]


def test_outputs_are_identical(reference, tmp_path):
    engine = Engine(files(tmp_path))
    assert history(engine) == reference
    hits, failures = counted(engine, "external_prefix_cache_hits", "kv_offload_load_failure")
    engine.close()
    assert hits > 500 and not failures


def test_behind_host_memory_which_is_too_small(reference, tmp_path):
    """Metrics of both media are there, under names of their own."""
    small = with_extra(OURS, cpu_bytes_to_use=12 * 32768)
    engine = Engine(with_extra(MULTI, connectors=[small, with_extra(files(tmp_path), name="files")]))
    assert history(engine) == reference
    names = {metric.name for metric in engine.llm.get_metrics()}
    hits, failures = counted(engine, "external_prefix_cache_hits", "kv_offload_load_failure")
    engine.close()
    assert hits > 500 and not failures
    assert {f"vllm:kv_offload_{medium}_cache_usage_perc" for medium in ("cpu", "file")} <= names


def test_an_engine_that_is_started_again_loads_what_the_one_before_it_stored(reference, tmp_path):
    expected = {name: reference[name] for name in ("shared", "again")}
    loaded = []
    for is_spoilt in (False, False, True):
        if is_spoilt:
            [slots] = tmp_path.glob("*/rank-0.slots")
            with slots.open("r+b") as file:
                file.write(b"spoilt" * 20_000)
        engine = Engine(files(tmp_path))
        told = prefixes(engine)
        assert {name: told[name] for name in expected} == expected
        loaded.append(counted(engine, "external_prefix_cache_hits", "kv_offload_file_damaged"))
        engine.close()
    (first, *_), (second, damaged), (_, found) = loaded
    assert second > first > 0
    assert damaged == 0 < found


OTHER_ENGINE = """
import json, sys
from kv_vllm_runs import Engine, prefixes
engine = Engine(json.loads(sys.argv[1]))
told = prefixes(engine)
names = "external_prefix_cache_hits", "kv_offload_file_borrowed", "kv_offload_load_failure"
print(json.dumps([told, *(engine.metric("vllm:" + name) for name in names)]))
engine.close()
"""


def test_two_servers_share_their_files(reference, tmp_path):
    """The second one, in a process of its own, loads from the first one's files what that computed."""
    first = Engine(with_extra(files(tmp_path), file_shared=True))
    expected = {name: reference[name] for name in ("shared", "again")}
    assert {name: told for name, told in prefixes(first).items() if name in expected} == expected
    second = with_extra(files(tmp_path), file_shared=True, file_engine=1)
    run = subprocess.run(
        [sys.executable, "-c", OTHER_ENGINE, json.dumps(second)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert not run.returncode, run.stderr
    told, hits, borrowed, failures = json.loads(run.stdout.splitlines()[-1])
    assert {name: told[name] for name in expected} == expected
    assert hits > counted(first, "external_prefix_cache_hits")[0] > 0
    assert borrowed > 0 == failures
    first.close()
