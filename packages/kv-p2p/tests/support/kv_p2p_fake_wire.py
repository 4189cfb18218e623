"""A worker's side over a wire that does as it is told, at times that are made up."""

from types import SimpleNamespace

from kv_p2p_engine import OPTIONS, THERE, kv_cache_config, vllm_config

from kv_api import KVConnectorTransferResults
from kv_p2p.pulling.groups import Group
from kv_p2p.pulling.metadata import Hold, P2PMetadata, Part, Pull, Source
from kv_p2p.pulling.wire import Ended
from kv_p2p.pulling.worker import P2PWorkerSide


class FakeWire:
    """Fits `kv_p2p.pulling.wire.Wire`: writes down what it is told, and answers what the test set."""

    def __init__(self):
        self.calls = []
        self.ended = Ended()
        self.busy = set()
        """Holds that are read and requests that are written."""

    def serve(self, hold):
        self.calls.append(("serve", hold.hold_id))

    def withdraw(self, hold_id):
        self.calls.append(("withdraw", hold_id))
        return hold_id not in self.busy

    def pull(self, pull):
        self.calls.append(("pull", pull.request_id))

    def give_up(self, request_id):
        self.calls.append(("give_up", request_id))
        return request_id not in self.busy

    def decline(self, source):
        self.calls.append(("decline", source.hold_id))

    def poll(self):
        self.calls.append(("poll",))
        ended, self.ended = self.ended, Ended()
        return ended

    def wait(self, seconds):
        self.calls.append(("wait", seconds))

    def close(self):
        self.calls.append(("close",))


class World:
    """A worker's side, its wire and its clock."""

    def __init__(self, groups=1):
        self.wires = []
        self.caches = []
        self.now = 1000.0
        self.half = P2PWorkerSide(vllm_config(), kv_cache_config(), OPTIONS, (Group(4),) * groups, self.make_wire)
        self.half.clock = lambda: self.now

    def make_wire(self, kv_caches):
        self.caches.append(kv_caches)
        self.wires.append(FakeWire())
        return self.wires[-1]

    @property
    def wire(self):
        return self.wires[-1]

    def step(self, *, ended=None, finished=(), **told):
        """One step. Returns its results, and what the wire was told."""
        self.wire.calls.clear()
        if ended is not None:
            self.wire.ended = Ended(**ended)
        half = self.half
        half.bind_connector_metadata(P2PMetadata(**told))
        half.start_load_kv(SimpleNamespace())
        half.wait_for_layer_load("layer")
        half.save_kv_layer("layer", None, None)
        half.wait_for_save()
        results = half.get_transfer_results(set(finished))
        half.check()
        half.clear_connector_metadata()
        return results, list(self.wire.calls)


def hold(request_id, number=1):
    return Hold(request_id, f"{request_id}.{number}", "d", ((7, 8),))


def pull(request_id, *blocks):
    return Pull(request_id, Source(THERE, f"there.{request_id}", "d"), (Part(50, blocks or (1, 2)),))


def sent(*ids):
    return KVConnectorTransferResults(finished_sending=set(ids))


def received(*ids, failed=()):
    return KVConnectorTransferResults(finished_recving={*ids, *failed}, failed_recving={*failed})
