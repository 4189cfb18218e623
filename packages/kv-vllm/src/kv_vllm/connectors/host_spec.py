"""``HostOffloadingSpec``: our host memory under vLLM's own ``OffloadingConnector``, for KV caches on any device.

``spec_name: HostOffloadingSpec`` with ``spec_module_path: kv_vllm``; the options are those of kv-offload-cpu. Our
manager and worker do the work. Each is wrapped by an object of vLLM's class, without state, that translates the
values that vLLM inspects. vLLM's worker asserts that no job fails: with this connector a failed copy ends the
engine, unlike with ours.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

from vllm.v1.kv_offload.base import OffloadingManager, OffloadingSpec, OffloadingWorker
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec as VllmCPUOffloadingSpec

import kv_api
from kv_api.errors import refuse_misspelt
from kv_offload.metrics import OffloadingConnectorStats
from kv_offload_cpu import CPUOffloadingSpec
from kv_vllm.translate import TABLE, offloading_config_of, to_vllm
from kv_vllm.versions import require_version

KEYS_OF_VLLMS_CONNECTOR: Final = (
    "block_size",
    "blocks_per_chunk",
    "canonical_layout",
    "offload_prompt_only",
    "self_describing_kv_events",
    "spec_module_path",
    "spec_name",
)
"""The keys that vLLM's connector reads in the mapping with our settings. It ignores misspelt keys silently."""

_ANSWERS = {answer: TABLE[kv_api.LookupResult](answer) for answer in kv_api.LookupResult}


class HostManager(OffloadingManager):  # type: ignore[misc]
    """Passes each call on to a manager of ours."""

    medium = to_vllm(kv_api.Medium.CPU)

    def __init__(self, ours: kv_api.OffloadingManager, declared: Mapping[str, Any]) -> None:
        self.ours = ours
        self._declared = declared

    @property
    def lock(self) -> AbstractContextManager[Any]:
        return self.ours.lock

    def lookup(self, key: Any, req_context: Any) -> Any:
        return _ANSWERS[self.ours.lookup(key, req_context)]

    def get_load_source(self, key: Any, req_context: Any) -> Any:
        return to_vllm(self.ours.get_load_source(key, req_context))

    def prepare_load(self, keys: Collection[Any], req_context: Any) -> Any:
        return to_vllm(self.ours.prepare_load(keys, req_context))

    def complete_load(self, keys: Collection[Any], req_context: Any) -> None:
        self.ours.complete_load(keys, req_context)

    def prepare_store(self, keys: Collection[Any], req_context: Any) -> Any:
        return to_vllm(self.ours.prepare_store(keys, req_context))

    def complete_store(self, keys: Collection[Any], req_context: Any, success: bool = True) -> None:
        self.ours.complete_store(keys, req_context, success)

    def touch(self, keys: Collection[Any], req_context: Any) -> None:
        self.ours.touch(keys, req_context)

    def on_new_request(self, req_context: Any) -> Any:
        return to_vllm(self.ours.on_new_request(req_context))

    def on_request_finished(self, req_context: Any) -> None:
        self.ours.on_request_finished(req_context)

    def on_schedule_end(self, context: Any) -> None:
        self.ours.on_schedule_end(context)

    def has_pending_work(self) -> bool:
        return self.ours.has_pending_work()

    def take_events(self) -> Iterable[Any]:
        return [to_vllm(event) for event in self.ours.take_events() if not event.metadata_only]

    def reset_cache(self) -> None:
        self.ours.reset_cache()

    def on_reset_flushed(self) -> None:
        self.ours.on_reset_flushed()

    def get_stats(self) -> Any:
        counted = self.ours.get_stats()
        if counted is None:
            return None
        stats = OffloadingConnectorStats()
        stats.add_medium(counted, self._declared)
        return to_vllm(stats)

    def config_info(self) -> Sequence[Any]:
        return self.ours.config_info()

    def shutdown(self) -> None:
        self.ours.shutdown()


class HostWorker(OffloadingWorker):  # type: ignore[misc]
    """Passes each call on to a worker of ours."""

    def __init__(self, ours: kv_api.OffloadingWorker) -> None:
        self.ours = ours

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self.ours.submit_store(job_id, src_spec, dst_spec)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False) -> bool:
        return self.ours.submit_load(job_id, src_spec, dst_spec, expedited=expedited)

    def get_finished(self) -> list[Any]:
        return list(self.ours.get_finished())

    def wait(self, job_ids: set[int]) -> None:
        self.ours.wait(job_ids)

    def shutdown(self) -> None:
        self.ours.shutdown()


class HostOffloadingSpec(VllmCPUOffloadingSpec):  # type: ignore[misc]
    """kv-offload-cpu's spec. It derives from vLLM's, since vLLM keeps deprecated metrics for those only."""

    our_spec: type[CPUOffloadingSpec] = CPUOffloadingSpec

    def __init__(self, config: Any) -> None:
        require_version()
        known = {*KEYS_OF_VLLMS_CONNECTOR, *self.our_spec.extra_keys}
        refuse_misspelt(config.extra_config, known, where="kv_connector_extra_config")
        # The constructor of vLLM's spec isn't called: it plans memory of its own.
        OffloadingSpec.__init__(self, config)
        self.ours = self.our_spec(_with_shared_memory(offloading_config_of(config)))
        self.replicated_layout = self.ours.replicated_layout

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        declared = cls.our_spec.build_metric_definitions(extra_config)
        return {name: to_vllm(metric) for name, metric in declared.items()}

    @classmethod
    def config_info_keys(cls, extra_config: dict[str, Any]) -> tuple[str, ...]:
        return cls.our_spec.config_info_keys(extra_config)

    def get_manager(self) -> HostManager:
        return HostManager(self.ours.get_manager(), self.ours.build_metric_definitions(dict(self.extra_config)))

    def get_worker(self, kv_caches: Any) -> HostWorker:
        return HostWorker(self.ours.get_worker(kv_caches))


def _with_shared_memory(config: kv_api.OffloadingConfig) -> kv_api.OffloadingConfig:
    """With pipeline parallelism, have workers share one file, which refuses those that divide it otherwise.

    Our own connector limits the manager to the chunks for which all workers have room. vLLM's connector doesn't
    ask its workers.
    """
    if config.parallel.pp_size == 1:
        return config
    told = config.extra_config.get("host_memory", "auto")
    if told == "private":
        raise kv_api.ConfigError(
            f"host_memory: got 'private' with pipeline_parallel_size {config.parallel.pp_size}; vLLM's "
            "OffloadingConnector can't see whether all stages have room for the same chunks: choose 'shared', "
            "which does, or the OffloadingConnector of kv_vllm"
        )
    extra = {**config.extra_config, "host_memory": "shared" if told == "auto" else told}
    return replace(config, extra_config=extra)
