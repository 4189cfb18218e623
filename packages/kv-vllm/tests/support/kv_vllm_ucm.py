"""UCM's connector on a machine without a GPU, over a store of our own in this process.

What looks up, loads, dumps and waits is UCM's. Ours are the store, which it finds as it finds any that a vendor
brings, what it asks of CUDA, and the two of its modules that are compiled: what it logs is counted and dropped.
"""

import sys
import tempfile
import warnings
from dataclasses import replace
from types import ModuleType, SimpleNamespace

LOGGED = []
"""What UCM reported as an error, the youngest last."""


def log(level, file, function, line, message):
    """Fits ``ucmlogger.log``."""
    if level >= LEVELS.ERROR:
        LOGGED.append(message)


LEVELS = SimpleNamespace(DEBUG=10, INFO=20, WARNING=30, ERROR=40, CRITICAL=50)
LOGGER = ModuleType("ucm.shared.infra.ucmlogger")
LOGGER.Level, LOGGER.log, LOGGER.log_rate_limit = LEVELS, log, log
LOGGER.setup = LOGGER.flush = lambda *said: None
METRICS = ModuleType("ucm.shared.metrics")
NOTED = dict.fromkeys(("set_up", "create_stats", "update_stats", "merge_histogram_stats"), lambda *said: None)
METRICS.ucmmetrics = SimpleNamespace(**NOTED, get_all_stats_and_clear=lambda: ({}, {}, {}))
sys.modules |= {LOGGER.__name__: LOGGER, METRICS.__name__: METRICS}

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM compiles something when it is imported
    from kv_vllm_gpu import COMPUTE, Card, Event
    from kv_vllm_ucm_store import CURRENT, Shared
    from ucm.integration.vllm import device as ucms_device
    from ucm.integration.vllm import hla_connector, hma_connector, ucm_connector
    from ucm.integration.vllm.ucm_connector import UCMConnector
    from vllm.platforms import current_platform

# -- CUDA --------------------------------------------------------------------------------------


class Platform:
    """vLLM's, as it is on a machine with a GPU."""

    device_type = "cuda"

    def is_cuda_alike(self):
        """Of those that UCM supports."""
        return True

    def __getattr__(self, name):
        return getattr(current_platform, name)


class Device(ucms_device.Device):
    """A rank's; fits UCM's. A handle is where in the rank's own queue of steps something is."""

    def get_event_handle(self):
        """After what was launched by now."""
        COMPUTE.card = CURRENT.card
        event = Event()
        event.record(COMPUTE)
        handle = len(CURRENT.events) + 1
        CURRENT.events[handle] = event
        return handle

    def synchronize(self):
        """Wait for that."""
        CURRENT.card.device.synchronize()

    def destroy_event_handle(self, event_handle):
        """Whoever began something after it has done so."""

    def destroy_event_handles(self):
        """Nor of all."""

    def record_timing_event(self):
        """No time goes by."""

    def elapsed_time_ms(self, start_event, end_event):
        """None has gone by."""
        return 0.0

    def get_cpu_affinity(self, local_rank):
        """Any will do."""


for module in (ucm_connector, hma_connector, hla_connector):
    module.current_platform = Platform()
    for name, stand_in in {"create_device": Device, "get_current_device_id": lambda: 0}.items():
        if hasattr(module, name):
            setattr(module, name, stand_in)
FOLDER = tempfile.TemporaryDirectory()
ucm_connector._SHM_DIR = FOLDER.name

# -- vLLM --------------------------------------------------------------------------------------


def with_who_shares(kv_cache_config):
    """vLLM's, saying as it did which layers have some memory together: those that begin at one place."""
    sharers = {}
    for tensor in kv_cache_config.kv_cache_tensors:
        for number, layer in enumerate(tensor.layers):
            place = sharers.setdefault(tensor.offset + number * tensor.layer_stride, [])
            place.append((layer, tensor.size // len(tensor.layers)))
    tensors = [
        SimpleNamespace(size=place[0][1], shared_by=[layer for layer, _ in place]) for place in sharers.values()
    ]
    return replace(kv_cache_config, kv_cache_tensors=tensors)


# -- in UCM's place ----------------------------------------------------------------------------

WORLDS = {}
"""By model, what a world's ranks have stored. There is one, the youngest."""


def shared_by(model, told):
    """That of a world, as it was told."""
    if model not in WORLDS:
        WORLDS.clear()
        WORLDS[model] = Shared(**{name: told[name] for name in ("room", "evicts", "fails") if name in told})
        LOGGED.clear()
    return WORLDS[model]


class OnCpu(UCMConnector):
    """UCM's, with settings of our own beside its: ``room``, ``evicts``, ``fails``, of the store."""

    card = None
    AS_IT_WAS = staticmethod(with_who_shares)

    def __init__(self, vllm_config, role, kv_cache_config):
        told = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.shared = CURRENT.shared = shared_by(vllm_config.model_config.model, told)
        store = {
            "ucm_connector_name": "Store",
            "ucm_connector_module_path": "kv_vllm_ucm_store",
            "ucm_connector_config": {},
        }
        told.setdefault("ucm_connectors", [store])
        super().__init__(vllm_config, role, self.AS_IT_WAS(kv_cache_config))

    def register_kv_caches(self, kv_caches):
        first = next(iter(kv_caches.values()))
        self.card = CURRENT.card = Card(first[0] if isinstance(first, list) else first)
        self.card.may_fail, CURRENT.layers = True, list(kv_caches.values())
        super().register_kv_caches(kv_caches)

    def bind_connector_metadata(self, connector_metadata):
        CURRENT.card = self.card
        super().bind_connector_metadata(connector_metadata)

    def get_finished(self, finished_req_ids):
        CURRENT.card = self.card
        assert not self.shared.broken, f"UCM took for its store's what went wrong here: {self.shared.broken}"
        return super().get_finished(finished_req_ids)
