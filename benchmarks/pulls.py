"""How fast kv-p2p pulls a prompt's blocks from another process, beside a plain socket.

Two processes on one machine, each with KV caches in host memory: ``--layers`` layers, pages of several sizes. One
holds ``--mebibytes`` of blocks, the other pulls them into blocks in another order. ``pull`` is the whole way of a
worker: connecting, gathering, frames, scattering, the end. ``socket`` sends as many bytes from one buffer over one
connection into another buffer, 8 MiB a call, and is timed in turn with the pulls; both are the best of
``--repeat``. Contents are compared after every pull.

    python benchmarks/pulls.py [--mebibytes 256] [--layers 16] [--repeat 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import socket
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv_p2p.pulling.metadata import Hold, Pull, Source
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.pages import CachePages
from kv_p2p.pulling.tcp.wire import TcpWire
from kv_p2p.pulling.ticket import Address

PAGES_KIB = (4, 16, 64, 256, 2048)
HOST = "127.0.0.1"
CALL_BYTES = 8 << 20
Caches = dict[str, NDArray[np.uint8]]


def make_caches(page_bytes: int, layers: int, total_bytes: int, seed: int) -> Caches:
    """Layers whose pages say which they are."""
    blocks = max(1, total_bytes // page_bytes // layers)
    random = np.random.default_rng(seed)
    caches = {}
    for layer in range(layers):
        pages = caches[f"layer {layer}"] = np.empty((blocks, page_bytes), np.uint8)
        pages[:] = random.integers(0, 256, page_bytes, dtype=np.uint8)
        pages[:, 0] = (np.arange(blocks) + layer) % 251
    return caches


def serve(orders: Connection) -> None:
    """The producer's process: holds what it is told to, or sends plainly."""
    while (order := orders.recv()) is not None:
        page_bytes, layers, total_bytes, repeat = order
        caches = make_caches(page_bytes, layers, total_bytes, seed=1)
        blocks = len(caches["layer 0"])
        wire = TcpWire(CachePages(dict(caches), blocks), 0, Options(HOST, 0))
        plain = np.ones(blocks * layers * page_bytes, np.uint8)
        listener = socket.create_server((HOST, 0))
        assert wire.server is not None
        orders.send((wire.server.port, listener.getsockname()[1]))
        for number in range(repeat):
            held = np.random.default_rng(number + 1000).permutation(blocks)
            wire.serve(Hold("r", f"hold {number}", "digest", tuple(held.tolist())))
            orders.send("served")
            orders.recv()
            connection, _ = listener.accept()
            with connection:
                connection.sendall(plain)
        wire.close()
        listener.close()


def pull_all(wire: TcpWire, port: int, number: int, here: list[int]) -> None:
    """One pull, to its end."""
    source = Source(Address(HOST, port), f"hold {number}", "digest")
    wire.pull(Pull("r", source, 0, tuple(here)))
    while True:
        wire.wait(60)
        ended = wire.poll()
        if ended.failed:
            raise AssertionError(ended.failed)
        if ended.pulled:
            return


def receive_plainly(port: int, buffer: memoryview) -> None:
    """As many bytes, by a connection and nothing else."""
    with socket.create_connection((HOST, port)) as connection:
        filled = 0
        while filled < len(buffer):
            filled += connection.recv_into(buffer[filled : filled + CALL_BYTES])


def measure(orders: Connection, page_bytes: int, layers: int, total_bytes: int, repeat: int) -> dict[str, float]:
    """GB/s of both ways, for one size of page."""
    orders.send((page_bytes, layers, total_bytes, repeat))
    wire_port, plain_port = orders.recv()
    caches = make_caches(page_bytes, layers, total_bytes, seed=2)
    expected = make_caches(page_bytes, layers, total_bytes, seed=1)
    blocks = len(caches["layer 0"])
    wire = TcpWire(CachePages(dict(caches), blocks), 0, Options(HOST, 0), serves=False)
    buffer = np.zeros(blocks * layers * page_bytes, np.uint8)
    best = {"pull": float("inf"), "socket": float("inf")}
    for number in range(repeat):
        there, random = np.random.default_rng(number + 1000).permutation(blocks), np.random.default_rng(number)
        here = random.permutation(blocks)
        for cache in caches.values():
            cache[:] = 0
        orders.recv()
        begin = time.perf_counter()
        pull_all(wire, wire_port, number, here.tolist())
        best["pull"] = min(best["pull"], time.perf_counter() - begin)
        for name, cache in caches.items():
            if not np.array_equal(cache[here], expected[name][there]):
                raise AssertionError(f"pages of {page_bytes} bytes differ in {name}")
        orders.send("go on")
        begin = time.perf_counter()
        receive_plainly(plain_port, memoryview(buffer))
        best["socket"] = min(best["socket"], time.perf_counter() - begin)
    wire.close()
    return {name: len(buffer) / seconds / 1e9 for name, seconds in best.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Pulls beside a plain socket.")
    parser.add_argument("--mebibytes", type=int, default=256)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    orders, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    results: dict[str, Any] = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "mebibytes": arguments.mebibytes,
        "layers": arguments.layers,
        "gigabytes_per_second": {},
    }
    print(f"GB/s from process to process, {arguments.layers} layers, {arguments.mebibytes} MiB a pull")
    print(f"  {'page':>9}{'pull':>10}{'socket':>10}{'share':>8}")
    for kib in PAGES_KIB:
        rates = measure(orders, kib << 10, arguments.layers, arguments.mebibytes << 20, arguments.repeat)
        results["gigabytes_per_second"][kib << 10] = rates
        share = rates["pull"] / rates["socket"]
        print(f"  {kib:>5} KiB{rates['pull']:10.2f}{rates['socket']:10.2f}{share:8.0%}")
    orders.send(None)
    process.join()
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
