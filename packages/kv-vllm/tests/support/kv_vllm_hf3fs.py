"""vLLM's HF3FSKVConnector on a machine without a GPU and without a 3FS.

Its kernels, streams and events are those of ``kv_vllm_gpu``. Where 3FS's own client isn't installed vLLM takes a
client of its own that has a file; the server that knows what is in the file is vLLM's, too, and is asked without a
socket. Its two threads are real and take turns with the world's; what they give to others they do themselves.
"""

import itertools
import signal
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from queue import Empty
from types import SimpleNamespace

import torch
from kv_vllm_gpu import COMPUTE, MINE, Card, ComputeStream, Jobs
from kv_vllm_gpu import Event as GpuEvent
from kv_vllm_gpu import Stream as GpuStream
from kv_vllm_hf3fs_server import Client, server_of
from vllm.distributed.kv_transfer.kv_connector.v1.hf3fs import hf3fs_connector
from vllm.distributed.kv_transfer.kv_connector.v1.hf3fs.hf3fs_connector import HF3FSKVConnector
from vllm.distributed.kv_transfer.kv_connector.v1.hf3fs.utils import gather_scatter_helper, hf3fs_mock_client

from kv_api import Direction

# -- CUDA --------------------------------------------------------------------------------------


class Stream(GpuStream):
    """A queue of copies that can be waited for."""

    def synchronize(self):
        """All that is in it has happened."""
        event = Event()
        event.record(self)
        event.synchronize()


class Event(GpuEvent):
    """A place in a stream, by default in that which is current."""

    def record(self, stream=None):
        """It happens when all that is in the stream now has."""
        super().record(stream or CURRENT.stream)


class Current(threading.local):
    """Of each thread: the stream in which kernels are launched."""

    stream = COMPUTE


CURRENT = Current()


@contextmanager
def current(stream):
    """Launch kernels in that one."""
    before, CURRENT.stream = CURRENT.stream, stream
    yield
    CURRENT.stream = before


class ClientStream:
    """That of a client, from which the bytes are read at once: it waits in their place."""

    @staticmethod
    def wait_event(event):
        """What comes next is read when that has happened."""
        event.synchronize()


class Torch:
    """torch, for a module that has a GPU."""

    def __init__(self, current_stream):
        self.cuda = SimpleNamespace(Stream=Stream, Event=Event, stream=current, current_stream=current_stream)

    def __getattr__(self, name):
        return getattr(torch, name)


def kernel(direction):
    """The kernel that copies a block between all layers and a buffer, page by page."""

    def copy(layers, tokens, buffer, places, block_size, heads, width, strides):
        assert strides[1:] == (block_size * width, width, 1), f"strides in a page: {strides}"
        block, item = places[0] // block_size, buffer.element_size()
        assert places == [*range(block * block_size, (block + 1) * block_size)], f"not a block: {places}"
        assert places[-1] < tokens
        assert buffer.is_contiguous() and buffer.shape == (len(layers), heads, block_size, width)
        card = MINE.jobs.card
        pages = [card.page_at(base + block * strides[0] * item) for base in layers.tolist()]
        assert pages == [(layer, block) for layer in range(len(pages))], f"layers of a page: {pages}"
        at, size = buffer.data_ptr(), card.page_bytes
        host = tuple(at + layer * size for layer in range(len(pages)))
        assert buffer.numel() * item == size * len(pages)
        assert not isinstance(CURRENT.stream, ComputeStream), "a copy in the stream that computes"
        card.submit(direction, [(block, host)], CURRENT.stream, in_order=True)

    return copy


# -- threads -----------------------------------------------------------------------------------


class Tasks(Jobs):
    """A queue of one of its threads', which works when it is its turn."""

    card = None
    """Of the rank whose thread it is."""

    def __init__(self):
        super().__init__()
        self.is_closing, self.is_asked = False, threading.Event()

    def get(self, block=True, timeout=None):
        """The next one, when there is one and it is the thread's turn."""
        MINE.jobs = threading.current_thread().tasks = self
        self.is_asked.set()
        self._wait_for_turn()
        while self._jobs.empty():
            if self.is_closing:
                raise Empty
            self.rest()
        return self._jobs.get()


class Thread(threading.Thread):
    """One that works at tasks."""

    tasks = None

    def run(self):
        """And says when it ends."""
        super().run()
        self.tasks.end()

    def join(self, timeout=None):
        """Let it come to its end."""
        self.tasks.is_closing = True
        self.tasks.let_thread_work()
        super().join(timeout)


class AtOnce:
    """In the place of an executor: who gives it something to do does that."""

    def __init__(self, **said):
        """However many could work at once."""

    def submit(self, function, *args):
        """A future with what came of it."""
        future = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        return future

    def shutdown(self, wait):
        """Nothing is under way."""


# -- in vLLM's place ---------------------------------------------------------------------------


SIGNALS = []
"""Signals that somebody would have had this process hear of in another way."""

hf3fs_connector.torch = Torch(lambda: CURRENT.stream)
hf3fs_mock_client.torch = Torch(lambda: ClientStream)
hf3fs_connector.threading = SimpleNamespace(Thread=Thread, Event=threading.Event)
hf3fs_connector.queue = SimpleNamespace(Queue=Tasks)
hf3fs_connector.concurrent = SimpleNamespace(futures=SimpleNamespace(ThreadPoolExecutor=AtOnce))
hf3fs_connector.atexit = SimpleNamespace(register=lambda function: None)
hf3fs_connector.Hf3fsMetadataClient = Client
names = {name: getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGQUIT")}
hf3fs_connector.signal = SimpleNamespace(signal=lambda number, handler: SIGNALS.append(number), **names)
gather_scatter_helper.gather_kv_caches = kernel(Direction.STORE)
gather_scatter_helper.scatter_kv_caches = kernel(Direction.LOAD)


class Failing(hf3fs_mock_client.Hf3fsClient):
    """vLLM's client of a file system of which every so many reads and writes fail, as it says of those that do."""

    fails = 0
    calls = itertools.count(1)

    def _call(self, call, *said):
        """It was tried, and came to nothing."""
        ended = call(*said)
        return [-1] * len(ended) if self.fails and next(self.calls) % self.fails == 0 else ended

    def batch_read(self, *said):
        return self._call(super().batch_read, *said)

    def batch_write(self, *said):
        return self._call(super().batch_write, *said)


hf3fs_connector.Hf3fsClient = Failing


class Unended(HF3FSKVConnector):
    """vLLM's, with settings of our own.

    ``lags``: after each step in which its threads get a turn there are so many without. ``fails``: of its reads
    and writes of a file every so many fail.
    """

    def __init__(self, vllm_config, role, kv_cache_config):
        told = vllm_config.kv_transfer_config.kv_connector_extra_config
        told.setdefault("hf3fs_file_size", 1 << 14)
        told.setdefault("hf3fs_client_numjobs", 2)
        self._storage_path = told["hf3fs_storage_path"]
        server_of(self)
        super().__init__(vllm_config, role, kv_cache_config)
        self._lags, self._fails = told.get("lags", 0), told.get("fails", 0)
        self._steps = itertools.count(1)

    def register_kv_caches(self, kv_caches):
        self.card = Card(next(iter(kv_caches.values())))
        super().register_kv_caches(kv_caches)
        calls = itertools.count(1)
        for client in self._clients:
            client.fails, client.calls = self._fails, calls
        for tasks in self._queues():
            tasks.card = self.card
            assert tasks.is_asked.wait(60), "its thread doesn't begin"

    def _queues(self):
        manager = self._async_manager
        return (manager._save_queue, manager._load_queue)

    def let_threads_work(self):
        """What they can do now, they do."""
        for tasks in self._queues():
            tasks.let_thread_work()

    def wait_for_save(self):
        COMPUTE.card = self.card
        super().wait_for_save()

    def get_finished(self, finished_req_ids):
        if next(self._steps) % (self._lags + 1) == 0:
            self.let_threads_work()
        return super().get_finished(finished_req_ids)


class OnCpu(Unended):
    """The same with an end: vLLM's class has no ``shutdown``, so its threads stay."""

    def shutdown(self):
        if not hasattr(self, "_async_manager"):
            return
        self.card.run_out(self.let_threads_work)
        self.close()
