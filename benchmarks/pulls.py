"""How fast kv-p2p pulls a prompt's blocks from another process, beside a plain socket, and by its carriers.

Two processes on one machine, each with KV caches in host memory: ``--layers`` layers, pages of several sizes. One
holds ``--mebibytes`` of blocks, the other pulls them into blocks in another order. ``pull`` is the whole way of a
worker: connecting, gathering, frames, scattering, the end. ``socket`` sends as many bytes from one buffer over one
connection into another buffer, 8 MiB a call, and is timed in turn with the pulls; both are the best of
``--repeat``. Contents are compared after every pull. ``--carrier nixl`` lets NIXL carry the same pulls, too, and
``--carrier mooncake`` Mooncake's transfer engine (over ``--protocol tcp``, or ``rdma``, with a network for it).
Both may be given; their packages have to be installed.

    python benchmarks/pulls.py [--mebibytes 256] [--layers 16] [--repeat 5] [--carrier NAME] … [--json FILE]
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

from kv_api import ConfigError
from kv_p2p.pulling.carrier import CARRIERS
from kv_p2p.pulling.metadata import Hold, Part, Pull, Source
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.pages import CachePages, WorkerPages
from kv_p2p.pulling.tcp.wire import TcpWire, make_carrier
from kv_p2p.pulling.ticket import Address

PAGES_KIB = (4, 16, 64, 256, 2048)
HOST = "127.0.0.1"
CALL_BYTES = 8 << 20
Caches = dict[str, NDArray[np.uint8]]


def make_caches(page_bytes: int, layers: int, total_bytes: int, seed: int) -> Caches:
    """Layers whose pages say which they are."""
    blocks = 1 + max(1, total_bytes // page_bytes // layers)  # the first is the null block
    random = np.random.default_rng(seed)
    caches = {}
    for layer in range(layers):
        pages = caches[f"layer {layer}"] = np.empty((blocks, page_bytes), np.uint8)
        pages[:] = random.integers(0, 256, page_bytes, dtype=np.uint8)
        pages[:, 0] = (np.arange(blocks) + layer) % 251
    return caches


def shuffled(seed: int, blocks: int) -> NDArray[np.int64]:
    """All blocks but the null block, in some order."""
    return np.random.default_rng(seed).permutation(blocks - 1) + 1


def make_wire(caches: Caches, options: Options, *, serves: bool) -> TcpWire:
    """A worker's wire."""
    pages = WorkerPages([CachePages(dict(caches), len(caches["layer 0"]))])
    return TcpWire(pages, 0, options, make_carrier(options, serves=serves), serves=serves)


def serve(orders: Connection) -> None:
    """The producer's process: holds what it is told to, or sends plainly."""
    while (order := orders.recv()) is not None:
        page_bytes, layers, total_bytes, repeat, ways = order
        caches = make_caches(page_bytes, layers, total_bytes, seed=1)
        blocks = len(caches["layer 0"])
        wires = [make_wire(caches, options, serves=True) for options in ways.values()]
        plain = bytes((blocks - 1) * layers * page_bytes)
        listener = socket.create_server((HOST, 0))
        orders.send(([wire.server.port for wire in wires if wire.server], listener.getsockname()[1]))
        for number in range(repeat):
            held = shuffled(number + 1000, blocks)
            for wire in wires:
                wire.serve(Hold("r", f"{number}", "digest", (tuple(held.tolist()),)))
            orders.send("served")
            orders.recv()
            connection, _ = listener.accept()
            with connection:
                connection.sendall(plain)
        for wire in wires:
            wire.close()
        listener.close()


def pull_all(wire: TcpWire, port: int, number: int, here: list[int]) -> None:
    """One pull, to its end."""
    source = Source(Address(HOST, port), f"{number}", "digest")
    wire.pull(Pull("r", source, (Part(0, tuple(here)),)))
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


def measure(
    orders: Connection, page_bytes: int, layers: int, total_bytes: int, repeat: int, ways: dict[str, Options]
) -> dict[str, float]:
    """GB/s of all ways, for one size of page."""
    orders.send((page_bytes, layers, total_bytes, repeat, ways))
    ports, plain_port = orders.recv()
    caches = make_caches(page_bytes, layers, total_bytes, seed=2)
    expected = make_caches(page_bytes, layers, total_bytes, seed=1)
    blocks = len(caches["layer 0"])
    wires = {name: make_wire(caches, options, serves=False) for name, options in ways.items()}
    buffer = bytearray((blocks - 1) * layers * page_bytes)
    best = dict.fromkeys([*ways, "socket"], float("inf"))
    for number in range(repeat):
        there, here = shuffled(number + 1000, blocks), shuffled(number, blocks)
        orders.recv()
        for (name, wire), port in zip(wires.items(), ports, strict=True):
            for cache in caches.values():
                cache[:] = 0
            begin = time.perf_counter()
            pull_all(wire, port, number, here.tolist())
            best[name] = min(best[name], time.perf_counter() - begin)
            for layer, cache in caches.items():
                if not np.array_equal(cache[here], expected[layer][there]):
                    raise AssertionError(f"pages of {page_bytes} bytes differ in {layer}, by {name}")
        orders.send("go on")
        begin = time.perf_counter()
        receive_plainly(plain_port, memoryview(buffer))
        best["socket"] = min(best["socket"], time.perf_counter() - begin)
    for wire in wires.values():
        wire.close()
    return {name: len(buffer) / seconds / 1e9 for name, seconds in best.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Pulls beside a plain socket.")
    parser.add_argument("--mebibytes", type=int, default=256)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--carrier", action="append", default=[], choices=CARRIERS[1:], help="also by this one")
    parser.add_argument("--protocol", default="tcp", help="what Mooncake's sends over: tcp, rdma")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    ways = {"pull": Options(HOST, 0)}
    for name in arguments.carrier:
        ways[name] = Options(HOST, 0, carrier=name, mooncake_protocol=arguments.protocol)
        try:
            carrier = make_carrier(ways[name], serves=False)
        except ConfigError as error:
            parser.error(str(error))
        if carrier is not None:
            carrier.close()
    orders, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()  # so that its end is heard of here
    results: dict[str, Any] = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "mebibytes": arguments.mebibytes,
        "layers": arguments.layers,
        "gigabytes_per_second": {},
    }
    print(f"GB/s from process to process, {arguments.layers} layers, {arguments.mebibytes} MiB a pull")
    print(f"  {'page':>9}{'socket':>10}{''.join(f'{name:>10}   share' for name in ways)}")
    for kib in PAGES_KIB:
        total = arguments.mebibytes << 20
        rates = measure(orders, kib << 10, arguments.layers, total, arguments.repeat, ways)
        results["gigabytes_per_second"][kib << 10] = rates
        shown = [f"{rates[name]:10.2f}{rates[name] / rates['socket']:8.0%}" for name in ways]
        print(f"  {kib:>5} KiB{rates['socket']:10.2f}{''.join(shown)}")
    orders.send(None)
    process.join()
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
