"""A manager, the obvious model of it, and the jobs that its user has under way.

The model knows which keys are in flight, resident or fenced and counts slots; it leaves it to the policy who is
evicted, and checks that this was legal. What it watches besides the answers:

* ownership: a slot that a job may still write is in no other job, one that a job may still read is not written;
* events: what a mirror reconstructs from them is what is resident;
* a refused store leaves no trace.
"""

from collections import Counter, OrderedDict, deque

import pytest

from kv_api import Direction, KVError, LookupResult, OffloadKey, ReqContext
from kv_offload_cpu import AtOnceManager
from kv_offload_cpu.policy import Run

ACTIONS = [
    "prepare_store", "prepare_store", "prepare_store", "complete_store", "complete_store", "fail_store",
    "prepare_load", "prepare_load", "complete_load", "complete_load", "touch", "lookup", "finish", "drop",
    "reset", "flushed", "misuse", "store", "load_prefix",
]  # fmt: skip


def make_key(number):
    return OffloadKey(b"%06d" % number + (number % 2).to_bytes(4, "big"))


def snapshot(value):
    """All state under an object, as nested tuples that can be compared; runs by their identity."""
    if isinstance(value, OrderedDict | dict):
        return tuple((snapshot(key), snapshot(item)) for key, item in value.items())
    if isinstance(value, list | tuple | deque):
        return tuple(snapshot(item) for item in value)
    if isinstance(value, set):
        return frozenset(value)
    if isinstance(value, bytearray):
        return bytes(value)
    if not type(value).__module__.startswith("kv_offload_cpu") or isinstance(value, Run | Direction):
        return value
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    names = [*getattr(value, "__dict__", ()), *slots]
    return tuple((name, snapshot(getattr(value, name))) for name in names if name != "allocation_failures")


class Job:
    def __init__(self, kind, keys, slots, context, generation):
        self.kind, self.keys, self.slots = kind, keys, slots
        self.context, self.generation = context, generation


class World:
    """``discards`` says whether the user drops jobs from before a reset (as vLLM does) or reports them late."""

    def __init__(self, policy, capacity, threshold=1, discards=True):
        self.capacity, self.threshold, self.discards = capacity, threshold, discards
        self.manager = AtOnceManager(
            capacity, policy, enable_events=True, store_threshold=threshold, max_tracker_size=10**6
        )
        self.storing, self.resident, self.pins, self.offers = set(), set(), Counter(), Counter()
        self.fenced = {}  # key -> jobs still to end
        self.jobs = []
        self.generation = 0
        self.mirror = set()
        self.contexts = [self.new_context(index) for index in range(4)]

    def new_context(self, index):
        context = ReqContext(f"request {index}")
        for number in range(30):
            if index % 2:
                context.set_offload_key_position(make_key(number), 16 * number)
        self.manager.on_new_request(context)
        return context

    def act(self, action, a, b):
        getattr(self, action)(a, b)
        self.check()

    def check(self):
        self.manager.check()
        for event in self.manager.take_events():
            assert len(set(event.keys)) == len(event.keys)
            if event.metadata_only:
                assert self.mirror.isdisjoint(event.keys)
            elif event.removed:
                assert self.mirror.issuperset(event.keys), "removed what wasn't there"
                self.mirror.difference_update(event.keys)
            else:
                assert self.mirror.isdisjoint(event.keys), "stored what was there"
                self.mirror.update(event.keys)
        assert self.mirror == self.resident
        writers = [slot for job in self.jobs if job.kind == "store" for slot in job.slots]
        readers = {slot for job in self.jobs if job.kind == "load" for slot in job.slots}
        assert len(set(writers)) == len(writers), "two jobs write one slot"
        assert readers.isdisjoint(writers), "a slot is read and written"

    def pick(self, a, b):
        start = a % 24
        return [make_key(number) for number in range(start, start + b % 6)]

    def context(self, a, b):
        return self.contexts[(a + b) % len(self.contexts)]

    def expected(self, key):
        if key in self.resident:
            return LookupResult.HIT
        return LookupResult.HIT_PENDING if key in self.storing else LookupResult.MISS

    def lookup(self, a, b):
        keys, context = self.pick(a, b), self.context(a, b)
        for key in keys:
            assert self.manager.lookup(key, context) is self.expected(key)
        states = [self.expected(key) for key in keys] + [LookupResult.HIT]
        hits = next((i for i, state in enumerate(states) if state is not LookupResult.HIT), len(keys))
        assert self.manager.lookup_prefix(keys, context) == (hits, states[hits])

    def store(self, a, b):
        before = len(self.jobs)
        self.prepare_store(a, b, at_once=True)
        for job in self.jobs[before:]:
            self.jobs.remove(job)
            self.storing.difference_update(job.keys)
            self.resident.update(job.keys)

    def load_prefix(self, a, b):
        keys, context = self.pick(a, b), self.context(a, b)
        keys += keys[: b % 2]
        hits = next((i for i, key in enumerate(keys) if key not in self.resident), len(keys))
        assert self.manager.load_prefix(keys, context) == hits

    def prepare_store(self, a, b, at_once=False):
        keys, context = self.pick(a, b), self.context(a, b)
        if b % 5 == 0:
            keys += keys[: b % 3]  # duplicates in one offer
        offer = list(dict.fromkeys(keys))
        absent = [key for key in offer if key not in self.resident | self.storing | self.fenced.keys()]
        wanted = [key for key in absent if self.offers[key] + 1 >= self.threshold]
        free = self.capacity - len(self.storing) - len(self.resident) - len(self.fenced)
        evictable = self.resident - set(offer) - {key for key, count in self.pins.items() if count}
        need = max(0, len(wanted) - free)
        before = snapshot(self.manager)
        output = (self.manager.store if at_once else self.manager.prepare_store)(keys, context)
        if need > len(evictable):
            assert output is None
            assert snapshot(self.manager) == before, "a refused store left a trace"
            return
        assert output is not None
        self.offers.update(offer)
        if at_once:
            stored, slots, evicted = output
        else:
            stored, slots, evicted = output.keys_to_store, list(output.store_spec.block_ids), output.evicted_keys
        assert stored == wanted
        assert len(evicted) == need
        assert evictable.issuperset(evicted)
        assert len(slots) == len(wanted)
        self.resident.difference_update(evicted)
        self.storing.update(wanted)
        self.jobs.append(Job("store", wanted, slots, context, self.generation))

    def end(self, kind, a):
        jobs = [job for job in self.jobs if job.kind == kind]
        if not jobs:
            return None
        job = jobs[a % len(jobs)]
        self.jobs.remove(job)
        return job

    def end_stale(self, job):
        """A job from before a reset ended: the manager is told, or not. Which keys it was the last for."""
        if not self.discards:
            for key in job.keys:
                self.end_fenced(key)
            return False
        return True

    def end_fenced(self, key):
        if key in self.fenced:
            self.fenced[key] -= 1
            if not self.fenced[key]:
                del self.fenced[key]

    def complete_store(self, a, b, success=True):
        job = self.end("store", a)
        if job is None:
            return
        if job.generation < self.generation:
            if self.end_stale(job):
                return
        else:
            for key in job.keys:
                if key in self.fenced:  # dropped meanwhile
                    self.end_fenced(key)
                else:
                    self.storing.remove(key)
                    if success:
                        self.resident.add(key)
        self.manager.complete_store(job.keys, job.context, success)

    def fail_store(self, a, b):
        self.complete_store(a, b, success=False)

    def prepare_load(self, a, b):
        keys, context = self.pick(a, b), self.context(a, b)
        if b % 7 == 0:
            keys += keys[:1]
        missing = [key for key in keys if key not in self.resident]
        if missing:
            before = snapshot(self.manager)
            with pytest.raises(KVError, match=missing[0].hex()):
                self.manager.prepare_load(keys, context)
            assert snapshot(self.manager) == before
            return
        spec = self.manager.prepare_load(keys, context)
        self.pins.update(keys)
        self.jobs.append(Job("load", keys, list(spec.block_ids), context, self.generation))

    def complete_load(self, a, b):
        job = self.end("load", a)
        if job is None:
            return
        if job.generation < self.generation:
            if self.end_stale(job):
                return
        else:
            for key in job.keys:
                if key in self.fenced:
                    self.end_fenced(key)
                else:
                    self.pins[key] -= 1
        self.manager.complete_load(job.keys, job.context)

    def touch(self, a, b):
        self.manager.touch(self.pick(a, b), self.context(a, b))

    def finish(self, a, b):
        index = (a + b) % len(self.contexts)
        self.manager.on_request_finished(self.contexts[index])
        self.contexts[index] = self.new_context(index)

    def drop(self, a, b):
        keys = self.pick(a, b % 3)
        self.manager.drop(keys)
        for key in keys:
            if key in self.storing or self.pins[key]:
                self.fenced[key] = self.pins.pop(key, 0) or 1
            self.storing.discard(key)
            self.resident.discard(key)

    def reset(self, a, b):
        if a % 4:
            return
        self.manager.reset_cache()
        self.fenced |= {key: count for key, count in self.pins.items() if count}
        self.fenced |= dict.fromkeys(self.storing, 1)
        self.storing.clear()
        self.resident.clear()
        self.pins.clear()
        self.generation += 1

    def flushed(self, a, b):
        if any(job.generation < self.generation for job in self.jobs):
            return
        self.manager.on_reset_flushed()
        running = Counter(key for job in self.jobs for key in job.keys)
        self.fenced = {key: count for key, count in self.fenced.items() if running[key]}

    def misuse(self, a, b):
        """A load that nobody began is completed: an error, and nothing changes."""
        keys, context = self.pick(a, b), self.context(a, b)
        loading = {key for key, count in self.pins.items() if count} | self.fenced.keys()
        if keys and keys[-1] not in loading:
            before = snapshot(self.manager)
            with pytest.raises(KVError):
                self.manager.complete_load(keys, context)
            assert snapshot(self.manager) == before

    def quiesce(self):
        """Let everything end: nothing may be left."""
        while self.jobs:
            (self.complete_store if self.jobs[0].kind == "store" else self.complete_load)(0, 0)
            self.check()
        self.flushed(0, 0)
        self.check()
        assert not self.storing
        assert not self.fenced
        assert self.manager._pool.usage() == (0, 0)
