"""How fast chunks go to a file and back, beside plain calls of the system on another file of the same folder.

A job moves ``--mebibytes`` of chunks, of pages of 32 KiB in 4 layers, between KV caches in host memory and
kv-offload-file's slots, both in random order: from its submission until ``wait`` returns, with an engine that does
nothing else. ``write`` and ``read`` are as many bytes with one thread, 1 MiB a call, and are timed in turn with
the jobs; all are the best of ``--repeat``. So is ``sums``: a CRC-32 of all bytes by one thread, as a job has, too.

What is read was just written, so it comes from the system's page cache, unless ``--direct``, which goes past it
(the plain calls, too). Without ``--direct`` a write ends before a disk has it. Contents are compared after loads.

    python benchmarks/files.py [--folder DIR] [--mebibytes 256] [--repeat 3] [--threads 4] [--direct] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    make_offload_key,
)
from kv_offload_file import FileLoadStoreSpec, FileOffloadingSpec

PAGE_BYTES = 32 << 10
LAYERS = 4
CALL_BYTES = 1 << 20
BLOCKS_A_CHUNK = (1, 4, 16, 64)


def config(folder: str, blocks_per_chunk: int, total_bytes: int, options: argparse.Namespace) -> OffloadingConfig:
    """An engine whose chunks all fit."""
    extra = {
        "file_dir": folder,
        "file_bytes_to_use": 2 * total_bytes,
        "file_threads": options.threads,
        "file_direct": options.direct,
    }
    return OffloadingConfig(
        (OffloadingGroupConfig(16, ("layers",), 0),),
        PAGE_BYTES * LAYERS,
        False,
        extra,
        "engine",
        OffloadingModelConfig("model", "float16"),
        OffloadingCacheConfig(16, blocks_per_chunk),
        OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False),
    )


def seconds(action: Callable[[], None]) -> float:
    """What it takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


class Plain:
    """A file that is written and read with one thread."""

    def __init__(self, folder: str, total_bytes: int, *, direct: bool) -> None:
        flags = os.O_RDWR | os.O_CREAT | (os.O_DIRECT if direct else 0)
        self.fd = os.open(Path(folder) / "plain", flags, 0o600)
        self.data = mmap.mmap(-1, total_bytes)
        self.data[:] = os.urandom(1 << 20) * (total_bytes >> 20)

    def each(self, move: Callable[[memoryview, int], int]) -> None:
        """All of it, call by call."""
        for begin in range(0, len(self.data), CALL_BYTES):
            assert move(memoryview(self.data)[begin : begin + CALL_BYTES], begin) == CALL_BYTES

    def write(self) -> None:
        """All of it."""
        self.each(lambda part, begin: os.pwrite(self.fd, part, begin))

    def read(self) -> None:
        """All of it."""
        self.each(lambda part, begin: os.preadv(self.fd, [part], begin))

    def sums(self) -> None:
        """All of it."""
        zlib.crc32(self.data)


def measure(folder: str, blocks_per_chunk: int, options: argparse.Namespace) -> dict[str, float]:
    """GB/s of both ways, and of what is beside them."""
    chunk_bytes = PAGE_BYTES * LAYERS * blocks_per_chunk
    count = (options.mebibytes << 20) // chunk_bytes
    total_bytes = count * chunk_bytes
    random = np.random.default_rng(blocks_per_chunk)
    layers: list[NDArray[np.uint8]] = [
        random.integers(0, 256, (count * blocks_per_chunk, PAGE_BYTES), dtype=np.uint8) for _ in range(LAYERS)
    ]
    expected = [layer.copy() for layer in layers]
    caches = CanonicalKVCaches(
        [CanonicalKVCacheTensor(layer, PAGE_BYTES) for layer in layers],
        [[CanonicalKVCacheRef(index, PAGE_BYTES) for index in range(LAYERS)]],
    )
    spec = FileOffloadingSpec(config(folder, blocks_per_chunk, total_bytes, options))
    worker, plain = spec.get_worker(caches), Plain(folder, total_bytes, direct=options.direct)
    blocks = random.permutation(count * blocks_per_chunk).tolist()
    keys = [make_offload_key(b"%08d" % number, 0) for number in range(count)]
    there = FileLoadStoreSpec(random.permutation(count).tolist(), keys, 1, 1)
    here = GPULoadStoreSpec(blocks, [len(blocks)], [0])

    def run(job_id: int, submit: Callable[..., bool], source: object, target: object) -> None:
        submit(job_id, source, target)
        worker.wait({job_id})
        [result] = worker.get_finished()
        assert result.success

    best: dict[str, float] = {}
    for number in range(options.repeat):
        for layer in layers if number else ():
            layer[:] = 0
        times = {"load": seconds(lambda: run(1, worker.submit_load, there, here))} if number else {}
        assert all(np.array_equal(*pair) for pair in zip(layers, expected, strict=True)), "other bytes came back"
        times |= {"store": seconds(lambda: run(2, worker.submit_store, here, there))}
        times |= {"write": seconds(plain.write), "read": seconds(plain.read), "sums": seconds(plain.sums)}
        for name, taken in times.items():
            best[name] = max(best.get(name, 0.0), total_bytes / taken / 1e9)
    worker.shutdown()
    os.close(plain.fd)
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="where the files are made (default: the folder for temporary files)")
    parser.add_argument("--mebibytes", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--direct", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.repeat = max(2, options.repeat)  # the first one loads nothing
    print(f"{platform.machine()}, {os.cpu_count()} cores; GB/s, and the share of the plain calls\n")
    print("chunk KiB |  store   share |   load   share |  write    read    sums")
    rows: list[dict[str, Any]] = []
    for blocks_per_chunk in BLOCKS_A_CHUNK:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            found = measure(folder, blocks_per_chunk, options)
        kib = PAGE_BYTES * LAYERS * blocks_per_chunk >> 10
        rows.append({"chunk_kib": kib, **found})
        print(
            f"{kib:9} | {found['store']:6.2f}  {found['store'] / found['write']:6.2f} | {found['load']:6.2f}  "
            f"{found['load'] / found['read']:6.2f} | {found['write']:6.2f}  {found['read']:6.2f}  "
            f"{found['sums']:6.2f}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps({"mebibytes": options.mebibytes, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
