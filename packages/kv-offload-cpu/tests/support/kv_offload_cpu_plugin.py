"""A third party's module: a policy, and things that are none."""

from kv_offload_cpu import CachePolicy


class MostRecentPolicy(CachePolicy):
    """Evicts what came last; a bad idea, but legal."""

    def __init__(self, capacity):
        super().__init__(capacity)
        self.held = []

    def make_room(self, keys, count, pins):
        evicted = [slot for slot in reversed(self.held) if not pins[slot]][:count]
        self.remove(evicted)
        return evicted

    def insert(self, keys, slots, run):
        self.held += slots

    def access(self, slots, run): ...

    def unpin(self, slots, run): ...

    def remove(self, slots):
        self.held = [slot for slot in self.held if slot not in slots]

    def clear(self):
        self.held = []

    def slots(self):
        return self.held

    def check(self, pins): ...


class GreedyPolicy(MostRecentPolicy):
    """Evicts what is pinned."""

    def make_room(self, keys, count, pins):
        return self.held[:count]


class LazyPolicy(MostRecentPolicy):
    """Evicts nothing."""

    def make_room(self, keys, count, pins):
        return []


not_a_class = 7


class NotAPolicy: ...
