"""What a worker's side must report, in plain dictionaries."""

from dataclasses import dataclass, field

from kv_api import KVConnectorTransferResults

IDS = ("a", "b", "c")
ORDER = ("fail", "load", "save")
NOTHING = KVConnectorTransferResults


@dataclass
class ModelWorker:
    """What a worker must do, as what is open: ``saves[id]`` the children, ``loads[id]`` (child, blocks)."""

    saves: dict = field(default_factory=dict)
    loads: dict = field(default_factory=dict)
    in_step: dict = field(default_factory=dict)
    off: set = field(default_factory=set)
    known_off: set = field(default_factory=set)
    # What the next results report, and the transfers (id, child, kind) that they close.
    sent: set = field(default_factory=set)
    received: set = field(default_factory=set)
    failed: set = field(default_factory=set)
    closed: set = field(default_factory=set)
    blocks: set = field(default_factory=set)

    def report(self, child, kind, request_id):
        holders = self.saves.get(request_id, set())
        loader, _ = self.loads.get(request_id, (None, None))
        if kind == "save" and child in holders:
            holders.remove(child)
            self.closed.add((request_id, child, kind))
            if not holders:
                del self.saves[request_id]
                self.sent.add(request_id)
        elif kind == "load" and loader == child:
            del self.loads[request_id]
            self.closed.add((request_id, child, kind))
            self.received.add(request_id)
        elif kind == "fail" and loader == child:
            self.failed.add(request_id)

    def switch_off(self, child):
        self.off.add(child)
        for loader, blocks in [*self.loads.values(), *self.in_step.values()]:
            if loader == child:
                self.blocks |= set(blocks)
        for kind in ("fail", "load", "save"):
            for request_id in IDS:
                self.report(child, kind, request_id)

    def take(self):
        taken = NOTHING(self.sent, self.received, self.failed), self.closed
        self.sent, self.received, self.failed, self.closed = set(), set(), set(), set()
        return taken
