"""A pytest plugin: in vLLM's own tests our classes stand where vLLM's were. In the process of those tests only.

What of vLLM's implementation is not replaced is barred: it raises when it is used. So a test that passes has
passed on ours, or on what vLLM has for all connectors.
"""

import inspect
import json
import os
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from types import FunctionType

import vllm.distributed.kv_transfer.kv_connector.utils as utils
import vllm.distributed.kv_transfer.kv_connector.v1.multi_connector as multi
import vllm.distributed.kv_transfer.kv_connector.v1.offloading.canonical_mapping as canonical_mapping
import vllm.distributed.kv_transfer.kv_connector.v1.offloading.common as common
import vllm.distributed.kv_transfer.kv_connector.v1.offloading.config as config
import vllm.distributed.kv_transfer.kv_connector.v1.offloading.events as events
import vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics as metrics
import vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler as scheduler
import vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker as worker
import vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector as connector
import vllm.v1.kv_offload.cpu.manager as managers
import vllm.v1.kv_offload.tiering.spec  # noqa: F401  (derives from vLLM's manager)
from kv_vllm_stand_ins import OffloadingConnector, SpecsOfTheirs

import kv_api
import kv_multi.metadata
import kv_multi.stats
import kv_offload.connector
import kv_offload.metadata
import kv_offload.metrics
import kv_offload_cpu
import kv_vllm.connectors.keys
from kv_vllm.connectors.host_spec import HostManager
from kv_vllm.connectors.multi import MultiConnector


def manager(*args, **kwargs):
    """Our manager of host memory, as vLLM's connector has it."""
    return HostManager(kv_offload_cpu.CPUOffloadingManager(*args, **kwargs), kv_offload_cpu.METRICS)


SHARED = ["OffloadingConnectorMetadata", "OffloadingWorkerMetadata", "TransferJob"]
COUNTED = ["DirectionalTransferStats", "TransferStats"]
OURS = {
    managers: {"CPUOffloadingManager": manager},
    utils: {"KVOutputAggregator": kv_api.KVOutputAggregator},
    common: {name: getattr(kv_offload.metadata, name) for name in SHARED + COUNTED},
    connector: {"OffloadingConnector": OffloadingConnector},
    metrics: {
        "OffloadingConnectorStats": kv_offload.metrics.OffloadingConnectorStats,
        "OffloadPromMetrics": OffloadingConnector.build_prom_metrics,
    },
    multi: {
        "MultiConnector": MultiConnector,
        "MultiKVConnectorStats": kv_multi.stats.MultiKVConnectorStats,
        "MultiKVConnectorWorkerMetadata": kv_multi.metadata.MultiKVConnectorWorkerMetadata,
    },
}
BARRED = [scheduler, worker, config, events, canonical_mapping, common, connector, metrics, multi]


def bar(module):
    """Let everything that a module defines raise."""
    for name, value in list(vars(module).items()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, FunctionType):
            setattr(module, name, _raising(f"{module.__name__}.{name}"))
        elif inspect.isclass(value) and not issubclass(value, Enum):
            for method, function in list(vars(value).items()):
                # A record may be made.
                is_made = (is_dataclass(value) or issubclass(value, tuple)) and method.startswith("_")
                if isinstance(function, FunctionType | classmethod | staticmethod | property) and not is_made:
                    setattr(value, method, _raising(f"{module.__name__}.{name}.{method}"))


def _raising(name):
    def barred(*args, **kwargs):
        raise AssertionError(f"{name} is vLLM's own")

    return barred


for module in BARRED:
    bar(module)
for module, classes in OURS.items():
    for name, ours in classes.items():
        assert hasattr(module, name), f"{module.__name__} has no {name}"
        setattr(module, name, ours)
for module in (kv_offload.connector, kv_vllm.connectors.keys):
    assert hasattr(module, "OffloadingSpecFactory"), f"{module.__name__} asks no factory for a spec"
    module.OffloadingSpecFactory = SpecsOfTheirs

# The one fixture of these tests that lies in a conftest.
from tests.v1.kv_connector.unit.offloading_connector.utils import request_runner  # noqa: E402, F401

_outcomes = {}


def pytest_runtest_logreport(report):
    """What became of each case of a test, or of its fixtures."""
    if report.when == "call" or report.outcome != "passed":
        _outcomes.setdefault(report.nodeid.partition("[")[0], []).append(report.outcome)


def pytest_sessionfinish():
    """Write it to the file that OUTCOMES names."""
    if "OUTCOMES" in os.environ:
        Path(os.environ["OUTCOMES"]).write_text(json.dumps(_outcomes))
