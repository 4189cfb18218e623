"""PegaFlow's connector on a machine without a GPU, with a server of our own in this process.

What looks up, decides, saves and loads is PegaFlow's. So is the thread that saves, which takes turns with the
world's. In the place of its server, its client and memory that processes share is ``kv_vllm_pegaflow_server``.
"""

import itertools
import pickle
import queue
import threading
import warnings
from types import SimpleNamespace

import torch
from kv_vllm_gpu import MINE, Card, Event, Jobs, Thread
from kv_vllm_pegaflow_server import FAILED, LOADED, PENDING, Layer, Server

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM compiles something when it is imported
    from pegaflow import connector as pegaflows
    from pegaflow.connector import PegaKVConnector
    from pegaflow.connector import worker as pegaflows_worker

# -- CUDA --------------------------------------------------------------------------------------


def synchronize(device=None):
    """All that was launched by now has run."""
    card = MINE.jobs.card
    event = Event()
    event.step, event.card = card.device.copies.launched_steps, card
    event.synchronize()


class Torch:
    """torch, for a module that has a GPU."""

    cuda = SimpleNamespace(is_available=lambda: True, current_device=lambda: 0, synchronize=synchronize)

    def __getattr__(self, name):
        return getattr(torch, name)


class Shared:
    """In the place of memory that another process can have: where it begins."""

    def __init__(self, tensor):
        self.address = tensor.data_ptr()


# -- the thread that saves ---------------------------------------------------------------------


class Tasks(Jobs):
    """Its queue, from which it takes the next when it is its turn."""

    card = None
    """Of the rank whose thread it is."""

    def __init__(self):
        super().__init__()
        self.has_begun = threading.Event()

    def get(self):
        """The next one, when there is one and it is the thread's turn."""
        self.has_begun.set()
        return super().get()

    def get_nowait(self):
        """The next one, if there is one."""
        return self._jobs.get_nowait()

    def task_done(self):
        """One that was taken has been done."""


class Saved:
    """That a request's saves have ended. Who waits for that lets time go on."""

    def __init__(self):
        self._is_set = False
        self.tasks = CURRENT.tasks

    def set(self):
        """They have."""
        self._is_set = True

    def wait(self):
        """Until they have."""
        self.tasks.card.device.synchronize()
        self.tasks.card.run_out(self.tasks.let_thread_work)
        assert self._is_set, "it waits for a save that never ends"


CURRENT = SimpleNamespace(tasks=None, server=None)
"""What belongs to the connector that is at work."""

# -- PegaFlow's client -------------------------------------------------------------------------


class Client:
    """Fits ``EngineRpcClient``."""

    def __init__(self, endpoint=None):
        self._server = CURRENT.server

    def health(self):
        """It can be asked."""
        return True, ""

    def start_session_watcher(self, instance_id, namespace, tp_size, world_size):
        """Whoever ends says so."""

    def register_context_batch(
        self, instance, namespace, tp_rank, pp_rank, tp_size, world_size, device_id, *layers, **said
    ):
        """A rank's layers."""
        names, wrappers, _, sizes, *_ = layers
        kinds = said["layer_group_ids"]
        found = {
            name: Layer(pickle.loads(wrapper).address, size, name.split(".")[0], kind)
            for name, wrapper, size, kind in zip(names, wrappers, sizes, kinds, strict=True)
        }
        self._server.register(instance, namespace, tp_rank, tp_size, CURRENT.tasks.card, found)
        return True, ""

    def unregister_context(self, instance):
        """The engine has gone."""
        return self._server.unregister(instance)

    def query_prefetch(self, instance, hashes, req_id, wait_for_full_prefix=False, group_id=0):
        """What is there."""
        return self._server.look_up(instance, hashes, group_id)

    def release(self, lease):
        """Nothing will be loaded by it."""
        self._server.release(lease)

    def save(self, instance, tp_rank, pp_rank, device_id, saves):
        """Save blocks, and wait for it."""
        try:
            return self._server.save(instance, tp_rank, saves)
        except AssertionError:
            MINE.jobs.card.is_broken = True
            raise

    def load(self, instance, tp_rank, device_id, name, layer_groups, loads):
        """Begin to load; the state of that name says what becomes of it."""
        STATES[name] = self._server.load(instance, tp_rank, layer_groups, loads)
        return True, ""


STATES = {}
"""Name of a load -> an event after it; None of one that fails."""


class LoadState:
    """Fits ``PyLoadState``."""

    numbers = itertools.count(1)

    def __init__(self):
        self._name = f"load {next(self.numbers)}"

    def shm_name(self):
        """What it is called by."""
        return self._name

    def get_state(self):
        """What has become of it."""
        event = STATES[self._name]
        if event is not None and not event.query():
            return PENDING
        return FAILED if event is None or event.copy in event.card.failed else LOADED

    def is_ready(self):
        """Whether it has ended."""
        return self.get_state() != PENDING


# -- in PegaFlow's place -----------------------------------------------------------------------

pegaflows.torch = pegaflows_worker.torch = Torch()
pegaflows.EngineRpcClient = Client
pegaflows_worker.PyLoadState = LoadState
pegaflows_worker.CudaIPCWrapper = Shared
pegaflows_worker.queue = SimpleNamespace(Queue=Tasks, Empty=queue.Empty)
pegaflows_worker.threading = SimpleNamespace(Thread=Thread, Lock=threading.Lock, Event=Saved)

SERVERS = {}
"""By model, that of a world. There is one, the youngest."""


def server_of(model, told):
    """That of a world, as it was told."""
    if model not in SERVERS:
        SERVERS.clear()
        SERVERS[model] = Server(**{name: told[name] for name in ("room", "waits", "fails") if name in told})
    return SERVERS[model]


class OnCpu(PegaKVConnector):
    """PegaFlow's, with settings of our own.

    ``lags``: after each step in which its thread gets a turn there are so many without. ``room``, ``waits``,
    ``fails``: of the server.
    """

    card = None

    def __init__(self, vllm_config, role, kv_cache_config):
        told = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.server = CURRENT.server = server_of(vllm_config.model_config.model, told)
        super().__init__(vllm_config, role, kv_cache_config)
        self._lags, self._steps = told.get("lags", 0), itertools.count(1)

    def register_kv_caches(self, kv_caches):
        self._tasks = CURRENT.tasks = self._worker._save_queue
        first = next(iter(kv_caches.values()))
        self.card = self._tasks.card = Card(first[0] if isinstance(first, list) else first)
        self.card.may_fail, self.card.is_broken = True, False
        super().register_kv_caches(kv_caches)
        assert self._tasks.has_begun.wait(60), "its thread doesn't begin"

    def wait_for_save(self):
        CURRENT.tasks = self._tasks
        super().wait_for_save()

    def get_finished(self, finished_req_ids):
        if next(self._steps) % (self._lags + 1) == 0:
            self._tasks.let_thread_work()
        assert not self.card.is_broken, "PegaFlow took what went wrong here for a save that failed"
        return super().get_finished(finished_req_ids)

    def shutdown(self):
        if self.card is not None:
            self.card.device.synchronize()
            self.card.run_out(self._tasks.let_thread_work)
        super().shutdown()


class Mended(OnCpu):
    """And without what it was found to get wrong, so that a hunt finds more."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        if self._scheduler is not None:
            self._scheduler._cache_groups = Layout(self._scheduler._cache_groups)
            self._targets = self._scheduler._load_block_ids_by_group
            self._scheduler._load_block_ids_by_group = self._without_null

    def _without_null(self, *said, **named):
        """Where a window has no block, nothing is loaded."""
        return tuple(tuple(number or None for number in group) for group in self._targets(*said, **named))

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        """Of a request that reads no cache the answer is dropped, so nothing is found for it."""
        if request.skip_reading_prefix_cache:
            self._scheduler._external_matched_blocks[request.request_id] = 0
            return 0, False
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def build_connector_meta(self, scheduler_output):
        """Before a preempted request's blocks are somebody else's, its saves have ended. Who has ended waits."""
        ended = (scheduler_output.preempted_req_ids or set()) - self._scheduler._held_requests
        self._scheduler._pending_saves -= ended
        plan = super().build_connector_meta(scheduler_output)
        plan.ended = ended
        return plan

    def handle_preemptions(self, preempted):
        super().handle_preemptions(preempted)
        self._worker._completed_saves -= preempted.ended


class Layout:
    """PegaFlow's, of a window that may end with a token that is computed anew."""

    def __init__(self, layout):
        self._layout = layout

    def __getattr__(self, name):
        return getattr(self._layout, name)

    def sliding_retained_tokens_of(self, group_index):
        """One more: the last token of a prompt is looked for, and not loaded."""
        return self._layout.sliding_retained_tokens_of(group_index) + 1
