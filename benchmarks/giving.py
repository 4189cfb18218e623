"""How long it takes until a driver has all copies of a job, given by the caller or by threads. Needs no GPU.

The driver is a compiled loop that takes ``--per-copy`` microseconds for each copy of a batch and ``--per-call``
for each other call, and does nothing; the device is as idle. So this is what the host can keep up with at best:
GB/s of jobs of ``--mebibytes``, one way and both ways at once, their share of an H200's link, and the share of the
time in which the thread that submits was held. Both ways are four jobs each in turn. The best of ``--repeat``.
Threads want a core each, so two cores are one too few for both ways.

    python benchmarks/giving.py [--per-copy 0.6] [--per-call 1] [--mebibytes 256] [--pages KIB,KIB] [--repeat 10]
        [--json FILE]

Needs kv-offload-cpu and llvmlite.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
from command.lists import list_of
from submission import LAYERS, Table, job_of

from kv_offload_cpu import Direction
from kv_offload_cpu.copy.compiled import Unavailable, compiled
from kv_offload_cpu.copy.cuda.call_loop import CallLoop, find_loop
from kv_offload_cpu.copy.cuda.engine import CudaCopyEngine
from kv_offload_cpu.copy.cuda.methods.batch import OneBatch
from kv_offload_cpu.copy.cuda.methods.page_table import COLUMNS, Kernels
from kv_offload_cpu.copy.cuda.methods.staged import TwoHalves
from kv_offload_cpu.copy.cuda.streams import AtOnce, Functions, Noted
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan

PAGES_KIB = (4, 16, 64)
METHODS = {"cuda-batch": OneBatch, "cuda-staged": TwoHalves}
WAYS = {"one way": [Direction.STORE], "both": list(Direction)}
LIMITS = {"one way": 55e9, "both": 98e9}
"""Of the link of an H200, in bytes a second, as its benchmark showed."""

JOBS_IN_TURN = 4
ROUNDS = 1 << 24
"""Of the loop, to see how long one takes."""


def describe(ir: Any) -> Any:
    """A batch, whose fourth argument is how many copies it has, and any other call: each waits in a loop."""
    module, word, code = ir.Module("driver"), ir.IntType(64), ir.IntType(32)
    prices = {}
    for name in ("per_copy", "per_call"):
        prices[name] = ir.GlobalVariable(module, word, name)
        prices[name].initializer = word(0)
    wait = ir.Function(module, ir.FunctionType(ir.VoidType(), [word]), "wait")
    entry, head, body, after = (wait.append_basic_block(name) for name in ("entry", "head", "body", "after"))
    build = ir.IRBuilder(entry)
    left = build.alloca(word)
    build.store(wait.args[0], left)
    build.branch(head)
    build = ir.IRBuilder(head)
    now = build.load(left)
    now.volatile = True
    build.cbranch(build.icmp_signed(">", now, word(0)), body, after)
    build = ir.IRBuilder(body)
    build.store(build.sub(now, word(1)), left).volatile = True
    build.branch(head)
    ir.IRBuilder(after).ret_void()
    for name, price in (("batch", "per_copy"), ("other", "per_call")):
        function = ir.Function(module, ir.FunctionType(code, [word] * 4), name)
        build = ir.IRBuilder(function.append_basic_block())
        rounds = build.load(prices[price])
        build.call(wait, [build.mul(rounds, function.args[3]) if name == "batch" else rounds])
        build.ret(code(0))
    setter = ir.Function(module, ir.FunctionType(code, [word, word]), "set_prices")
    build = ir.IRBuilder(setter.append_basic_block())
    for argument, price in zip(setter.args, prices.values(), strict=True):
        build.store(argument, price)
    build.ret(code(0))
    return module


class Priced(Functions):
    """Functions of a driver that takes its time."""

    def __init__(self, per_copy: float, per_call: float) -> None:
        super().__init__()
        found = compiled(describe, ("batch", "other", "set_prices"), for_cpu_engines=False)
        if isinstance(found, Unavailable):
            raise SystemExit(f"the driver {found.reason}")
        self._found = found
        self._batch, self._other, self._addresses["set"] = found.addresses
        begin = time.perf_counter()
        self.result("set", ROUNDS, 0)
        self.result("cuMemcpyBatchAsync", 0, 0, 0, 1, 0, 0, 0, 0, 0)
        a_second = ROUNDS / (time.perf_counter() - begin)
        self.result("set", int(per_copy * 1e-6 * a_second), int(per_call * 1e-6 * a_second))

    def address(self, name: str) -> int:
        """Where a function is."""
        if name == "set":
            return self._addresses[name]
        return self._batch if name == "cuMemcpyBatchAsync" else self._other


class Handle:
    """A stream or an event of torch, by the driver's functions."""

    cuda_stream = 1

    def __init__(self, functions: Functions) -> None:
        self._functions = functions

    def record(self, stream: Any) -> None:
        """A call."""
        self._functions("cuEventRecord", 1, 1)

    def wait_event(self, event: Any) -> None:
        """A call."""
        self._functions("cuStreamWaitEvent", 1, 1, 0)

    def synchronize(self) -> None:
        """It is idle."""

    def query(self) -> bool:
        """It is reached."""
        return True

    def elapsed_time(self, end: Any) -> float:
        """Of nothing."""
        return 1.0


class NoTorch:
    """What streams ask of torch."""

    def __init__(self, functions: Functions) -> None:
        self._functions = functions

    def new_stream(self) -> Handle:
        """A stream."""
        return Handle(self._functions)

    def new_event(self, *, knows_time: bool) -> Handle:
        """An event."""
        return Handle(self._functions)

    def compute_stream(self) -> Handle:
        """The model's."""
        return Handle(self._functions)

    def on_device(self) -> AbstractContextManager[object]:
        """Everywhere."""
        return nullcontext()


class Driver:
    """What methods ask, over streams of either kind."""

    mapped_shift = 0

    def __init__(self, streams: AtOnce | Noted) -> None:
        self._streams = streams

    def __getattr__(self, name: str) -> Any:
        return getattr(self._streams, name)

    def mark_time(self, stream: Any) -> Any:
        """An event."""
        return self._streams.mark(stream, knows_time=True)

    def copy_batch(self, stream: Any, batch: Any, begin: int, end: int) -> None:
        """A call, with as many arguments as the driver's."""
        arguments = (*batch.addresses, end - begin, 0, 0, 1, 0, 1)
        self._streams.call(stream, "cuMemcpyBatchAsync", arguments, batch, copies=end - begin)

    def new_table(self, num_rows: int) -> Table:
        """Room on the host."""
        return Table(np.empty(COLUMNS * num_rows, np.int64))

    def upload(self, stream: Any, table: Any, num_rows: int) -> None:
        """A call."""
        self._streams.call(stream, "cuMemcpyAsync", (1, 2, 3, 1), table)

    def new_steps(self, numbers: Any, count: int, word: int, kernels: Kernels) -> None:
        """Nothing is kept."""

    def run_kernel(self, stream: Any, launch: Any) -> None:
        """A call."""
        self._streams.call(stream, "cuLaunchKernel", (1,) * 11, launch)

    def new_stage(self, num_bytes: int) -> int:
        """Some address."""
        return 1 << 40


def made(method: Any, driver: Driver, plan: CopyPlan, stream: Any) -> Any:
    """The method of a lane."""
    return method(driver, stream, plan)


def measure(arguments: Any, functions: Functions, loop: CallLoop) -> Iterator[dict[str, Any]]:
    """GB/s, and the share of submitting, of each page size, method and kind."""
    for kib in arguments.pages:
        count = (arguments.mebibytes << 10) // kib // LAYERS * LAYERS
        plan, copies = job_of(kib << 10, count)
        for name, method in METHODS.items():
            for given_by in ("caller", "thread"):
                torch = NoTorch(functions)
                streams = AtOnce(torch, functions) if given_by == "caller" else Noted(torch, functions, loop)
                driver = Driver(streams)
                engine = CudaCopyEngine(plan, driver, partial(made, method, driver, plan))
                row: dict[str, Any] = {"page_kib": kib, "method": name, "given by": given_by}
                for way, directions in WAYS.items():
                    spent, held = min(timed(engine, directions, copies) for _ in range(arguments.repeat))
                    row[way] = (kib << 10) * count * len(directions) / spent / 1e9
                    row[f"{way} held"] = held / spent
                streams.shutdown()
                yield row


def timed(engine: CudaCopyEngine, directions: list[Direction], copies: Any) -> tuple[float, float]:
    """Seconds until all is given, and those of submitting."""
    parts = 1 if len(directions) == 1 else JOBS_IN_TURN
    size = -(-len(copies) // parts)
    jobs = [(way, copies.part(n * size, (n + 1) * size)) for n in range(parts) for way in directions]
    begin = time.perf_counter()
    for job_id, (direction, part) in enumerate(jobs):
        engine.submit(job_id, direction, part)
    submitted = time.perf_counter()
    engine.wait(range(len(jobs)))
    end = time.perf_counter()
    assert [result.success for result in engine.poll()] == [True] * len(jobs), "a job failed"
    return end - begin, submitted - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Copies given to a driver that takes its time.")
    parser.add_argument("--per-copy", type=float, default=0.6, metavar="µs")
    parser.add_argument("--per-call", type=float, default=1.0, metavar="µs")
    parser.add_argument("--mebibytes", type=int, default=256)
    parser.add_argument("--pages", type=list_of(int), default=PAGES_KIB, metavar="KIB,KIB")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    loop = find_loop()
    if isinstance(loop, Unavailable):
        raise SystemExit(f"threads that give copies have a loop, which {loop.reason}")
    columns = "".join(f"{way:>10} of link  held" for way in WAYS)
    print(f"{'page':>8} {'method':>12} {'given by':>9}{columns}")
    rows = []
    for row in measure(arguments, Priced(arguments.per_copy, arguments.per_call), loop):
        rows.append(row)
        shown = "".join(
            f"{row[way]:10.1f} {row[way] * 1e9 / LIMITS[way]:7.0%} {row[f'{way} held']:5.0%}" for way in WAYS
        )
        print(f"{row['page_kib']:>4} KiB {row['method']:>12} {row['given by']:>9}{shown}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"arguments": vars(arguments), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
