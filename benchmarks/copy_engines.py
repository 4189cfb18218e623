"""How fast each method of the CUDA engine copies pages, beside one large copy, on the GPU of this machine.

A job moves ``count`` pages of one size between KV caches on the GPU (``--layers`` tensors, blocks in random order)
and chunks in pinned host memory, also in random order, unless ``--in-order`` is given: chunks that are stored
together often follow each other. Its time is from submission to the end of the wait, so it counts what the host
does. Columns are GB/s, the share of the limit, which is one large pinned copy, timed in the same run, and the
share of the time in which the host was submitting, ``held``, and could do nothing else. ``both`` is stores and
loads at once, four jobs each in turn, of different blocks and chunks, beside a large copy each way at once.

``loop`` is the plain method of others: ``cuMemcpyAsync`` for each page. ``one call`` is that of vLLM's connector:
one ``cuMemcpyBatchAsync`` for the whole job, however large. The others are ours; ``cuda-best`` picks one of them
by a trial, which isn't timed.

Every timed run has fresh random bytes, and is checked byte for byte afterwards. Of ``--repeat`` runs the best
counts; of a method that takes longer than ``SLOW`` seconds there are two.

``beside`` is how much slower products of bf16 matrices are while jobs of one direction follow each other, and what
these jobs move meanwhile, in GB/s: medians of ``--beside`` times. Before the table comes how much slower they are
beside a kernel that keeps some multiprocessors to itself and does nothing: no kernel that lasts as long as a copy
costs less.

``--programs 1,2,8`` measures ``cuda-gather`` with as many programs, too, as ``cuda-gather/1`` and so on, and
``--calls 16,128`` measures ``cuda-batch`` in calls of as many copies.

Copies are given to the device by the thread that submits a job; with ``--in-thread`` ours are by threads that do
nothing else.

    python benchmarks/copy_engines.py [--seconds 240] [--mebibytes 1024] [--layers 16] [--in-order] [--repeat 3]
        [--in-thread] [--beside 3] [--json FILE] [--pages KIB,KIB] [--counts N,N] [--methods A,B]
        [--programs N,N] [--calls N,N]

It begins no case after ``--seconds``, and says what it left out. Without a GPU it says so and measures nothing.
Needs kv-offload-cpu[cuda].
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from command.lists import list_of, some_of
from gpu.peers import Loop
from gpu.products import Jobs, Products
from gpu.setting import LOOP, NAMES, Setting, parts_of

from kv_api import ConfigError
from kv_offload_cpu import CopyEngineChoice, Direction
from kv_offload_cpu.copy.cuda.engine import CudaCopyEngine

PAGES_KIB = (4, 8, 16, 24, 32, 64, 128, 256, 2048)
COUNTS = (4096, 65536, 16384, 256, 16)
"""The middle of the range first, so that a run that is cut short has seen each size."""

IDLE = (1, 2, 4)
WAYS = ("store", "load", "both")
SLOW = 0.2
JOBS_IN_TURN = 4
"""Of each direction where both run, so that neither waits until all of the other was submitted."""


class Spent(NamedTuple):
    """Seconds of a run, and of the calls that submitted its jobs, which hold up whoever makes them."""

    all: float
    submitting: float


def timed_run(setting: Setting, engine: CudaCopyEngine, way: str) -> Spent:
    """One job, or some of each direction in turn, with fresh bytes that are checked."""
    directions = directions_of(way)
    each = JOBS_IN_TURN if len(directions) > 1 else 1
    parts = zip(*(parts_of(setting.copies(direction), each) for direction in directions), strict=True)
    jobs = [job for of_turn in parts for job in zip(directions, of_turn, strict=True)]
    setting.refresh()
    setting.torch.cuda.synchronize()
    begin = time.perf_counter()
    for job_id, (direction, copies) in enumerate(jobs):
        engine.submit(job_id, direction, copies)
    submitted = time.perf_counter()
    engine.wait(range(len(jobs)))
    end = time.perf_counter()
    ended = [result.success for result in engine.poll()]
    if ended != [True] * len(jobs):
        raise AssertionError(f"{way}: {ended}")
    setting.verify(directions)
    return Spent(end - begin, submitted - begin)


def directions_of(way: str) -> list[Direction]:
    """What runs at once."""
    return list(Direction) if way == "both" else [Direction(way)]


def limits(torch: Any, pinned: Any, repeat: int) -> dict[str, float]:
    """GB/s of one large copy each way, and of both at once."""
    half = pinned.numel() // 2
    device = torch.empty(pinned.numel(), dtype=torch.uint8, device="cuda")
    pairs = {
        "store": [(pinned[:half], device[:half])],
        "load": [(device[half:], pinned[half:])],
        "both": [(pinned[:half], device[:half]), (device[half:], pinned[half:])],
    }
    found = {}
    for way, copies in pairs.items():
        best, streams = float("inf"), [torch.cuda.Stream() for _ in copies]
        for _ in range(repeat + 1):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for stream, (target, source) in zip(streams, copies, strict=True):
                with torch.cuda.stream(stream):
                    target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            best = min(best, time.perf_counter() - begin)
        found[way] = half * len(copies) / best / 1e9
    return found


class Case(NamedTuple):
    """One line of the table."""

    page_bytes: int
    num_pages: int


def cases(arguments: Any) -> Iterator[Case]:
    """All that fit."""
    for count in arguments.counts:
        for kib in arguments.pages:
            if kib << 10 <= (arguments.mebibytes << 20) // count:
                yield Case(kib << 10, count)


def best_of(setting: Setting, engine: CudaCopyEngine, way: str, repeat: int) -> Spent:
    """The best run, after one to warm up."""
    first = timed_run(setting, engine, way)
    return min(timed_run(setting, engine, way) for _ in range(1 if first.all > SLOW else repeat))


def measure(
    setting: Setting, names: list[str], loop: Loop | None, arguments: Any, products: Products | None
) -> dict[str, Any]:
    """GB/s of each method and way, the share of submitting in it, and the slow-down of products."""
    found: dict[str, Any] = {}
    for name in names:
        engine = setting.engine(name, loop)
        found[name] = {}
        for way in WAYS:
            best = best_of(setting, engine, way, arguments.repeat)
            found[name][way] = setting.num_bytes * len(directions_of(way)) / best.all / 1e9
            found[name][f"held {way}"] = best.submitting / best.all
        if products is not None:
            for direction in Direction:
                found[name][f"beside {direction.value}"] = products.beside_copies(
                    setting, engine, direction, arguments.beside
                )
    return found


def lines(case: Case, found: dict[str, Any], limit: dict[str, float]) -> Iterator[str]:
    """The table's lines of one case."""
    for name, rates in found.items():
        shares = "".join(
            f"{rates[way]:8.1f} {rates[way] / limit[way]:5.0%} {rates[f'held {way}']:5.0%}" for way in WAYS
        )
        beside = [rates[key] for direction in Direction if (key := f"beside {direction.value}") in rates]
        slower = "".join(f"{share:9.1%} {moved:5.1f}" for share, moved in beside)
        yield f"{case.page_bytes >> 10:>6} KiB {case.num_pages:>7} {name:>14}{shares}{slower}"


def available(setting: Setting, loop: Loop | None, arguments: Any) -> list[str]:
    """The methods that work on this machine, each tried once; says why the others don't."""
    names = []
    gathers = [f"{CopyEngineChoice.CUDA_GATHER.value}/{count}" for count in arguments.programs]
    batches = [f"{CopyEngineChoice.CUDA_BATCH.value}/{count}" for count in arguments.calls]
    for name in [*arguments.methods, *gathers, *batches]:
        try:
            engine = setting.engine(name, loop)
            for direction in Direction:
                timed_run(setting, engine, direction.value)
        except (ConfigError, AssertionError) as error:
            print(f"{name} is left out: {error}")
        else:
            names.append(name)
    return names


def beside_idlers(torch: Any, products: Products, times: int) -> dict[int, float]:
    """By how many multiprocessors are kept from them, how much slower products are; nothing without Triton."""
    found: dict[int, float] = {}
    try:
        from gpu.idlers import Idlers
    except ImportError as error:
        print(f"a kernel that does nothing is left out: {error}")
        return found
    for count in IDLE:
        idlers = Idlers(torch, count)
        idlers.give()  # which compiles it
        torch.cuda.synchronize()
        found[count] = products.beside(Jobs(idlers.give, idlers.ended, 0), times).slower
    return found


def run(torch: Any, make_driver: Callable[..., Any], loop: Loop | None, arguments: Any) -> dict[str, Any]:
    """Measure and print."""
    deadline = time.perf_counter() + arguments.seconds
    most_bytes = arguments.mebibytes << 20
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    results: dict[str, Any] = {"arguments": vars(arguments), **about, "cases": []}
    pinned = torch.empty(2 * most_bytes, dtype=torch.uint8, pin_memory=True)
    results["limits"] = limit = limits(torch, pinned, arguments.repeat)
    products = Products(torch)
    print(f"{results['device']}, torch {torch.__version__}")
    print("limit, GB/s: " + ", ".join(f"{way} {rate:.1f}" for way, rate in limit.items()))
    results["idle"] = beside_idlers(torch, products, arguments.beside)
    idle = ", ".join(f"{slower:.1%} on {count}" for count, slower in results["idle"].items()) or "unknown"
    print(f"slow-down of products beside a kernel that does nothing, by its multiprocessors: {idle}")
    columns = [*(f"{way + ' held':>20}" for way in WAYS), f"{'beside stores':>15}", f"{'beside loads':>15}"]
    print(f"{'page':>10} {'count':>7} {'method':>14}" + "".join(columns))
    names: list[str] | None = None
    left_out = []
    for case in cases(arguments):
        if time.perf_counter() > deadline:
            left_out.append(f"{case.page_bytes >> 10} KiB × {case.num_pages}")
            continue
        setting = Setting(torch, make_driver, *case, arguments)
        try:
            names = names or available(setting, loop, arguments)
            beside = products if setting.num_bytes * 4 >= most_bytes else None
            found = measure(setting, names, loop, arguments, beside)
        finally:
            setting.close()
        results["cases"].append({**case._asdict(), "gigabytes_per_second": found})
        print("\n".join(lines(case, found, limit)), flush=True)
    results["left_out"] = left_out
    if left_out:
        print(f"left out for want of time: {', '.join(left_out)}")
    return results


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def main() -> None:
    """Measure, if there is a GPU."""
    parser = argparse.ArgumentParser(description="The methods of the CUDA copy engine beside one large copy.")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--mebibytes", type=count, default=1024, help="the most bytes of one job")
    parser.add_argument("--repeat", type=count, default=3)
    parser.add_argument(
        "--beside", type=count, default=3, metavar="N", help="times that products run beside copies"
    )
    parser.add_argument("--layers", type=count, default=16)
    parser.add_argument("--in-order", action="store_true", help="chunks that follow each other")
    parser.add_argument("--in-thread", action="store_true", help="our copies are given by threads of their own")
    parser.add_argument("--pages", type=list_of(count), default=PAGES_KIB, metavar="KIB,KIB")
    parser.add_argument("--counts", type=list_of(count), default=COUNTS, metavar="N,N")
    parser.add_argument("--methods", type=some_of(NAMES), default=NAMES, metavar="A,B")
    parser.add_argument(
        "--programs", type=list_of(count), default=[], metavar="N,N", help="of cuda-gather's kernel"
    )
    parser.add_argument(
        "--calls", type=list_of(count), default=[], metavar="N,N", help="copies in one of cuda-batch"
    )
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    try:
        import torch
    except ModuleNotFoundError:
        print("no torch here, so no GPU can be asked: nothing measured")
        return
    if not torch.cuda.is_available():
        print("torch sees no GPU here: nothing measured")
        return
    from kv_offload_cpu.copy.cuda.batch_call import load_bindings
    from kv_offload_cpu.copy.cuda.torch_driver import TorchDriver

    try:
        loop = Loop(load_bindings("a loop of copies"))
    except ConfigError as error:
        print(f"{LOOP} is left out: {error}")
        loop = None
    results = run(torch, TorchDriver, loop, arguments)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
