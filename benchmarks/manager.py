"""What a chunk costs the scheduler: our CPUOffloadingManager beside vLLM's, in one process.

A chunk's life is two requests: one looks it up, stores it, completes the store and finishes; another looks it up,
loads it, completes the load and finishes. The pool is full from the start, so every new chunk evicts one.
Requests have 64 to 256 chunks, the same for every manager, with keys and contexts made beforehand; the loading
request has key objects of its own, as in a server. A time is processor time, the best of ``--repeat`` rounds,
each on other chunks, with the garbage collector off.

Two tables. Microseconds a chunk at ``--chunks``, and what a manager keeps of a chunk after three times the
capacity went through it and all requests are gone (tracemalloc, in a process of its own, so that what managers
share counts for each): "bytes/chunk" without the key objects, "with keys" with those that it keeps alive, those of
evicted chunks included. Then microseconds a chunk as the pool grows, for ours.

    python benchmarks/manager.py [--chunks 20000] [--repeat 5] [--max-chunks 1000000] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing import get_context
from random import Random
from typing import Any, NamedTuple

import kv_api
from kv_offload_cpu import POLICIES, CPUOffloadingManager

KEY_BYTES = 36
BLOCK_TOKENS = 16


class Pair(NamedTuple):
    """The request that stores some chunks and the one that loads them."""

    writer: Any
    keys: list[Any]
    reader: Any
    same_keys: list[Any]


class Subject(NamedTuple):
    """A manager to measure: how to make it, its kind of request context, and how a prefix is looked up."""

    name: str
    make: Callable[[int], Any]
    context: Callable[[str], Any]
    lookup: Callable[[Any, list[Any], Any], int]


def lookup_at_once(manager: Any, keys: list[Any], context: Any) -> int:
    """Ours: one call for the prefix."""
    hits: int = manager.lookup_prefix(keys, context).hits
    return hits


def our_subjects() -> list[Subject]:
    """Our manager with each of its policies, the default first."""

    def maker(policy: str) -> Callable[[int], Any]:
        return lambda chunks: CPUOffloadingManager(chunks, policy)

    names = sorted(POLICIES, key=lambda name: (name != "lru", name))
    return [Subject(f"ours {name}", maker(name), kv_api.ReqContext, lookup_at_once) for name in names]


def vllm_subjects() -> list[Subject]:
    """The manager of vLLM with each of its policies; none when it isn't installed."""
    try:
        from vllm.v1.kv_offload.base import LookupResult, ReqContext
        from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager as TheirManager
    except ImportError as error:
        print(f"vllm can't be imported ({error}): only our own managers are measured\n")
        return []

    def lookup_each(manager: Any, keys: list[Any], context: Any) -> int:
        hits = 0
        for key in keys:
            if manager.lookup(key, context) is not LookupResult.HIT:
                break
            hits += 1
        return hits

    def maker(policy: str) -> Callable[[int], Any]:
        return lambda chunks: TheirManager(num_chunks=chunks, cache_policy=policy)

    return [Subject(f"vLLM {name}", maker(name), ReqContext, lookup_each) for name in ("lru", "arc")]


def make_keys(chunks: int, first: int) -> Iterator[list[bytes]]:
    """The keys of requests that together have ``chunks`` new chunks, the same ones for the same ``first``."""
    random = Random(first)
    made = 0
    while made < chunks:
        length = min(random.randint(64, 256), chunks - made)
        yield [random.randbytes(KEY_BYTES - 4) + bytes(4) for _ in range(length)]
        made += length


def make_pair(subject: Subject, keys: list[bytes]) -> Pair:
    """A request that stores these chunks and one that loads them."""
    writer, reader = subject.context("writer"), subject.context("reader")
    for index, key in enumerate(keys):
        writer.set_offload_key_position(key, (index + 1) * BLOCK_TOKENS)
        reader.set_offload_key_position(key, (index + 1) * BLOCK_TOKENS)
    return Pair(writer, keys, reader, [bytes(bytearray(key)) for key in keys])


def live(subject: Subject, manager: Any, pairs: Iterable[Pair]) -> None:
    """Two requests for each pair: one stores, one loads."""
    lookup = subject.lookup
    for writer, keys, reader, same_keys in pairs:
        manager.on_new_request(writer)
        hits = lookup(manager, keys, writer)
        output = manager.prepare_store(keys, writer)
        manager.complete_store(output.keys_to_store, writer)
        manager.on_request_finished(writer)
        manager.on_new_request(reader)
        hits += lookup(manager, same_keys, reader)
        manager.prepare_load(same_keys, reader)
        manager.complete_load(same_keys, reader)
        manager.on_request_finished(reader)
        if hits != len(keys):
            raise AssertionError(f"{subject.name}: {hits} hits instead of {len(keys)}")


def best_time(subject: Subject, capacity: int, chunks: int, repeat: int) -> float:
    """Seconds a chunk, in the best of the rounds, each of ``chunks`` chunks through a full pool."""
    manager = subject.make(capacity)
    live(subject, manager, (make_pair(subject, keys) for keys in make_keys(2 * capacity, first=1)))
    best = float("inf")
    for round_ in range(repeat):
        pairs = [make_pair(subject, keys) for keys in make_keys(chunks, first=round_ + 2)]
        gc.collect()
        gc.disable()
        begin = time.process_time()
        live(subject, manager, pairs)
        best = min(best, time.process_time() - begin)
        gc.enable()
    return best / chunks


def bookkeeping(subject: Subject, capacity: int, with_keys: bool) -> float:
    """Bytes that a manager keeps for each chunk, once the requests are gone."""
    everything = make_keys(3 * capacity, first=1)
    if not with_keys:
        everything = iter([[*keys] for keys in everything])  # made before anything is traced
    gc.collect()
    tracemalloc.start()
    manager = subject.make(capacity)
    live(subject, manager, (make_pair(subject, keys) for keys in everything))
    manager.get_stats()
    gc.collect()
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / capacity


def in_a_child(work: Callable[[], float]) -> float:
    """What ``work`` finds in a process that is forked for it."""
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(work()))
    child.start()
    sender.close()
    with receiver:
        try:
            found: float = receiver.recv()
        except EOFError:
            raise SystemExit("nothing was measured: see above") from None
    child.join()
    return found


def table(title: str, header: list[str], rows: list[list[str]]) -> None:
    """Print a table with its columns aligned."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    print(title)
    for first, *others in [header, *rows]:
        cells = [first.ljust(widths[0])] + [
            cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)
        ]
        print("  " + "  ".join(cells))
    print()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="The CPU offloading managers, side by side.")
    parser.add_argument("--chunks", type=int, default=20_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--max-chunks", type=int, default=1_000_000)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    theirs, ours = vllm_subjects(), our_subjects()
    results: dict[str, Any] = {"python": platform.python_version(), "chunks": arguments.chunks, "managers": {}}

    rows = []
    base = 0.0
    kept = {  # before this process has made a manager
        subject.name: [
            in_a_child(partial(bookkeeping, subject, arguments.chunks, with_keys)) for with_keys in (False, True)
        ]
        for subject in [*theirs, *ours]
    }
    for subject in [*theirs, *ours]:
        us = 1e6 * best_time(subject, arguments.chunks, arguments.chunks, arguments.repeat)
        size, whole = kept[subject.name]
        base = base or us
        results["managers"][subject.name] = {"us": us, "bytes": size, "bytes_with_keys": whole}
        ratio = f"{base / us:.1f}x" if theirs else "-"
        rows.append([subject.name, f"{us:.2f}", ratio, f"{size:.0f}", f"{whole:.0f}"])
    header = ["manager", "us/chunk", "ratio", "bytes/chunk", "with keys"]
    table(f"life of a chunk, pool of {arguments.chunks} chunks, always full", header, rows)

    sizes = [size for size in (10**3, 10**4, 10**5, 10**6) if size <= arguments.max_chunks]
    rows = []
    for subject in ours:
        counts = [min(max(size, 20_000), 100_000) for size in sizes]
        pairs = zip(sizes, counts, strict=True)
        times = [1e6 * best_time(subject, size, count, arguments.repeat) for size, count in pairs]
        results["managers"][subject.name]["growth_us"] = dict(zip(sizes, times, strict=True))
        rows.append([subject.name, *(f"{us:.2f}" for us in times), f"{times[-1] / times[0]:.2f}x"])
    table("us/chunk as the pool grows", ["manager", *map(str, sizes), "growth"], rows)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
