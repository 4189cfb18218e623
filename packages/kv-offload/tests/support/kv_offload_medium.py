"""A medium for tests: strict about its contract, hostile where the contract lets it be, and scripted by the test.

The manager evicts what nothing pins whenever its ``random`` says so outside of its lock. The worker ends, fails,
refuses, repeats or never ends jobs as the test tells it; a copy's bytes are moved by ``move``, which the test
gives.
"""

from collections import Counter
from typing import ClassVar

from kv_api import (
    BlockIDsLoadStoreSpec,
    CacheHitSource,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingManager,
    OffloadingSpec,
    OffloadingWorker,
    OffloadPolicy,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    TransferResult,
)


class Slots(BlockIDsLoadStoreSpec):
    """Places of chunks."""


class Lock:
    """Stays locked until it is left."""

    def __init__(self, manager):
        self.manager = manager

    def __enter__(self):
        self.manager.enter()

    def __exit__(self, *error):
        self.manager.is_locked = False


class StrictManager(OffloadingManager):
    """Chunks in numbered slots; a broken contract is an AssertionError."""

    def __init__(self, capacity=1000, random=None):
        self.capacity = capacity
        self.random = random
        self.resident = {}
        self.storing = {}
        self.next_slot = 0
        self.pins = Counter()
        self.fenced = {}
        """Key -> what still copies: of loads (pins) or of a store."""
        self.answers = {}
        self.policy = OffloadPolicy.CHUNK_LEVEL
        self.events = []
        self.resets = []
        self.finished = []
        self.is_locked = False
        self.can_drop = True
        self.log = []

    @property
    def lock(self):
        return Lock(self)

    def enter(self):
        assert not self.is_locked, "the lock is not reentrant"
        if self.random is not None:
            for key in [key for key in self.resident if not self.pins[key]]:
                if self.random.random() < 0.02:
                    self._evict(key)
        self.is_locked = True

    def _evict(self, key):
        del self.resident[key]
        self.events.append(OffloadingEvent([key], Medium.CPU, removed=True))

    def on_new_request(self, req_context):
        assert self.is_locked
        return RequestOffloadingContext(self.policy)

    def lookup(self, key, req_context):
        assert self.is_locked
        if key in self.answers:
            return self.answers[key]
        if key in self.resident:
            return LookupResult.HIT
        return LookupResult.HIT_PENDING if key in self.storing else LookupResult.MISS

    def get_load_source(self, key, req_context):
        return CacheHitSource.HOST

    def prepare_load(self, keys, req_context):
        assert self.is_locked
        assert all(key in self.resident for key in keys), "only what is resident can be loaded"
        self.pins.update(keys)
        return Slots(self.resident[key] for key in keys)

    def complete_load(self, keys, req_context):
        assert self.is_locked
        assert keys, "nothing was loaded"
        for key in keys:
            assert self.pins[key] > 0, f"{key} is not pinned"
            self.pins[key] -= 1
        self._lift()

    def prepare_store(self, keys, req_context):
        assert self.is_locked
        assert all(req_context is not ended for ended in self.finished), "the request prepares nothing more"
        assert keys, "nothing is offered"
        assert len({*keys}) == len(keys)
        wanted = [key for key in keys if key not in self.resident and key not in self.storing]
        wanted = [key for key in wanted if key not in self.fenced]
        evictable = [key for key in self.resident if not self.pins[key] and key not in keys]
        missing = len(wanted) - (self.capacity - len(self.resident) - len(self.storing) - len(self.fenced))
        if missing > len(evictable):
            self.log.append(("refused", len(keys)))
            return None
        evicted = evictable[: max(0, missing)]
        for key in evicted:
            self._evict(key)
        for key in wanted:  # never a slot that was used before: whoever writes there late is harmless
            self.storing[key] = self.next_slot
            self.next_slot += 1
        return PrepareStoreOutput(wanted, Slots(self.storing[key] for key in wanted), evicted)

    def complete_store(self, keys, req_context, success=True):
        assert self.is_locked
        stored = [key for key in keys if key in self.storing]
        for key in stored:
            slot = self.storing.pop(key)
            if success:
                self.resident[key] = slot
        if stored and success:
            self.events.append(OffloadingEvent(stored, Medium.CPU, removed=False))
        for key in keys:
            if self.fenced.get(key) == "store":
                del self.fenced[key]

    def drop(self, keys):
        assert self.is_locked
        if not self.can_drop:
            return
        for key in keys:
            if key in self.resident:
                self._evict(key)
                self.fenced[key] = "load"
            elif key in self.storing:
                del self.storing[key]
                self.fenced[key] = "store"
        self._lift()

    def _lift(self):
        for key in [key for key, what in self.fenced.items() if what == "load" and not self.pins[key]]:
            del self.fenced[key]

    def on_request_finished(self, req_context):
        assert self.is_locked
        self.finished.append(req_context)

    def take_events(self):
        assert self.is_locked
        events, self.events = self.events, []
        return events

    def reset_cache(self):
        assert self.is_locked
        for key in list(self.resident):
            self._evict(key)
        self.storing.clear()
        self.pins.clear()
        self.fenced.clear()
        self.resets.append("reset")

    def on_reset_flushed(self):
        assert self.is_locked
        self.resets.append("flushed")

    def on_schedule_end(self, context):
        assert self.is_locked

    def has_pending_work(self):
        assert self.is_locked
        return False

    def get_stats(self):
        assert self.is_locked
        return None

    def config_info(self):
        assert self.is_locked
        return super().config_info()


class Known(OffloadingManager):
    """Says what it was told to, and counts."""

    def __init__(self, known):
        self.known = known
        self.asked = []

    def lookup(self, key, req_context):
        assert isinstance(req_context, ReqContext)
        self.asked.append(key)
        return self.known.get(key, LookupResult.MISS)

    def on_new_request(self, req_context):
        return RequestOffloadingContext()

    def prepare_load(self, keys, req_context):
        raise NotImplementedError

    def prepare_store(self, keys, req_context):
        raise NotImplementedError


class ScriptedWorker(OffloadingWorker):
    """Ends jobs when it is told to."""

    def __init__(self, kv_caches=None):
        self.kv_caches = kv_caches
        self.calls = []
        self.running = {}
        self.results = []
        self.refuses = False
        self.error = None
        self.ends_when_waited_for = True
        self.goes_on = set()
        self.move = None

    def _submit(self, kind, job_id, source, target):
        if self.error is not None:
            raise self.error
        self.calls.append((kind, job_id))
        if self.refuses:
            return False
        self.running[job_id] = (kind, source, target)
        return True

    def submit_store(self, job_id, src_spec, dst_spec):
        return self._submit("store", job_id, src_spec, dst_spec)

    def submit_load(self, job_id, src_spec, dst_spec, expedited=False):
        return self._submit("expedited" if expedited else "load", job_id, src_spec, dst_spec)

    def end(self, job_id, success=True):
        kind, source, target = self.running.pop(job_id)
        if self.move is not None and success:
            self.move(kind, source, target)
        self.results.append(TransferResult(job_id, success, 1000, 0.5))

    def repeat(self, job_id, success=True):
        self.results.append(TransferResult(job_id, success))

    def get_finished(self):
        if self.error is not None:
            raise self.error
        results, self.results = self.results, []
        return results

    def wait(self, job_ids):
        assert isinstance(job_ids, set), f"jobs in a {type(job_ids).__name__}"
        self.calls.append(("wait", sorted(job_ids)))
        if self.error is not None:
            raise self.error
        if self.ends_when_waited_for:
            for job_id in sorted(job_ids):
                if job_id in self.running:
                    self.end(job_id)

    def let_go(self, job_ids):
        """``wait``, but for those that have let go already."""
        self.calls.append(("let go", sorted(job_ids)))
        self.wait(job_ids - self.goes_on)
        return self.goes_on & self.running.keys()

    def shutdown(self):
        self.calls.append(("shutdown",))


class ScriptedSpec(OffloadingSpec):
    """The medium of these tests; a test reaches what it made through the class."""

    manager = None
    workers: ClassVar[list] = []

    def __init__(self, config):
        super().__init__(config)
        self.replicated_layout = config.replicated_layout

    def get_manager(self):
        return type(self).manager or StrictManager()

    def get_worker(self, kv_caches):
        worker = ScriptedWorker(kv_caches)
        self.workers.append(worker)
        return worker


class SpecWithSettings(ScriptedSpec):
    """One with keys that resemble the connector's."""

    extra_keys = frozenset({"block_sizes", "names", "read_timeout_seconds", "tier_poll_interval_ms"})
