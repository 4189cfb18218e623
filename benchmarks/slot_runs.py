"""How many copies a chunk takes where neighbours are joined: which slots the manager gives as a trace goes by.

A copy between a GPU and host memory takes the driver its time whatever its size, so chunks of a job whose slots
follow each other, 7, 8, 9, are one copy where slots are what is copied (``cuda-staged``). A trace is replayed
through the real manager, a request after the other: what is found is loaded, the rest is stored in steps of
``--step`` tokens, each as soon as it is an eighth of what was stored before, as the connector does; copies end at
once. The trace's blocks are cut into chunks of ``--tokens``. The pool should be much smaller than the trace.

The table has, for stores and for loads, copies per chunk: while the pool fills for the first time, and in each
quarter of the requests after that. 1 is a copy for each chunk, so nothing was joined. Then, of the last quarter,
how many chunks a job has and how many a copy. *Pools* is how often as many chunks were evicted as the pool has.
All chunks are whole and of one group. A job larger than half a buffer has a few copies more.

    python benchmarks/slot_runs.py [TRACE] [--requests 3000] [--chunks 8192] [--tokens 16] [--step 8192]
        [--policy lru,arc,s3fifo,sieve] [--assume-sharing none] [--json FILE]

Needs kv-sim. A trace without ids of blocks needs ``--assume-sharing``, as for ``kv-sim replay``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from replay import finer

from kv_api import OffloadKey, ReqContext
from kv_offload_cpu import POLICIES, CPUOffloadingManager
from kv_sim.console.table import aligned
from kv_sim.replay import Columns, TraceOptions, open_trace
from kv_sim.replay.caches.keys import keys_of
from kv_sim.replay.readers.requests.sharing import parse_sharing

PARTS = ("filling", "1st quarter", "2nd", "3rd", "4th")


class Job(NamedTuple):
    """A load or a store: of how many chunks, in how many copies, and for which request."""

    is_load: bool
    chunks: int
    copies: int
    request: int


class Run(NamedTuple):
    """A trace through a manager with one policy."""

    jobs: list[Job]
    first_full: int
    """The request for which a chunk was evicted for the first time."""
    evicted: int
    requests: int

    def part(self, job: Job) -> int:
        """In which of `PARTS` a job is."""
        after = job.request - self.first_full
        return 0 if after < 0 else 1 + 4 * after // (self.requests - self.first_full)


def copies_of(slots: Sequence[int]) -> int:
    """How many copies a job takes that goes to or from these slots, in its order: neighbours are joined."""
    return 1 + int(np.count_nonzero(np.diff(slots) != 1))


def parts_of(keys: list[OffloadKey], step: int) -> Iterator[list[OffloadKey]]:
    """What of a prompt is stored together, where a step computes so many chunks."""
    begin = 0
    for end in range(step, len(keys) + step, step):
        if end >= len(keys) or 8 * (end - begin) >= begin:
            yield keys[begin:end]
            begin = end


def replay(columns: Columns, policy: str, capacity: int, step: int) -> Run:
    """Replay a trace, and note every job."""
    manager = CPUOffloadingManager(capacity, policy)
    jobs: list[Job] = []
    evicted = first_full = 0
    for number, keys in enumerate(keys_of(columns)):
        context = ReqContext(str(number))
        context.derive_offload_key_positions(keys, columns.block_tokens)
        manager.on_new_request(context)
        hits = manager.lookup_prefix(keys, context).hits
        if hits:
            found = keys[:hits]
            spec: Any = manager.prepare_load(found, context)
            jobs.append(Job(True, hits, copies_of(spec.chunk_ids), number))
            manager.complete_load(found, context)
        for part in parts_of(keys[hits:], step):
            output: Any = manager.prepare_store(part, context)
            if output is None or not output.keys_to_store:
                continue  # it doesn't fit, or is there
            if output.evicted_keys and not evicted:
                first_full = number
            evicted += len(output.evicted_keys)
            slots = output.store_spec.chunk_ids
            jobs.append(Job(False, len(slots), copies_of(slots), number))
            manager.complete_store(output.keys_to_store, context)
        manager.on_request_finished(context)
        manager.get_stats()
    return Run(jobs, first_full, evicted, len(columns))


def ratio(above: float, below: float, digits: int) -> str:
    """A quotient as a cell."""
    return f"{above / below:.{digits}f}" if below else "-"


def rows_of(run: Run, policy: str, capacity: int) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """The rows of a run, and what they show by name."""
    pools = run.evicted / capacity
    for is_load, kind in ((False, "stores"), (True, "loads")):
        parts: list[list[Job]] = [[] for _ in PARTS]
        for job in run.jobs:
            if job.is_load is is_load:
                parts[run.part(job)].append(job)
        chunks = [sum(job.chunks for job in part) for part in parts]
        copies = [sum(job.copies for job in part) for part in parts]
        yield (
            [
                policy,
                kind,
                f"{pools:.0f}",
                *(ratio(*pair, 3) for pair in zip(copies, chunks, strict=True)),
                ratio(chunks[-1], len(parts[-1]), 0),
                ratio(chunks[-1], copies[-1], 1),
            ],
            {"policy": policy, "kind": kind, "pools": pools, "chunks": chunks, "copies": copies},
        )


def main() -> None:
    """Replay and print."""
    parser = argparse.ArgumentParser(description="Copies per chunk where neighbours are joined.")
    parser.add_argument("trace", nargs="?", default="mooncake-conversation")
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--chunks", type=int, default=8192, help="of the pool")
    parser.add_argument("--tokens", type=int, default=16, help="of a chunk")
    parser.add_argument("--step", type=int, default=8192, help="tokens that a step computes")
    parser.add_argument("--policy", default=",".join(sorted(POLICIES, key=lambda name: (name != "lru", name))))
    parser.add_argument("--assume-sharing", type=parse_sharing)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    read = TraceOptions(requests=options.requests, sharing=options.assume_sharing)
    columns = open_trace(options.trace, read)
    if columns.block_tokens % options.tokens:
        parser.error(f"--tokens {options.tokens}: the trace's blocks have {columns.block_tokens}")
    columns = finer(columns, options.tokens)
    table = [["policy", "of", "pools", *PARTS, "chunks a job", "a copy"]]
    results = []
    for policy in options.policy.split(","):
        run = replay(columns, policy, options.chunks, max(1, options.step // options.tokens))
        for cells, named in rows_of(run, policy, options.chunks):
            table.append(cells)
            results.append(named)
    print(f"{columns.name}, {len(columns):,} requests, {columns.references:,} chunks of {options.tokens} tokens")
    print(f"copies per chunk, pool of {options.chunks:,} chunks, stored in steps of {options.step:,} tokens")
    print(*aligned(table), sep="\n")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
