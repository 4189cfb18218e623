"""The devices of the small engine, and requests as it holds them.

A device runs steps in order, some time after they were launched. Its bytes are a function of the whole prefix, the
group and the rank; a step checks that it reads exactly those of its request.
"""

from collections import deque

import kv_offload_medium as medium
from kv_offload_configs import FULL, STATE, WINDOW, Request

PER_HASH = 2


class Copies(medium.ScriptedWorker):
    """Copies of one rank, in the order that the test likes, each after the steps that were launched before it."""

    device = None

    def _submit(self, kind, job_id, source, target):
        accepted = super()._submit(kind, job_id, source, target)
        if accepted:
            self.device.after[job_id] = self.device.launched
        return accepted

    def end(self, job_id, success=True):
        if success:
            self.device.retire(self.device.after[job_id])
        super().end(job_id, success)


class Device:
    """Memory and queue of one rank."""

    def __init__(self, engine, rank, copies):
        self.engine, self.rank, self.copies = engine, rank, copies
        self.gpu, self.host = {}, {}
        self.queue, self.launched, self.retired, self.after = deque(), 0, 0, {}
        copies.device, copies.move = self, self.move

    def value(self, request, group, position):
        return (request.prefix[position], group, self.rank)

    def launch(self, work):
        self.queue.append(work)
        self.launched += 1

    def retire(self, count):
        while self.retired < count:
            for request, start, end, tables in self.queue.popleft():
                self._compute(request, start, end, tables)
            self.retired += 1

    def _compute(self, request, start, end, tables):
        for group, (kind, size, window) in enumerate(self.engine.groups):
            for position in range(start, end):
                block = tables[group][position // size]
                self.gpu.setdefault(block, [None] * size)[position % size] = self.value(request, group, position)
            first = {FULL: 0, WINDOW: max(0, start - window + 1), STATE: max(0, start - 1)}[kind]
            for position in range(first, end):
                block = tables[group][position // size]
                held = self.gpu[block][position % size] if block in self.gpu else None
                wanted = self.value(request, group, position)
                assert held == wanted, (
                    f"rank {self.rank} group {group} block {block}: request {request.request_id} reads {held} at "
                    f"{position}, not {wanted}"
                )

    def move(self, kind, source, target):
        gpu, slots = (source, target) if kind == "store" else (target, source)
        blocks, places = iter(gpu.block_ids), iter(slots.block_ids)
        for size, first in zip(gpu.group_sizes, gpu.block_indices, strict=True):
            place = last = None
            for index in range(first, first + size):
                chunk, offset = divmod(index, self.engine.per_chunk)
                if chunk != last:
                    place, last = next(places), chunk
                block = next(blocks)
                if kind == "store":
                    self.host.setdefault(place, {})[offset] = list(self.gpu[block])
                else:
                    self.gpu[block] = list(self.host[place][offset])
        assert next(places, None) is None, "more slots than chunks"


class Life(Request):
    """A request as the engine holds it."""

    def __init__(self, name, tokens, prompt):
        super().__init__(name, tokens[:prompt], per_hash=PER_HASH)
        self.full = list(tokens)
        self.prefix = [hash(tuple(tokens[: end + 1])) for end in range(len(tokens))]
        self.state = "waiting"
        self.tables = None
        self.under_way = 0
        self.stale = 0
        self.disturbed = False
        self.loaded, self.offered = set(), set()

    def hash_at(self, end):
        return self.block_hashes[end // PER_HASH - 1]
