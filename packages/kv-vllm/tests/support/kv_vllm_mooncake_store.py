"""vLLM's MooncakeStoreConnector on a machine without a GPU, over a store in this process.

The store is that of ``kv_vllm_mooncake_pool``, and what orders its copies are the events of ``kv_vllm_gpu``.
Threads that put and get are vLLM's and take turns with the world's, and so does who answers the scheduler, without
a socket.
"""

import itertools
import queue
import sys
import threading
from collections import deque
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from unittest.mock import patch

import torch
from kv_vllm_gpu import COMPUTE, MINE, Card, Jobs
from kv_vllm_gpu import Event as GpuEvent
from kv_vllm_mooncake_lookups import AtOnce, make_socket
from kv_vllm_mooncake_pool import CURRENT, LIBRARY, Pool
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import worker as vllms_worker
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.connector import MooncakeStoreConnector
from vllm.distributed.mooncake_store import MooncakeStoreConfig

from kv_sim.violation import DidNotReturn

# -- CUDA --------------------------------------------------------------------------------------


class Event(GpuEvent):
    """A place in the stream that computes."""

    def record(self, stream=COMPUTE):
        super().record(stream)


class Torch:
    """torch, for a module that has a GPU."""

    cuda = SimpleNamespace(Event=Event)

    def __getattr__(self, name):
        return getattr(torch, name)


# -- threads that put and get ------------------------------------------------------------------


class Ended(BaseException):
    """A thread is to end, which vLLM's never do."""


class Ends:
    """A thread that can be ended."""

    def run(self):
        """Until that."""
        with suppress(Ended):
            super().run()


class Sends(Ends, vllms_worker.KVCacheStoreSendingThread):
    """Who puts."""


class Receives(Ends, vllms_worker.KVCacheStoreRecvingThread):
    """Who gets."""


class Tasks:
    """A ``Queue`` of theirs, from which a thread takes the next when it is its turn."""

    card = None
    """Of the rank whose threads they are."""

    def __init__(self):
        self._tasks = deque()
        self._begun = queue.SimpleQueue()
        self.unfinished_tasks = 0
        self.turns = []
        self.is_closing = False

    def put(self, task):
        """For later."""
        self.unfinished_tasks += 1
        self._tasks.append(task)

    def get(self):
        """The next one; who is to end is ended."""
        if not hasattr(MINE, "jobs"):
            MINE.jobs = Jobs()
            self._begun.put((threading.current_thread().name, MINE.jobs))
        MINE.jobs._wait_for_turn()
        while not self._tasks:
            if self.is_closing:
                MINE.jobs.end()
                raise Ended
            MINE.jobs.rest()
        return self._tasks.popleft()

    def task_done(self):
        """One that was taken has been done."""
        self.unfinished_tasks -= 1

    def have_begun(self, card, threads):
        """So many threads take from it."""
        self.card = card
        self.turns = [turn for _, turn in sorted(self._begun.get(timeout=60) for _ in range(threads))]

    def let_threads_work(self):
        """What they can do now, they do."""
        for turn in self.turns:
            turn.let_thread_work()

    def join(self):
        """Wait until all have been done: time goes on."""
        for _ in range(100):
            if not self.unfinished_tasks:
                return
            self.card.device.synchronize()
            self.card.run_out(self.let_threads_work)
        raise DidNotReturn("it waits for a task that nobody will have done")

    def close(self):
        """Let its threads come to their end."""
        self.is_closing = True
        self.let_threads_work()


# -- in vLLM's place ---------------------------------------------------------------------------

INSTEAD = {
    "torch": Torch(),
    "KVCacheStoreSendingThread": Sends,
    "KVCacheStoreRecvingThread": Receives,
    "queue": SimpleNamespace(Queue=Tasks),
    "zmq": SimpleNamespace(Context=lambda: None, REP="answers", REQ="asks"),
    "make_zmq_socket": make_socket,
    "ThreadPoolExecutor": AtOnce,
    "MooncakeStoreConfig": SimpleNamespace(load_from_config=lambda: CURRENT.config),
}
"""What vLLM's module finds, while one of ours asks."""

POOLS = {}
"""By world, what its engines have together. There is one, the youngest."""


def pool_of(model, told):
    """That of a world, as it was told. A stranger's model has a path that begins or ends in another way."""
    world = model.rpartition("/")[2].removesuffix("-other")
    if world not in POOLS:
        POOLS.clear()
        POOLS[world] = Pool(**{name: told[name] for name in ("room", "evicts", "fails") if name in told})
    return POOLS[world]


def in_its_place(vllm_config=None):
    """Whoever imports Mooncake's library gets a client of a world's pool, and has a GPU."""
    if vllm_config is not None:
        told = vllm_config.kv_transfer_config.kv_connector_extra_config
        CURRENT.pool = pool_of(vllm_config.model_config.model, told)
        CURRENT.config = MooncakeStoreConfig("", "", "tcp", "", enable_offload=told.get("disk", False))
    stack = ExitStack()
    stack.enter_context(
        patch.dict(sys.modules, {"mooncake": SimpleNamespace(store=LIBRARY), "mooncake.store": LIBRARY})
    )
    stack.enter_context(patch.multiple(vllms_worker, **INSTEAD))
    return stack


class OnCpu(MooncakeStoreConnector):
    """vLLM's, with an end, and with settings of our own.

    ``lags``: after each step in which its threads get a turn there are so many without. ``room``, ``evicts``,
    ``fails``: of the pool. ``disk``: the store has one behind it.
    """

    card = None

    def __init__(self, vllm_config, role, kv_cache_config):
        with in_its_place(vllm_config):
            super().__init__(vllm_config, role, kv_cache_config)
        told = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._lags, self._steps = told.get("lags", 0), itertools.count(1)

    def register_kv_caches(self, kv_caches):
        first = next(iter(kv_caches.values()))
        self.card = Card(first[0] if isinstance(first, list) else first)
        with in_its_place():
            super().register_kv_caches(kv_caches)
        for tasks, threads in self._queues():
            tasks.have_begun(self.card, len(threads))

    def _queues(self):
        """Those of its threads, and the threads."""
        worker = self.connector_worker
        sends = [worker.kv_send_thread] if worker.kv_send_thread is not None else []
        pairs = [(thread.request_queue, [thread]) for thread in sends]
        return [*pairs, (worker.recv_request_queue, worker.kv_recv_threads)]

    def let_threads_work(self):
        """What they can do now, they do."""
        for tasks, _ in self._queues():
            tasks.let_threads_work()

    def wait_for_save(self):
        COMPUTE.card = self.card
        with in_its_place():
            super().wait_for_save()

    def _step_ends(self):
        if next(self._steps) % (self._lags + 1) == 0:
            self.let_threads_work()

    def get_finished(self, finished_req_ids):
        self._step_ends()
        return super().get_finished(finished_req_ids)

    def get_transfer_results(self, finished_req_ids):
        self._step_ends()
        return super().get_transfer_results(finished_req_ids)

    def shutdown(self):
        """vLLM's leaves its threads, and who answers."""
        worker = getattr(self, "connector_worker", None)
        card, self.card = self.card, None
        if card is not None:
            card.device.synchronize()
            card.run_out(self.let_threads_work)
            for tasks, threads in self._queues():
                tasks.close()
                for thread in threads:
                    thread.join()
        if worker is not None and worker.lookup_server is not None:
            worker.lookup_server.running = False
            worker.lookup_server.socket.close()
            worker.lookup_server.thread.join()
        super().shutdown()
