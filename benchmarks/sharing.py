"""What it costs a scheduler that engines share their files: kv-offload-file's managers, alone and with neighbours.

A prompt has 128 chunks. *Stored* is such a prompt's store and its end, into a home that is full, so that as much
leaves; *found* a lookup that finds all of it; *loaded* the begin and the end of a load; *missed* a lookup that
finds nothing, for which each neighbour's listing is looked at anew. With neighbours, chunks are found and loaded
that one of them has, too. *Read anew* is what the first look at them costs. Processor time by chunk, of *missed*
by lookup, the best of ``--repeat`` rounds. *Bytes* are what a scheduler keeps of a neighbour's chunk.

    python benchmarks/sharing.py [--chunks 20000] [--neighbours 1,7] [--repeat 5] [--json FILE]

The folder is in memory where there is ``/dev/shm``, and else among temporary files; no chunk's bytes are written.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import tempfile
import tracemalloc
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

from kv_api import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
    OffloadKey,
    ReqContext,
)
from kv_offload_file import FileOffloadingSpec
from kv_offload_file.sharing.neighbours import ListedNeighbours

PROMPT = 128
KEY_BYTES = 36
SLOT_BYTES = FileOffloadingSpec.SLOT_ALIGNMENT


def manager_of(folder: str, engine: int | None, chunks: int) -> Any:
    """The scheduler's side of an engine with so many chunks; None: one that shares with nobody."""
    extra: dict[str, Any] = {"file_dir": folder}
    of_a_chunk = SLOT_BYTES + FileOffloadingSpec.ROW_BYTES
    if engine is not None:
        extra |= {"file_shared": True, "file_engine": engine}
        of_a_chunk += FileOffloadingSpec.LISTED_BYTES
    config = OffloadingConfig(
        (OffloadingGroupConfig(16, ("layer",), 0),),
        SLOT_BYTES,
        False,
        {**extra, "file_bytes_to_use": chunks * of_a_chunk},
        f"engine {engine}",
        OffloadingModelConfig("model", "float16"),
        OffloadingCacheConfig(16, 1),
        OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False),
    )
    return FileOffloadingSpec(config).get_manager()


def prompts(seed: int, chunks: int) -> list[list[OffloadKey]]:
    """As many as fit, each of other chunks."""
    source = Random(seed)
    return [[OffloadKey(source.randbytes(KEY_BYTES)) for _ in range(PROMPT)] for _ in range(chunks // PROMPT)]


def store(manager: Any, asked: list[list[OffloadKey]]) -> None:
    """Each of some prompts, from its arrival to its end."""
    for number, keys in enumerate(asked):
        context = ReqContext(str(number))
        manager.on_new_request(context)
        stored = manager.prepare_store(keys, context)
        manager.complete_store(stored.keys_to_store, context)
        manager.on_request_finished(context)


def find(manager: Any, asked: list[list[OffloadKey]], hits: int) -> None:
    """Look each of some prompts up."""
    context = ReqContext("asks")
    for keys in asked:
        found = manager.lookup_prefix(keys, context).hits
        assert found == hits, f"{found} chunks of {hits} were found"


def load(manager: Any, asked: list[list[OffloadKey]]) -> None:
    """Load each of some prompts."""
    context = ReqContext("loads")
    for keys in asked:
        manager.prepare_load(keys, context)
        manager.complete_load(keys, context)


def best(repeat: int, each: int, act: Callable[[], None], before: Callable[[], object] = bool) -> float:
    """Microseconds of one of ``each`` things that it does, of the best round."""
    times = []
    gc.disable()
    for _ in range(repeat):
        before()
        begin = process_time()
        act()
        times.append(process_time() - begin)
        gc.collect()
    gc.enable()
    return min(times) / each * 1e6


def measure(neighbours: int | None, chunks: int, repeat: int) -> dict[str, float]:
    """All figures of an engine with so many neighbours, each with as many chunks; None: it doesn't share."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        manager = manager_of(folder, None if neighbours is None else 0, chunks)
        others = [manager_of(folder, number, chunks) for number in range(1, 1 + (neighbours or 0))]
        try:
            return _measure(manager, others, chunks, repeat, manager._home.folder.parent)
        finally:
            for one in (manager, *others):
                one.shutdown()


def _measure(manager: Any, others: list[Any], chunks: int, repeat: int, folder: Path) -> dict[str, float]:
    theirs = [prompts(number, chunks) for number in range(1, 1 + len(others))]
    for other, asked in zip(others, theirs, strict=True):
        store(other, asked)
    unknown, figures = prompts(99, 64 * PROMPT), dict[str, float]()
    if others:
        clock = map(float, count())
        manager._neighbours._clock = lambda: next(clock)  # else whoever looked a millisecond ago doesn't look
        figures |= _first_look(folder, manager._home.epoch, theirs)
    seeds = count(100)
    rounds: list[list[list[OffloadKey]]] = []

    def new() -> None:
        rounds.append(prompts(next(seeds), chunks))

    new()
    store(manager, rounds[-1])
    figures["stored"] = best(repeat, chunks, lambda: store(manager, rounds[-1]), new)
    own = rounds[-1][-16:]
    figures["found"] = best(repeat, len(own) * PROMPT, lambda: find(manager, own, PROMPT))
    figures["loaded"] = best(repeat, len(own) * PROMPT, lambda: load(manager, own))
    figures["missed"] = best(repeat, len(unknown), lambda: find(manager, unknown, 0))
    if others:
        near = theirs[-1][-16:]
        figures["found at a neighbour"] = best(repeat, len(near) * PROMPT, lambda: find(manager, near, PROMPT))
        figures["loaded from a neighbour"] = best(repeat, len(near) * PROMPT, lambda: load(manager, near))
    return figures


def _first_look(folder: Path, epoch: int, theirs: list[list[list[OffloadKey]]]) -> dict[str, float]:
    """Until all that neighbours have is known: the time of one who looks, and the bytes of another."""
    last = [asked[-1][-1] for asked in theirs]
    clock = map(float, count())

    def look() -> ListedNeighbours:
        neighbours = ListedNeighbours(folder, 0, lambda: next(clock))
        while any(key not in neighbours.places for key in last):
            neighbours.look(epoch)
        return neighbours

    begin = process_time()
    look().close()
    seconds, chunks = process_time() - begin, sum(len(keys) for asked in theirs for keys in asked)
    tracemalloc.start()
    known = look()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert known.places.keys() == {key for asked in theirs for keys in asked for key in keys}
    known.close()
    return {"read anew": seconds / chunks * 1e6, "bytes": kept / chunks}


def main() -> None:
    """Measure, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--chunks", type=int, default=20_000, help="of each engine")
    parser.add_argument("--neighbours", default="1,7")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args()
    chunks = options.chunks - options.chunks % PROMPT
    counts = [None, *map(int, options.neighbours.split(","))]
    found = {str(one): measure(one, chunks, options.repeat) for one in counts}
    names = list(dict.fromkeys(name for figures in found.values() for name in figures))
    print(f"{chunks:,} chunks of each engine; microseconds a chunk, of missed a lookup")
    heads = ["alone", *(f"{one} neighbour{'s' * (one != 1)}" for one in counts[1:])]
    print(f"{'':26}" + "".join(f"{head:>15}" for head in heads))
    for name in names:
        cells = (f"{figures[name]:.2f}" if name in figures else "-" for figures in found.values())
        print(f"{name:26}" + "".join(f"{cell:>15}" for cell in cells))
    if options.json:
        data = {"chunks": chunks, "python": platform.python_version(), "figures": found}
        Path(options.json).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
