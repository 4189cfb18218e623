"""Engines over a folder, with real bytes: what a chunk holds follows from its key."""

import zlib
from itertools import count
from math import prod

import numpy as np

from kv_api import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
    ReqContext,
    make_offload_key,
)
from kv_offload_file import FileOffloadingSpec
from kv_offload_file.label import ROW_BYTES
from kv_offload_file.sharing.listing import ENTRY_BYTES
from kv_offload_file.sharing.place import slot_of_neighbour
from kv_offload_file.slot_file import ALIGNMENT
from kv_offload_file.staging import store_bays

PAGE = 96
LAYERS = 2
TAKEN = ALIGNMENT + ROW_BYTES
"""By a chunk of a worker whose pages fit one page of the disk."""


def config(
    folder,
    chunks=6,
    *,
    rank=0,
    ranks=1,
    replicated=False,
    blocks_per_chunk=2,
    events=False,
    engine="engine",
    stages=None,
    **extra,
):
    """What an engine tells the spec; room for so many chunks. ``stages``: the layers of each, of a pipeline."""
    layers = "ab" if stages is None else stages[rank]
    copies = 1 if replicated else ranks
    own = {
        "file_dir": str(folder),
        "file_bytes_to_use": chunks * (TAKEN * copies + (ENTRY_BYTES if extra.get("file_shared") else 0)),
        "file_staging_bytes": 6 * ALIGNMENT,
        "file_threads": 2,
    }
    return OffloadingConfig(
        groups=(OffloadingGroupConfig(16, (*layers,), 0),),
        worker_kv_bytes_per_block=PAGE * len(layers),
        enable_kv_cache_events=events,
        extra_config={**own, **extra},
        engine_id=engine,
        model=OffloadingModelConfig("org/model", "float16", 64),
        cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=blocks_per_chunk),
        parallel=OffloadingParallelConfig(
            rank, ranks, ranks if stages is None else 1, len(stages or "a"), 1, 1, 0, 1, None, False
        ),
        replicated_layout=replicated,
    )


def make_key(number):
    return make_offload_key(b"%08d" % number, 0)


def make_keys(numbers):
    return [make_key(number) for number in numbers]


def content(key, rank, size):
    """The bytes of a chunk on a rank."""
    return np.random.default_rng([zlib.crc32(key), rank]).integers(0, 256, size, dtype=np.uint8)


class Rank:
    """A worker and its GPU: ``num_blocks`` blocks of its layers, which hold what those of ``rank`` do."""

    def __init__(self, spec, rank, num_blocks=32):
        self.rank = rank
        self.blocks_per_chunk = spec.blocks_per_chunk
        self.layers = [np.zeros((num_blocks, PAGE), np.uint8) for _ in spec.config.groups[0].layer_names]
        caches = CanonicalKVCaches(
            [CanonicalKVCacheTensor(layer, PAGE) for layer in self.layers],
            [[CanonicalKVCacheRef(index, PAGE) for index in range(len(self.layers))]],
        )
        self.worker = spec.get_worker(caches)

    def fill(self, keys, blocks):
        """Compute these chunks into these blocks."""
        for place, key in enumerate(keys):
            expected = self.expected(key)
            for offset in range(self.blocks_per_chunk):
                for layer, values in zip(self.layers, expected[offset], strict=True):
                    layer[blocks[place * self.blocks_per_chunk + offset]] = values

    def holds(self, keys, blocks):
        """Whether these blocks have these chunks."""
        return all(
            (layer[blocks[place * self.blocks_per_chunk + offset]] == values).all()
            for place, key in enumerate(keys)
            for offset in range(self.blocks_per_chunk)
            for layer, values in zip(self.layers, self.expected(key)[offset], strict=True)
        )

    def expected(self, key):
        shape = self.blocks_per_chunk, len(self.layers), PAGE
        return content(key, self.rank, prod(shape)).reshape(shape)


class Rig:
    """An engine of one or more ranks, in this process; where they are ``replicated`` all hold the same bytes."""

    def __init__(self, folder, chunks=6, *, ranks=1, replicated=False, **settings):
        settings["replicated"] = replicated
        specs = [
            FileOffloadingSpec(config(folder, chunks, rank=rank, ranks=ranks, **settings)) for rank in range(ranks)
        ]
        self.folder = specs[0].folder
        self.manager = specs[0].get_manager()
        # The last rank first: others may be ready before the one whose files they read.
        num_blocks = max(32, 6 * specs[0].blocks_per_chunk)
        made = [Rank(specs[rank], 0 if replicated else rank, num_blocks) for rank in reversed(range(ranks))]
        self.ranks = made[::-1]
        self.blocks_per_chunk = specs[0].blocks_per_chunk
        self.is_shared = specs[0].is_shared
        if self.is_shared:
            self.manager._neighbours._clock = count().__next__  # who looks again sees what there is then
        self._most_at_once = store_bays(specs[0].num_bays)
        self._jobs = 0
        self.context = ReqContext("request")

    def blocks_of(self, keys, first=0):
        return [*range(first, first + len(keys) * self.blocks_per_chunk)]

    def store(self, numbers):
        """Store chunks, as many at once as there are bays, and say which were new; None if any were refused."""
        stored = []
        for first in range(0, len(numbers), self._most_at_once):
            new = self._store(numbers[first : first + self._most_at_once])
            if new is None:
                return None
            stored += new
        return stored

    def _store(self, numbers):
        stored, success = self.try_store(numbers)
        assert success
        return stored

    def try_store(self, numbers):
        """Store chunks at once. Which were new, None if any were refused, and whether all went well."""
        output = self.manager.prepare_store(make_keys(numbers), self.context)
        if output is None:
            return None, True
        blocks = self.blocks_of(output.keys_to_store)
        for rank in self.ranks:
            rank.fill(output.keys_to_store, blocks)
        gpu = GPULoadStoreSpec(blocks, [len(blocks)], [0])
        success = self._run(lambda worker, job: worker.submit_store(job, gpu, output.store_spec))
        self.manager.complete_store(output.keys_to_store, self.context, success)
        return output.keys_to_store, success

    def load(self, numbers):
        """Load chunks that are hits, and say whether that went well. If so, the bytes are right."""
        return self.end_load(numbers, self.begin_load(numbers))

    def begin_load(self, numbers):
        """Look up chunks that are hits, and say that they will be loaded."""
        self.hits(numbers)
        return self.manager.prepare_load(make_keys(numbers), self.context)

    def end_load(self, numbers, spec):
        """Load them, and say whether that went well. If so, the bytes are right."""
        keys = make_keys(numbers)
        blocks = self.blocks_of(keys)
        for rank in self.ranks:
            for layer in rank.layers:
                layer[:] = 0
        gpu = GPULoadStoreSpec(blocks, [len(blocks)], [0])
        success = self._run(lambda worker, job: worker.submit_load(job, spec, gpu))
        self.manager.complete_load(keys, self.context)
        assert not success or all(rank.holds(keys, blocks) for rank in self.ranks)
        return success

    def hits(self, numbers):
        return self.manager.lookup_prefix(make_keys(numbers), self.context).hits

    def check(self):
        self.manager.check()
        for rank in self.ranks:
            rank.worker.check()
            rank.worker.engine.check()

    def stop(self):
        """End as an engine does that is told to."""
        self.manager.shutdown()
        for rank in self.ranks:
            rank.worker.shutdown()
            rank.worker.check()

    def kill(self):
        """End as one does that is killed: nothing is said to the files."""
        self.manager._home.close()
        if self.is_shared:
            self.manager._own.close()
            self.manager._neighbours.close()
        for rank in self.ranks:
            rank.worker.engine._slots._file._close_both()
            rank.worker.shutdown()

    def _run(self, submit):
        self._jobs += 1
        successes = []
        for rank in self.ranks:
            assert submit(rank.worker, self._jobs)
            rank.worker.wait({self._jobs})
            [result] = rank.worker.get_finished()
            assert result.job_id == self._jobs
            successes.append(result.success)
        return all(successes)


def found_at(neighbours, key):
    """Where a chunk is looked for; None: nobody has it."""
    place = neighbours.places.get(key)
    return None if place is None else slot_of_neighbour(place)
