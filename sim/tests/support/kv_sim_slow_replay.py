"""Obvious models, block by block, and small traces to compare on."""

from collections import OrderedDict

import numpy as np

from kv_api import ReqContext
from kv_offload_cpu import CPUOffloadingManager
from kv_sim.replay.caches.keys import keys_of
from kv_sim.replay.columns import Columns, ColumnsBuilder

BLOCK = 4


def trace_of(requests, name="made", arrivals=None):
    """A trace of lists of prefix ids, one a second.

    Odd requests have a partial last block; of two in three of the others the last tokens are in no block.
    """
    builder = ColumnsBuilder()
    for index, ids in enumerate(requests):
        more = -1 if index % 2 else BLOCK * (index % 3)
        tokens = BLOCK * len(ids) + (more if ids else 0)
        builder.add(index if arrivals is None else arrivals[index], tokens, 1, ids)
    return builder.finish(name, BLOCK)


def prefix_trace(random, requests, width=3, depth=8):
    """Walks in a tree: ids name the path."""
    made = []
    for _ in range(requests):
        path = 0
        ids = []
        for _ in range(random.randint(0, depth)):
            path = path * width + random.randint(1, width)
            ids.append(path)
        made.append(ids)
    return made


def leading_hits(cache, ids):
    """The leading run of blocks that are there."""
    hits = 0
    for one in ids:
        if one not in cache:
            break
        hits += 1
    return hits


def lru_hits(requests, capacity, is_forward):
    """Hits of each request: looked up first, then every block is accessed."""
    cache, found = OrderedDict(), []
    for ids in requests:
        found.append(leading_hits(cache, ids))
        for one in ids if is_forward else reversed(ids):
            cache.pop(one, None)
            cache[one] = None
            if len(cache) > capacity:
                cache.popitem(last=False)
    return found


def fifo_hits(requests, capacity, is_forward):
    """The same, but what is there stays where it is."""
    cache, found = OrderedDict(), []
    for ids in requests:
        found.append(leading_hits(cache, ids))
        for one in ids if is_forward else reversed(ids):
            if one not in cache:
                if len(cache) >= capacity:
                    cache.popitem(last=False)
                cache[one] = None
    return found


def one_by_one_hits(columns, policy, capacity):
    """The real manager, a request for each block, the head last: then a policy is what its paper says."""
    manager, hits = CPUOffloadingManager(capacity, policy), 0
    for keys in keys_of(columns):
        hits += manager.lookup_prefix(keys, ReqContext("asks")).hits
        for key in reversed(keys):
            one = ReqContext("stores")
            output = manager.prepare_store([key], one)
            manager.complete_store(output.keys_to_store, one)
        manager.get_stats()
    return hits


def min_hits(requests, capacity):
    """Keeps what is needed soonest; of what is needed at the same time, what lies nearer to the begin."""
    uses = {}
    for index, ids in enumerate(requests):
        for depth, one in enumerate(ids):
            uses.setdefault(one, []).append((index, depth))
    kept, found = set(), []
    for index, ids in enumerate(requests):
        found.append(leading_hits(kept, ids))
        needed = {}
        for one in kept | set(ids):
            later = [use for use in uses[one] if use[0] > index]
            if later:
                needed[one] = later[0]
        kept = set(sorted(needed, key=needed.__getitem__)[:capacity])
    return found


def block_ratio(hits, requests):
    return sum(hits) / max(1, sum(map(len, requests)))


def same(columns: Columns, other: Columns) -> bool:
    """Whether two traces have the same requests."""
    parts = ("arrivals", "inputs", "outputs", "offsets", "blocks")
    return all(np.array_equal(getattr(columns, part), getattr(other, part)) for part in parts)
