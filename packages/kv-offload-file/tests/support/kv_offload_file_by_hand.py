"""An engine whose threads and whose inner engine do the next thing when they are told to."""

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
from kv_offload_file_rig import make_key

from kv_offload_cpu import CopyResult, Direction, PageCopies, Urgency
from kv_offload_file.engine import FileCopyEngine
from kv_offload_file.label import Label

STORE, LOAD = Direction.STORE, Direction.LOAD


class Inner:
    """An inner engine whose copies end when told."""

    def __init__(self):
        self.jobs, self.results, self.waited = {}, [], []
        self.refuses = self.is_shut_down = False

    def submit(self, job_id, direction, copies, *, urgency=Urgency.ORDINARY):
        if self.refuses:
            raise RuntimeError("no such device")
        self.jobs[job_id] = (direction, copies, urgency)

    def bays(self):
        return [sorted({*copies.chunks.tolist()}) for _, copies, _ in self.jobs.values()]

    def end(self, success=True):
        """The oldest copy."""
        job_id = next(iter(self.jobs))
        _, copies, _ = self.jobs.pop(job_id)
        self.results.append(CopyResult(job_id, success, 10 * len(copies) if success else None))

    def poll(self):
        results, self.results = self.results, []
        return results

    def wait(self, job_ids):
        self.waited.append({*job_ids})
        while self.jobs.keys() & {*job_ids}:
            self.end()

    def shutdown(self):
        self.is_shut_down = True


class Slots:
    def __init__(self):
        self.calls, self.problems, self.is_closed = [], {}, False

    def write(self, slot, label, bay):
        self._do("write", slot, label, bay)

    def read(self, slot, label, bay):
        self._do("read", slot, label, bay)

    def _do(self, what, slot, label, bay):
        self.calls.append((what, slot, label, bay))
        if slot in self.problems:
            raise self.problems[slot]

    def close(self):
        self.is_closed = True


class ByHand:
    """Threads that do the next thing when they are told to."""

    def __init__(self):
        self.tasks = []
        self.is_shut_down = False

    def submit(self, fn, *args):
        self.tasks.append(lambda: fn(*args))

    def shutdown(self, wait=True, *, cancel_futures=False):
        assert wait and cancel_futures, "memory is given back and the file closed after that"
        self.tasks.clear()
        self.is_shut_down = True

    def run(self, count=None):
        for _ in range(len(self.tasks) if count is None else count):
            self.tasks.pop(0)()


@contextmanager
def by_hand(num_bays=8, num_blocks=20):
    """An engine with four bays for stores (0 to 3) and four for loads, or more, recounted at the end."""
    inner, slots, threads = Inner(), Slots(), {STORE: ByHand(), LOAD: ByHand()}
    engine = FileCopyEngine(inner, slots, num_bays, [num_blocks], threads.__getitem__)
    made = SimpleNamespace(
        engine=engine, inner=inner, slots=slots, stores=threads[STORE], loads=threads[LOAD], ended=[]
    )

    def submit(job_id, direction, slots, urgency=Urgency.ORDINARY, per_chunk=2, skip=0, block=0):
        """So many blocks a chunk, from ``block`` on, of which the first is entered after ``skip``."""
        pages = [(slot, offset) for slot in slots for offset in range(per_chunk)][skip:]
        columns = [np.array(column, np.int64) for column in zip(*pages, strict=True)]
        blocks = np.arange(block, block + len(pages), dtype=np.int64)
        engine.labels[job_id] = [Label(make_key(slot), 1, job_id, nth) for nth, slot in enumerate(slots)]
        try:
            engine.submit(job_id, direction, PageCopies(0 * blocks, blocks, *columns), urgency=urgency)
        finally:
            del engine.labels[job_id]
        engine.check()

    def poll():
        made.ended += [(result.job_id, result.success, result.num_bytes) for result in engine.poll()]
        engine.check()
        return made.ended

    made.submit, made.poll = submit, poll
    yield made
    engine.check()
