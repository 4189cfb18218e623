"""vLLM's MoRIIOConnector on a machine without a GPU and without AMD's mori.

``kv_vllm_moriio_io`` moves the bytes, when the world says, and ``kv_vllm_moriio_machine`` has its threads and its
sockets. Both engines of a world are in this process; to the connector each worker and each scheduler is one.
"""

import itertools
import sys
from types import SimpleNamespace

import torch
import torch.distributed
from kv_vllm_gpu import COMPUTE
from kv_vllm_gpu import Event as GpuEvent
from kv_vllm_moriio_io import CARDS, MORI_IO, Wire
from kv_vllm_moriio_machine import (
    BOXES,
    MSGPACK,
    PROCESSES,
    THREADING,
    Clock,
    Later,
    Process,
    Tasks,
    Time,
    Zmq,
    make_zmq_socket,
    process,
    zmq_ctx,
)

INSTEAD = {"mori": SimpleNamespace(io=MORI_IO), "mori.io": MORI_IO, "msgpack": MSGPACK}
BEFORE = {name: sys.modules.get(name) for name in INSTEAD}
sys.modules |= INSTEAD
from vllm.distributed.kv_transfer.kv_connector.v1.moriio import (  # noqa: E402 - it looks for mori
    moriio_common,
    moriio_connector,
    moriio_engine,
)

for name, module in BEFORE.items():
    if module is None:
        del sys.modules[name]
    else:
        sys.modules[name] = module
assert moriio_connector.MoRIIO_enabled, "vLLM's module was imported before"

# -- CUDA, and groups of ranks -----------------------------------------------------------------


class Event(GpuEvent):
    """A place in the stream that computes."""

    def record(self, stream=COMPUTE):
        super().record(stream)


class Torch:
    """torch, for a module that has a GPU."""

    cuda = SimpleNamespace(Event=Event, current_stream=lambda: COMPUTE)

    def __getattr__(self, name):
        return getattr(torch, name)


class Alone:
    """What a rank says to the others. All of a world say the same, one after the other, in one process."""


ALL_REDUCE = torch.distributed.all_reduce


def all_reduce(tensor, *args, group=None, **said):
    """The others' votes are like one's own."""
    return None if isinstance(group, Alone) else ALL_REDUCE(tensor, *args, group=group, **said)


# -- in vLLM's place ---------------------------------------------------------------------------


def set_role(role):
    """Of the process."""
    process().role = role


def get_role():
    """Of the process."""
    return process().role


torch.distributed.all_reduce = all_reduce
ports = itertools.count(1)
moriio_common.get_open_port = lambda: next(ports)
for module in (moriio_connector, moriio_engine):
    module.get_role, module.zmq, module.time, module.threading = get_role, Zmq(), Time, THREADING
    module.zmq_ctx, module.make_zmq_socket = zmq_ctx, make_zmq_socket
moriio_connector.set_role = set_role
moriio_connector.torch = Torch()
moriio_connector.ThreadPoolExecutor = Later
moriio_connector.queue = SimpleNamespace(Queue=Tasks)
moriio_connector.get_attn_backend = lambda *args, **said: SimpleNamespace(get_name=lambda: "CPU")
moriio_engine.Queue = Tasks

WORLD = SimpleNamespace(name=None, clock=None)
"""The youngest."""


def clock_of(name):
    """The clock of a world. A new one begins with nothing sent."""
    if WORLD.name != name:
        WORLD.name, WORLD.clock = name, Clock()
        PROCESSES.clear()
        BOXES.clear()
        CARDS.clear()
    return WORLD.clock


def in_one(kv_caches):
    """All layers in one allocation, as vLLM has them: here their memory is one."""
    first = next(iter(kv_caches.values()))
    size, begin = first.element_size(), first.storage_offset()
    places = {name: begin + (one.data_ptr() - first.data_ptr()) // size for name, one in kv_caches.items()}
    return {name: first.as_strided(one.size(), one.stride(), places[name]) for name, one in kv_caches.items()}


def all_of_it(kv_caches):
    """What vLLM registers of that, and where layers begin; it needn't be whole pages of the machine's."""
    first = next(iter(kv_caches.values()))
    count = first.untyped_storage().nbytes() // first.element_size()
    whole = first.as_strided((count,), (1,), 0)
    return whole, {name: cache.data_ptr() - whole.data_ptr() for name, cache in kv_caches.items()}


class Unended(moriio_connector.MoRIIOConnector):
    """vLLM's, with settings of our own.

    ``lags``: after each step in which its threads get a turn there are so many without. ``seconds``: so many go by
    in each step in which nothing moves. ``apart``: each layer is an allocation of its own. ``read_mode``, which is
    vLLM's: False where the producer pushes. Then it is told where the other engine is, as by vLLM's routers.
    """

    holds_and_pulls = False
    leaves_tickets = True

    def __init__(self, vllm_config, role, kv_cache_config):
        transfer = vllm_config.kv_transfer_config
        self.told = told = transfer.kv_connector_extra_config
        told.setdefault("host_ip", transfer.engine_id)
        told.setdefault("http_port", 1)
        told.setdefault("read_mode", True)
        self.process = Process(told["host_ip"], clock_of(vllm_config.model_config.model))
        PROCESSES.append(self.process)
        self._lags, self._seconds = told.get("lags", 0), told.get("seconds", 0)
        self._is_apart = told.get("apart", False)
        self._steps, self._waited_steps = itertools.count(1), 0
        with self.process.at_work():
            super().__init__(vllm_config, role, kv_cache_config)
        if self.connector_worker is not None:
            self.connector_worker.tp_group = SimpleNamespace(cpu_group=Alone())

    def register_kv_caches(self, kv_caches):
        self.process.wire = Wire(next(iter(kv_caches.values())))
        self.card = self.process.wire.card
        self.connector_worker._build_shared_kv_mr = all_of_it
        with self.process.at_work():
            super().register_kv_caches(kv_caches if self._is_apart else in_one(kv_caches))

    def on_new_request(self, request):
        params = request.kv_transfer_params or {}
        is_pushed = self.mode is moriio_common.MoRIIOMode.WRITE and params.get("do_remote_decode") is True
        if is_pushed or (params.get("do_remote_prefill") is True and not self.leaves_tickets):
            params |= {"transfer_id": f"tx-{request.request_id}", **self.other_engine(), **params}
        super().on_new_request(request)

    def other_engine(self):
        """What a router says of it to who is to be pushed there. Its blocks aren't known yet."""
        hosts = {one.host for one in PROCESSES} - {self.process.host}
        ports = {f"remote_{name}_port": self.told[f"{name}_port"] for name in ("handshake", "notify")}
        return {"remote_host": next(iter(hosts)), **ports, "remote_engine_id": None, "remote_block_ids": None}

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens and self.mode is moriio_common.MoRIIOMode.READ:
            self._may_fill_last(request, blocks.get_block_ids())

    def _may_fill_last(self, request, tables):
        """The block of the token that is computed is the request's own: that it is filled before harms nobody."""
        [shadow] = {one.wire.card.device.shadow for one in PROCESSES if one.wire and one.host == self.process.host}
        last, rest = divmod(request.num_prompt_tokens - 1, self.connector_scheduler.block_size)
        for table in tables:
            if rest == 0 and last and table[last - 1] in shadow.step_rights:
                shadow.step_rights[table[last]] = shadow.step_rights[table[last - 1]]

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        COMPUTE.card = self.card
        super().save_kv_layer(layer_name, kv_layer, attn_metadata, **kwargs)

    def wait_for_save(self):
        COMPUTE.card = self.card
        super().wait_for_save()

    def get_finished(self, finished_req_ids):
        return self._step_ends(super().get_finished, finished_req_ids)

    def _step_ends(self, ended, finished_req_ids):
        waited, self._waited_steps = self._waited_steps, self.card.device.waited_steps
        self.process.clock.now += self._seconds * (waited < self._waited_steps)
        if next(self._steps) % (self._lags + 1) == 0:
            self.process.let_threads_work()
        results = ended(finished_req_ids)
        self.connector_worker.transfer_id_to_request_id = {}  # it gets them anew in each step
        return results


TELLS = "get_transfer_results"
"""What a worker is asked for at the end of a step, if vLLM's class has it: since 0.33."""

if TELLS in vars(moriio_connector.MoRIIOConnector):

    def get_transfer_results(self, finished_req_ids):
        return self._step_ends(super(Unended, self).get_transfer_results, finished_req_ids)

    Unended.get_transfer_results = get_transfer_results


def at_work(name):
    """A method, called in the connector's own process."""
    method = getattr(Unended, name)

    def call(self, *args, **said):
        with self.process.at_work():
            return method(self, *args, **said)

    return call


for called in (
    *("get_num_new_matched_tokens", "update_state_after_alloc", "on_new_request", "build_connector_meta"),
    *("request_finished", "request_finished_all_groups", "update_connector_output", "get_finished"),
    *("get_block_ids_with_load_errors", "start_load_kv", "wait_for_layer_load", "save_kv_layer"),
    *("wait_for_save", "shutdown", TELLS),
):
    setattr(Unended, called, at_work(called))


class OnCpu(Unended):
    """The same with an end: vLLM's ``shutdown`` leaves its threads."""

    def shutdown(self):
        if self.process.wire is not None and not self.process.is_closing:
            self.card.run_out(self.process.let_threads_work)
            self.process.close()
        super().shutdown()


class AtOnce(OnCpu):
    """The second engine is told by the router in the place of a ticket. For where it is pushed to."""

    leaves_tickets = False
