"""Children that do what a test tells them, and the small objects of an engine."""

from copy import copy
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kv_api import (
    KVConnectorBase,
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorKVEvents,
    KVConnectorMetadata,
    KVConnectorPromMetrics,
    KVConnectorRole,
    KVConnectorStats,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    KVEventAggregator,
    KVTransferConfig,
    SupportsHMA,
)
from kv_api.contract import CONTRACT, Kind
from kv_factory import KVConnectorFactory
from kv_multi import MultiConnector


@dataclass
class Meta(KVConnectorMetadata):
    text: str = ""


@dataclass
class Handshake(KVConnectorHandshakeMetadata):
    text: str = ""


@dataclass
class WorkerMeta(KVConnectorWorkerMetadata):
    words: tuple[str, ...] = ()

    def __len__(self):
        return len(self.words)

    def aggregate(self, other):
        return WorkerMeta(self.words + other.words)


@dataclass
class Count(KVConnectorStats):
    data: dict[str, Any] = field(default_factory=lambda: {"n": 0})

    def reset(self):
        self.data["n"] = 0

    def aggregate(self, other):
        return type(self)({"n": self.data["n"] + other.data["n"]})  # the sum may be another object

    def reduce(self):
        return {"n": self.data["n"]}

    def is_empty(self):
        return not self.data.get("n")

    def __bool__(self):
        return not self.is_empty()


@dataclass
class Text(Count):
    """Another class of stats."""


class CountMetrics(KVConnectorPromMetrics):
    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        total = self._counter_cls(name="kv_test_n", documentation="how many", labelnames=labelnames)
        last = self._gauge_cls("kv_test_last", "the last", [*labelnames, "kind"])
        sizes = self._histogram_cls(name="kv_test_sizes", documentation="s", labelnames=labelnames, buckets=(2, 5))
        self.sizes = {i: sizes.labels(*values) for i, values in per_engine_labelvalues.items()}
        self.total = {i: total.labels(*values) for i, values in per_engine_labelvalues.items()}
        self.last = {i: last.labels(*values, "any") for i, values in per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data, engine_idx=0):
        self.total[engine_idx].inc(transfer_stats_data["n"])
        self.last[engine_idx].set(transfer_stats_data["n"])
        self.sizes[engine_idx].observe(transfer_stats_data["n"])


class Events(KVConnectorKVEvents):
    """The simplest container: an aggregator."""

    def __init__(self, *events):
        self.counts = KVEventAggregator(1)
        self.counts.add_events(list(events))

    def add_events(self, events):
        self.counts.add_events(events)

    def aggregate(self):
        common = self.counts.get_common_events()
        self.counts.clear_events()
        self.counts.add_events(common)
        self.counts.reset_workers()
        return self

    def increment_workers(self, count=1):
        self.counts.increment_workers(count)

    def get_all_events(self):
        return self.counts.get_all_events()

    def get_number_of_workers(self):
        return self.counts.get_number_of_workers()

    def clear_events(self):
        self.counts.clear_events()


class OtherEvents(Events):
    pass


DEFAULTS = {
    "get_num_new_matched_tokens": (0, False),
    "get_loaded_kv_cache_group_ids": (0,),
    "request_finished": (False, None),
    "request_finished_all_groups": (False, None),
    "register_finished_partial_tail": False,
    "has_pending_push_work": False,
    "has_pending_block_frees": False,
    "take_events": (),
    "build_connector_meta": Meta(),
    "get_external_cache_hit_sources": {},
    "get_transfer_results": KVConnectorTransferResults(),
    "get_finished": (None, None),
    "get_block_ids_with_load_errors": frozenset(),
    "requires_kv_delivery": False,
    "supports_divergent_local_hybrid_hits": True,
    "has_connector_metadata": True,
}


def _method(name):
    def method(self, *args, **kwargs):
        self.calls.append((name, *args, *([kwargs] if kwargs else [])))
        if name in self.raises:
            raise self.raises[name]
        answer = self.answers.get(name, DEFAULTS.get(name))
        return answer(*args) if callable(answer) else answer

    method.__name__ = name
    return method


def _members():
    for row in CONTRACT:
        if row.name == "role" or row.kind is Kind.CLASSMETHOD:
            continue
        method = _method(row.name)
        yield row.name, property(method) if row.kind is Kind.PROPERTY else method


_Answers = type("_Answers", (KVConnectorBase_V1,), dict(_members()))


class Scripted(_Answers):
    """Writes down its calls, answers with ``answers[method]`` and raises ``raises[method]``."""

    def __init__(self, vllm_config, role, kv_cache_config=None):
        super().__init__(vllm_config, role, kv_cache_config)
        self.extra = self._kv_transfer_config.kv_connector_extra_config
        self.calls = []
        self.answers = dict(self.extra.get("answers", {}))
        self.raises = {}

    def asked(self, method):
        """The arguments of each call of ``method``."""
        return [call[1:] for call in self.calls if call[0] == method]

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config):
        return vllm_config.kv_transfer_config.kv_connector_extra_config.get("layout")

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config):
        return extra_config.get("piecewise", False)

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config):
        return kv_transfer_config.kv_connector_extra_config.get("sleep", True)

    @classmethod
    def build_kv_connector_stats(cls, data=None):
        return Count() if data is None else Count(data)

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        return CountMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


class ScriptedHMA(Scripted, SupportsHMA):
    request_finished_all_groups = _method("request_finished_all_groups")


class HandsOn(KVConnectorBase_V1):
    """Stands before the connector that its extra config has as ``connector``, and hands every call on to it."""

    def __init__(self, vllm_config, role, kv_cache_config=None):
        super().__init__(vllm_config, role, kv_cache_config)
        behind = copy(vllm_config)
        given = vllm_config.kv_transfer_config.kv_connector_extra_config["connector"]
        behind.kv_transfer_config = KVTransferConfig.from_mapping(given)
        self.behind = KVConnectorFactory.create_connector(behind, role, kv_cache_config)


def _handed_on(name):
    return lambda self, *args, **kwargs: getattr(self.behind, name)(*args, **kwargs)


for _row in CONTRACT:
    if _row.kind is Kind.METHOD:
        setattr(HandsOn, _row.name, _handed_on(_row.name))
HandsOn.__abstractmethods__ = frozenset()


class TwoArguments(Scripted):
    def __init__(self, vllm_config, role):
        super().__init__(vllm_config, role)


class Broken(Scripted):
    def __init__(self, vllm_config, role, kv_cache_config=None):
        raise OSError("no device")


class Mute(Scripted):
    """Counts, but can neither rebuild its stats nor show them."""

    @classmethod
    def build_kv_connector_stats(cls, data=None):
        return None

    @classmethod
    def build_prom_metrics(cls, *args):
        return None


class Old(KVConnectorBase):
    def close(self):
        pass

    def send_kv_caches_and_hidden_states(self, *args):
        pass

    def recv_kv_caches_and_hidden_states(self, *args):
        pass


CLASSES = ("Scripted", "ScriptedHMA", "HandsOn", "TwoArguments", "Broken", "Mute", "Old")


def child(kv_connector="Scripted", kv_role="kv_both", engine_id=None, module_path=None, **extra):
    """The configuration of one child."""
    values = {"kv_connector": kv_connector, "kv_role": kv_role, "kv_connector_extra_config": extra}
    if engine_id is not None:
        values["engine_id"] = engine_id
    if module_path is not None:
        values["kv_connector_module_path"] = module_path
    return values


def engine_config(children, **extra):
    """An engine's configuration with a MultiConnector over ``children``."""
    transfer = KVTransferConfig(
        kv_connector="MultiConnector",
        kv_role="kv_both",
        engine_id="engine",
        kv_connector_extra_config={"connectors": children, **extra},
    )
    return SimpleNamespace(
        kv_transfer_config=transfer,
        cache_config=SimpleNamespace(block_size=4),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1, world_size=1, rank=0),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=True),
    )


def make(children, role=KVConnectorRole.SCHEDULER, kv_cache_config=None, **extra):
    """A MultiConnector over ``children``."""
    return MultiConnector(engine_config(children, **extra), role, kv_cache_config)


class Blocks:
    """A block table."""

    def __init__(self, *groups):
        self.groups = groups

    def get_block_ids(self):
        return self.groups


def request(request_id="r"):
    """A request; no connector here looks at more than its id."""
    return SimpleNamespace(request_id=request_id)
