"""A pytest plugin: in vLLM's own tests our classes stand where vLLM's were. In the process of those tests only."""

import os
from pathlib import Path

import vllm.distributed.kv_transfer.kv_connector.utils as utils
import vllm.v1.kv_offload.cpu.manager as managers

import kv_api
import kv_offload_cpu
from kv_vllm.host_spec import HostManager


def manager(*args, **kwargs):
    """Our manager of host memory, as vLLM's connector has it."""
    return HostManager(kv_offload_cpu.CPUOffloadingManager(*args, **kwargs), kv_offload_cpu.METRICS)


managers.CPUOffloadingManager = manager
utils.KVOutputAggregator = kv_api.KVOutputAggregator


def pytest_collection_modifyitems(config, items):
    """Leave out the tests that the file LEFT_OUT lists, by their exact names, or a class of tests."""
    listed = os.environ.get("LEFT_OUT")
    if listed is None:
        return
    names = {line.split("\t")[0] for line in Path(listed).read_text().splitlines()}
    out = [item for item in items if _is_in(item.nodeid.partition("[")[0], names)]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]


def _is_in(name, names):
    return name in names or name.rpartition("::")[0] in names
