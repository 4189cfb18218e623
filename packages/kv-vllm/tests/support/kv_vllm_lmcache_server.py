"""LMCache's server in this process, without a socket, a thread or a GPU.

What it looks up, locks, keeps, evicts, stores and loads is LMCache's own code. Whoever asks it something gets an
answer at once, or when it is the server's turn (``lags``). In the place of CUDA is ``kv_vllm_lmcache_cuda``.
"""

import copy
import functools
import itertools
import warnings
from collections import deque
from types import SimpleNamespace

from kv_vllm_lmcache_cuda import CURRENT, EVENTS, Callbacks, Device, Operations, add_callback, create_cache_context

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its logging makes something of OpenTelemetry's that is deprecated
    from lmcache.v1.distributed import storage_manager
    from lmcache.v1.distributed.config import (
        DRAML1ManagerConfig,
        EvictionConfig,
        L1MemoryManagerConfig,
        StorageManagerConfig,
    )
    from lmcache.v1.distributed.storage_controllers import eviction_controller
    from lmcache.v1.multiprocess import engine_context, object_group_transfer
    from lmcache.v1.multiprocess.futures import MessagingFuture
    from lmcache.v1.multiprocess.modules import lmcache_driven_transfer
    from lmcache.v1.multiprocess.modules.lookup import LookupModule
    from lmcache.v1.multiprocess.modules.management import ManagementModule

from kv_sim.guard import HistoryEnds

PLACE = 4096
"""Bytes that an object takes at least."""

# -- without threads ---------------------------------------------------------------------------


class NoThread:
    """What it would do by itself is done when it is its turn, or not at all."""

    def start(self):
        """It doesn't."""

    def join(self):
        """It has nothing to do."""

    def is_alive(self):
        """It would be."""
        return True


def without_thread(controller):
    """A controller of LMCache's whose thread isn't there."""

    class Controller(controller):
        def __init__(self, *said, **named):
            super().__init__(*said, **named)
            self._thread = NoThread()

    return Controller


class Once:
    """Whether to stop: after one round."""

    def __init__(self):
        self._answers = iter([False])

    def is_set(self):
        """Not yet, and then yes."""
        return next(self._answers, True)

    def set(self):
        """It does in any case."""


for name in ("L1EvictionController", "L2EvictionController", "StoreController", "PrefetchController"):
    setattr(storage_manager, name, without_thread(getattr(storage_manager, name)))
storage_manager.PeriodicEventNotifier = SimpleNamespace(create=lambda **said: None, shutdown=lambda: None)
eviction_controller.time = SimpleNamespace(
    sleep=lambda seconds: None, monotonic=eviction_controller.time.monotonic
)
engine_context.SessionManager = functools.partial(engine_context.SessionManager, cleanup_interval=None)
lmcache_driven_transfer.torch_dev = Device()
lmcache_driven_transfer.create_cache_context = create_cache_context
lmcache_driven_transfer.get_event_ipc_backend = lambda device: EVENTS
lmcache_driven_transfer.DeviceHostFuncDispatcher = Callbacks
lmcache_driven_transfer.submit_callback_to_stream = add_callback
object_group_transfer.device_ops = Operations()
object_group_transfer._HAS_BATCH_MEMCPY_ASYNC = True

# -- the server --------------------------------------------------------------------------------


class Answer(MessagingFuture):
    """Who waits for it lets the server work."""

    def __init__(self, server):
        super().__init__()
        self._server = server

    def wait(self, timeout=None):
        """Whether there is one. Of a server that has gone there never is."""
        self._server.turn()
        return self.query()


class Client:
    """Fits ``RequestClient``. The server isn't a part of it."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, operation):
        return functools.partial(SERVERS[self._name].ask, operation)

    def close(self):
        """It asks nothing more."""


class Server:
    """LMCache's, for one world, whose engines have it together.

    ``chunk``: tokens of a chunk. ``room``: of so many objects; when four fifths are taken, a fifth is evicted, as
    LMCache does each second. ``lags``: it has its turn when a worker has ended a step, and then not in so many.
    """

    def __init__(self, chunk=8, room=256, lags=0):
        self._asked, self.heartbeats = deque(), []
        self._lags, self._steps, self.is_gone = lags, itertools.count(1), False
        self._config = chunk, room
        self._block_tokens = None
        self.engines = 0
        """So many that use it now."""
        self.begin()

    def begin(self):
        """With nothing."""
        chunk, room = self._config
        memory = L1MemoryManagerConfig(room * PLACE, use_lazy=False, shm_name="")
        level = DRAML1ManagerConfig(memory)
        self.context = engine_context.MPCacheServerContext(
            StorageManagerConfig(level, EvictionConfig("LRU")), chunk, separate_object_groups=True
        )
        self.lookups = LookupModule(self.context)
        self.transfers = lmcache_driven_transfer.LMCacheDrivenTransferModule(self.context)
        self.callbacks = self.transfers._device_host_func_dispatcher
        self.management = ManagementModule(self.context, [self.transfers])
        self._modules = [self.lookups, self.transfers, self.management]
        self._asked.clear()

    def ask(self, operation, *said, **named):
        """Have an answer, now or later."""
        answer = Answer(self)
        if not self.is_gone:
            self._asked.append((answer, operation, *copy.deepcopy((said, named))))
            if not self._lags:
                self.turn()
        return answer

    def turn(self):
        """All that was asked is answered."""
        CURRENT.server = self
        self.callbacks.run()
        while self._asked and not self.is_gone:
            answer, operation, said, named = self._asked.popleft()
            answer.set_result(self._handler(operation)(*said, **named))
            self.callbacks.run()
        for controller in self.context.storage_manager._eviction_controllers:
            controller._stop_flag = Once()
            controller.eviction_loop()

    def _handler(self, operation):
        name = {"report_block_allocation": "report_block_allocations"}.get(operation, operation)
        return next(getattr(module, name) for module in self._modules if hasattr(module, name))

    def step_ends(self):
        """A worker has ended one."""
        CURRENT.server = self
        if next(self._steps) % (self._lags + 1) == 0:
            self.turn()

    def expects_blocks_of(self, tokens):
        """All engines have such. In LMCache's chunks others would lie alike, as the testbed's own bytes don't."""
        known = self._block_tokens = self._block_tokens or tokens
        if known != tokens:
            raise HistoryEnds(f"blocks of {tokens} tokens, beside an engine with such of {known}")

    def leave(self):
        """An engine ends. With the last one it does, and leaves nothing."""
        self.turn()
        self.engines -= 1
        if self.engines:
            return
        for module in self._modules:
            module.close()
        self.context.close()


SERVERS = {}
"""By name, that of a world. There is one, the youngest."""


def world_of(model):
    """The world that has a model. A stranger's has a path that begins or ends in another way."""
    return model.rpartition("/")[2].partition(" ")[0].removesuffix("-other")


def server_of(model, told):
    """That of a world, as it was told."""
    name = world_of(model)
    if name not in SERVERS:
        SERVERS.clear()
        SERVERS[name] = Server(**{one: told[one] for one in ("chunk", "room", "lags") if one in told})
    return SERVERS[name]
