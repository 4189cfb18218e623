"""Our connectors as vLLM's own tests take hold of vLLM's: with mocks of its offloading classes under them.

The tests' common harness looks at a few attributes of vLLM's connector: the manager that it made, the geometry of
its groups, whether jobs are under way, the spec of a worker. Those are here. What a single test looks into besides
is vLLM's own matter, and such a test fails. Importing this imports vLLM.
"""

from dataclasses import fields
from types import SimpleNamespace

from vllm.utils.math_utils import cdiv
from vllm.v1.kv_offload import base as theirs
from vllm.v1.kv_offload.factory import OffloadingSpecFactory as TheirFactory

import kv_api
from kv_vllm.connectors import offloading


def _ours(made, value):
    """An object of our dataclass, its values translated by the names of members."""
    told = {field.name: getattr(value, field.name) for field in fields(made) if hasattr(value, field.name)}
    return made(**{name: _member(made, name, member) for name, member in told.items()})


def _member(made, name, value):
    kinds = {"medium": kv_api.Medium, "locality": kv_api.Locality, "policy": kv_api.OffloadPolicy}
    return kinds[name][value.name] if name in kinds and value is not None else value


class TheirManager(kv_api.OffloadingManager):
    """One of vLLM's managers, mostly a mock, under our connector."""

    def __init__(self, behind):
        self.behind = behind
        self.told = None
        """A test's own answer to how many keys from the first on are there; it stands in for lookups."""

    def lookup_prefix(self, keys, req_context):
        if self.told is None:
            return super().lookup_prefix(keys, req_context)
        hits = self.told(keys, req_context)
        if hits is None:
            return kv_api.PrefixLookup(0, kv_api.LookupResult.RETRY)
        return kv_api.PrefixLookup(min(hits, len(keys)), kv_api.LookupResult.MISS)

    def on_new_request(self, req_context):
        return _ours(kv_api.RequestOffloadingContext, self.behind.on_new_request(req_context))

    def lookup(self, key, req_context):
        if self.told is not None:
            return kv_api.LookupResult.HIT if self.told([key], req_context) else kv_api.LookupResult.MISS
        return kv_api.LookupResult[self.behind.lookup(key, req_context).name]

    def get_load_source(self, key, req_context):
        return kv_api.CacheHitSource[self.behind.get_load_source(key, req_context).name]

    def take_events(self):
        return [_ours(kv_api.OffloadingEvent, event) for event in self.behind.take_events()]

    def prepare_load(self, keys, req_context):
        return self.behind.prepare_load(keys, req_context)

    def prepare_store(self, keys, req_context):
        output = self.behind.prepare_store(keys, req_context)
        if output is None:
            return None
        return kv_api.PrepareStoreOutput(list(output.keys_to_store), output.store_spec, list(output.evicted_keys))

    def complete_load(self, keys, req_context):
        self.behind.complete_load(keys, req_context)

    def complete_store(self, keys, req_context, success=True):
        self.behind.complete_store(keys, req_context, success)

    def touch(self, keys, req_context):
        self.behind.touch(keys, req_context)

    def on_request_finished(self, req_context):
        self.behind.on_request_finished(req_context)

    def on_schedule_end(self, context):
        self.behind.on_schedule_end(context)

    def has_pending_work(self):
        return self.behind.has_pending_work()

    def reset_cache(self):
        self.behind.reset_cache()

    def on_reset_flushed(self):
        self.behind.on_reset_flushed()

    def get_stats(self):
        return self.behind.get_stats()

    def shutdown(self):
        self.behind.shutdown()


class TheirWorker(kv_api.OffloadingWorker):
    """One of vLLM's workers under our connector; of the GPU's places it gets vLLM's form."""

    def __init__(self, behind):
        self.behind = behind

    def submit_store(self, job_id, src_spec, dst_spec):
        return self.behind.submit_store(job_id, _places(src_spec), dst_spec)

    def submit_load(self, job_id, src_spec, dst_spec, expedited=False):
        return self.behind.submit_load(job_id, src_spec, _places(dst_spec))

    def get_finished(self):
        return self.behind.get_finished()

    def wait(self, job_ids):
        self.behind.wait(job_ids)

    def shutdown(self):
        self.behind.shutdown()


def _places(spec):
    return theirs.GPULoadStoreSpec(
        list(spec.block_ids), group_sizes=spec.group_sizes, block_indices=spec.block_indices
    )


def their_spec(spec_class):
    """A spec class of ours with one of vLLM's behind it."""

    class TheirSpec(kv_api.OffloadingSpec):
        def __init__(self, config):
            super().__init__(config)
            self.behind = spec_class(config)

        @classmethod
        def build_metric_definitions(cls, extra_config):
            return spec_class.build_metric_definitions(extra_config)

        def get_manager(self):
            return TheirManager(self.behind.get_manager())

        def get_worker(self, kv_caches):
            return TheirWorker(self.behind.get_worker(kv_caches))

    return TheirSpec


class SpecsOfTheirs:
    """In the place of our factory: vLLM's factory finds the spec."""

    @staticmethod
    def get_spec_cls(extra_config):
        return their_spec(TheirFactory.get_spec_cls(extra_config))

    @classmethod
    def create_spec(cls, config):
        return cls.get_spec_cls(config.extra_config)(config)


class SchedulerHalf:
    """The attributes of vLLM's scheduler side that its harness knows, made of our side's public ones and books."""

    def __init__(self, half):
        self._books = half._books
        self.manager = self._books.manager.behind
        self.config = SimpleNamespace(kv_group_configs=[_geometry(group) for group in self._books.layout.groups])

    @property
    def _maximal_prefix_lookup(self):
        return self._books.manager.told

    @_maximal_prefix_lookup.setter
    def _maximal_prefix_lookup(self, told):
        self._books.manager.told = told

    @property
    def _jobs(self):
        return {**self._books.jobs.live, **self._books.jobs.stale}


def _geometry(group):
    """A group as vLLM describes it; of a window, how many chunks a load reads at most."""
    window = cdiv(group.window_tokens - 1, group.tokens_per_chunk) if group.window_tokens else None
    return SimpleNamespace(
        tokens_per_block=group.tokens_per_block,
        tokens_per_chunk=group.tokens_per_chunk,
        group_idx=group.group_id,
        hashes_per_chunk=group.hashes_per_chunk,
        is_eagle_group=group.is_draft,
        sliding_window_size_in_chunks=window,
    )


class OffloadingConnector(offloading.OffloadingConnector):
    """Ours, with vLLM's attributes for its two sides."""

    @property
    def connector_scheduler(self):
        return SchedulerHalf(self._scheduler)

    @property
    def connector_worker(self):
        return SimpleNamespace(spec=self._worker.spec.behind)
