"""vLLM's UMBPStoreConnector on a machine without a GPU: a runtime for it, in this process.

vLLM has of UMBP what is told to a runtime, which MORI registers. This one keeps what is put in a store in memory
(``kv_vllm_mooncake_pool``); its copies are those of ``kv_vllm_gpu``.
"""

import itertools
from types import SimpleNamespace

from kv_vllm_gpu import COMPUTE, Card, Event, Stream
from kv_vllm_mooncake_lookups import AtOnce
from kv_vllm_mooncake_pool import FULL, Pool, Value
from vllm.distributed.kv_transfer.kv_connector.v1.umbp import UMBPStoreConnector
from vllm.distributed.kv_transfer.kv_connector.v1.umbp import scheduler as vllms_scheduler
from vllm.distributed.kv_transfer.kv_connector.v1.umbp.data import TransferJobState, TransferJobStatus
from vllm.distributed.kv_transfer.kv_connector.v1.umbp.runtime import UMBPRuntimeFactory

from kv_api import Direction

MODE = "embedded"
"""The one that vLLM knows."""

CLOCK = itertools.count()
LOOKS = 100
"""So many looks at the clock are a second."""


class Shared(Pool):
    """A store of which each worker is told what of its own was let go of."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.evicted = []

    def evict(self):
        before = set(self.values)
        super().evict()
        self.evicted.extend(before - set(self.values))


class Job:
    """What is under way for one job of vLLM's: a value and the end of its copy, by key."""

    def __init__(self, state):
        self.state = state
        self.moving = {}
        state.start()

    def is_done(self):
        """Whether nothing of it is under way."""
        return all(event.query() for _, event in self.moving.values())

    def wait(self):
        """Until nothing is."""
        for _, event in self.moving.values():
            event.synchronize()


class Worker:
    """A rank's handle; fits ``UMBPWorkerHandle``."""

    def __init__(self, pool):
        self._pool = pool
        self._jobs, self._whole = {}, {}
        self._own = set()
        self.card = None

    def register_buffers(self, kv_caches):
        """All of them are of one device."""
        self.card = Card(next(iter(kv_caches.values())))
        self.card.may_fail = True

    def load(self, plans):
        """Begin to get what is there."""
        job = self._begin(plans)
        for plan in plans:
            value = self._pool.values.get(plan.key)
            if value is None or not value.is_whole or not self._pool.moves():
                job.state.fail([plan.key], "not there")
            else:
                self._pool.used(plan.key)
                job.moving[plan.key] = value, self._copy(Direction.LOAD, plan, value)
        return job.state

    def store(self, plans):
        """Begin to put what isn't there. Of what is, or comes by another, nothing is put."""
        job = self._begin(plans)
        for plan in plans:
            value = self._pool.begin(plan.key, [item.length for item in plan.ranges])
            if isinstance(value, Value) and self._pool.moves():
                job.moving[plan.key] = value, self._copy(Direction.STORE, plan, value)
            elif isinstance(value, Value):
                self._pool.end(plan.key, value, is_whole=False)
                job.state.fail([plan.key], "it didn't come through")
            elif value == FULL:
                job.state.fail([plan.key], "no room")
            else:
                job.state.complete([plan.key])
        return job.state

    def _begin(self, plans):
        state = TransferJobState(tuple(plans))
        self._jobs[id(state)] = job = Job(state)
        return job

    def _copy(self, direction, plan, value):
        """Begin with a copy between a block of the GPU and a value. What is put is computed before."""
        pages = [self.card.page_at(item.base_address) for item in plan.ranges]
        [block] = {block for _, block in pages}
        assert [layer for layer, _ in pages] == [*range(self.card.device.config.layers)], f"layers of {pages}"
        stream, event, computed = Stream(), Event(), Event()
        if direction is Direction.STORE:
            COMPUTE.card = self.card
            computed.record(COMPUTE)
            stream.wait_event(computed)
        self.card.submit(direction, [(block, value.places)], stream, in_order=direction is Direction.STORE)
        event.record(stream)
        return event

    def poll(self, state):
        """It, if it has ended."""
        job = self._jobs.get(id(state))
        if job is None:
            return state
        if not job.is_done():
            return None
        return self._end(job)

    def wait(self, state):
        """It, when it has ended."""
        job = self._jobs.get(id(state))
        if job is not None:
            job.wait()
            self._end(job)
        return state

    cancel = wait

    def _end(self, job):
        del self._jobs[id(job.state)]
        for key, (value, event) in job.moving.items():
            if event.copy in self.card.failed:
                job.state.fail([key], "its copy failed")
            else:
                job.state.complete([key])
            if not value.is_whole:
                self._whole[key] = value
        if job.state.status is not TransferJobStatus.COMPLETED:
            self._forget(job.state)
        return job.state

    def publish(self, state):
        """Others may find it from now on."""
        for key in state.keys:
            value = self._whole.pop(key, None)
            if value is not None:
                self._pool.end(key, value, is_whole=True)
                self._own.add(key)

    def _forget(self, state):
        """It won't be published."""
        for key in state.keys:
            value = self._whole.pop(key, None)
            if value is not None:
                self._pool.end(key, value, is_whole=False)

    def take_evicted_keys(self):
        """Of what this rank has put, what has gone since the last time."""
        gone = [key for key in self._pool.evicted if key in self._own]
        self._own.difference_update(gone)
        self._pool.evicted = [key for key in self._pool.evicted if key not in gone]
        return gone

    def close(self):
        """What it put stays."""
        for job in list(self._jobs.values()):
            self.wait(job.state)


class Scheduler:
    """A scheduler's handle; fits ``UMBPSchedulerHandle``."""

    def __init__(self, pool):
        self._pool = pool

    def lookup(self, keys):
        """Whether each is there, as a whole."""
        return [self._pool.has(key) for key in keys]

    def clear(self):
        """Let go of all that has come."""
        for key in [key for key, value in self._pool.values.items() if value.is_whole]:
            del self._pool.values[key]
        return True

    def close(self):
        """What was put stays."""


POOLS = {}
"""By world, what its engines have together. There is one, the youngest."""


class Runtime:
    """Fits ``IUMBPRuntime``."""

    def __init__(self, config):
        told = config.options
        world = told["world"]
        if world not in POOLS:
            POOLS.clear()
            POOLS[world] = Shared(**{name: told[name] for name in ("room", "evicts", "fails") if name in told})
        self.pool = POOLS[world]

    def create_scheduler_handle(self, namespace, topology, layout):
        """For the scheduler."""
        return Scheduler(self.pool)

    def create_worker_handle(self, namespace, topology, layout):
        """For a rank."""
        return Worker(self.pool)


UMBPRuntimeFactory.register(MODE, Runtime)

vllms_scheduler.ThreadPoolExecutor = AtOnce
vllms_scheduler.time = SimpleNamespace(monotonic=lambda: next(CLOCK) / LOOKS)


class OnCpu(UMBPStoreConnector):
    """vLLM's, in a world of the testbed's.

    ``room``, ``evicts``, ``fails``: of the pool.
    """

    def __init__(self, vllm_config, role, kv_cache_config):
        told = vllm_config.kv_transfer_config.kv_connector_extra_config
        told["world"] = vllm_config.model_config.model.rpartition("/")[2].removesuffix("-other")
        super().__init__(vllm_config, role, kv_cache_config)
