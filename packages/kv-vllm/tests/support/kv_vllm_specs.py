"""Specs for tests: kv-offload-cpu's, with another copy engine."""

import zlib
from typing import ClassVar

from kv_api import Direction
from kv_offload_cpu import CPUOffloadingSpec
from kv_offload_cpu.copy.engine import CopyResult


class UntilSettled:
    """A job's bytes move when it is submitted; it ends when it is waited for, or when ``settle`` is called."""

    alive: ClassVar = []

    def __init__(self, inner):
        self.inner = inner
        self.moved, self.ended = [], []
        self.alive.append(self)

    def submit(self, job_id, direction, copies, **how):
        self.inner.submit(job_id, direction, copies, **how)
        self.inner.wait([job_id])
        self.moved += self.inner.poll()

    def poll(self):
        ended, self.ended = self.ended, []
        return ended

    def wait(self, job_ids):
        self.ended += [result for result in self.moved if result.job_id in job_ids]
        self.moved = [result for result in self.moved if result.job_id not in job_ids]

    def shutdown(self):
        self.alive.remove(self)
        self.inner.shutdown()

    @classmethod
    def settle(cls):
        """Let everything end."""
        for engine in cls.alive:
            engine.wait([result.job_id for result in engine.moved])


class OneWrongByte:
    """Spoils a byte of each chunk before it is loaded: the one with the exponent of a number.

    Setting it does the same when several workers that share a chunk each do it.
    """

    def __init__(self, inner, memory):
        self.inner, self.memory = inner, memory

    def submit(self, job_id, direction, copies, **how):
        if direction is Direction.LOAD:
            for chunk in sorted({int(chunk) for chunk in copies.chunks}):
                self.memory.bytes[chunk * self.memory.layout.row_bytes + 203] = 0x7E
        self.inner.submit(job_id, direction, copies, **how)

    def __getattr__(self, name):
        return getattr(self.inner, name)


class OneWrongByteOfStates(OneWrongByte):
    """The same for chunks of some groups only."""

    def __init__(self, inner, memory, groups):
        super().__init__(inner, memory)
        self.groups = groups

    def submit(self, job_id, direction, copies, **how):
        if direction is Direction.LOAD:
            for group, chunk in zip(copies.groups.tolist(), copies.chunks.tolist(), strict=True):
                if group in self.groups:
                    self.memory.bytes[chunk * self.memory.layout.row_bytes + 203] = 0x7E
        self.inner.submit(job_id, direction, copies, **how)


class OtherStates(OneWrongByteOfStates):
    """Spoils all numbers of these chunks: where few tokens go on from a state, one of them shows too little."""

    def submit(self, job_id, direction, copies, **how):
        if direction is Direction.LOAD:
            for group, chunk in zip(copies.groups.tolist(), copies.chunks.tolist(), strict=True):
                if group in self.groups:
                    row = self.memory.layout.row_bytes
                    for place in range(chunk * row + 3, (chunk + 1) * row, 4):
                        self.memory.bytes[place] = 0x40
        self.inner.submit(job_id, direction, copies, **how)


class WrongBytesOfDrafts(OneWrongByte):
    """Spoils all numbers of the second half of each chunk: of a draft model as large as the model itself."""

    def submit(self, job_id, direction, copies, **how):
        if direction is Direction.LOAD:
            row = self.memory.layout.row_bytes
            for chunk in copies.chunks.tolist():
                for place in range(chunk * row + row // 2 + 3, (chunk + 1) * row, 4):
                    self.memory.bytes[place] = 0x40
        self.inner.submit(job_id, direction, copies, **how)


class EveryOtherLoadFails:
    """Such a load moves nothing."""

    def __init__(self, inner):
        self.inner = inner
        self.loads, self.failed = 0, []

    def submit(self, job_id, direction, copies, **how):
        self.loads += direction is Direction.LOAD
        if direction is Direction.LOAD and self.loads % 2:
            self.failed.append(CopyResult(job_id, success=False))
        else:
            self.inner.submit(job_id, direction, copies, **how)

    def poll(self):
        failed, self.failed = self.failed, []
        return [*failed, *self.inner.poll()]

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Settled(CPUOffloadingSpec):
    """Copies that end when a test says so."""

    def make_copy_engine(self, kv_caches, layout, memory):
        return UntilSettled(super().make_copy_engine(kv_caches, layout, memory))


class Corrupting(CPUOffloadingSpec):
    """Loads that bring something else."""

    def make_copy_engine(self, kv_caches, layout, memory):
        return OneWrongByte(super().make_copy_engine(kv_caches, layout, memory), memory)


class CorruptingDrafts(CPUOffloadingSpec):
    """Loads that bring something else for the layers of a draft model."""

    def make_copy_engine(self, kv_caches, layout, memory):
        return WrongBytesOfDrafts(super().make_copy_engine(kv_caches, layout, memory), memory)


class CorruptingStates(CPUOffloadingSpec):
    """Loads that bring another state."""

    spoils = OneWrongByteOfStates

    def make_copy_engine(self, kv_caches, layout, memory):
        inner = super().make_copy_engine(kv_caches, layout, memory)
        groups = enumerate(self.config.groups)
        states = {place for place, group in groups if any("conv" in name for name in group.layer_names)}
        return self.spoils(inner, memory, states)


class CorruptingStatesMore(CorruptingStates):
    """In many bytes."""

    spoils = OtherStates


class Failing(CPUOffloadingSpec):
    """Loads that fail."""

    def make_copy_engine(self, kv_caches, layout, memory):
        return EveryOtherLoadFails(super().make_copy_engine(kv_caches, layout, memory))


def block_sums(worker):
    """What each block of a worker's GPU holds, of all layers together; for vLLM's ``collective_rpc``."""
    import torch

    caches = [cache.contiguous().view(torch.uint8).flatten(1).numpy() for cache in worker.model_runner.kv_caches]
    return {zlib.crc32(b"".join(cache[block].tobytes() for cache in caches)) for block in range(len(caches[0]))}


class NamesNoKeys(CPUOffloadingSpec):
    """It doesn't say which keys are its own."""

    extra_keys = frozenset()


class Connected(CPUOffloadingSpec):
    """It has a setting of its own that is called as one of a connector's."""

    extra_keys = CPUOffloadingSpec.extra_keys | {"connector"}
