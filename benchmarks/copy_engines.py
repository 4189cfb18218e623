"""How fast each method of the CUDA engine copies pages, beside one large copy, on the GPU of this machine.

A job moves ``count`` pages of one size between KV caches on the GPU (``LAYERS`` tensors, blocks in random order)
and chunks in pinned host memory, also in random order. Its time is from submission to the end of the wait, so it
counts what the host does. Columns are GB/s, and the share of the limit: one large pinned copy, timed in the same
run. ``both`` is a store and a load at once, of different blocks and chunks, beside a large copy each way at once.

``loop`` is the plain method of others: ``cuMemcpyAsync`` for each page. ``cuda-batch`` is ours and theirs at once:
one ``cuMemcpyBatchAsync``. ``cuda-best`` picks one of ours by a trial, which isn't timed.

Every timed run has fresh random bytes, and is checked byte for byte afterwards. Of ``--repeat`` runs the best
counts.

``matmul`` is how much slower a product of bf16 matrices is while stores of the same pages run beside it; "?" means
that the copies ended before the products did.

``--programs 1 2 8`` measures ``cuda-gather`` with as many programs, too, as ``cuda-gather/1`` and so on.

    python benchmarks/copy_engines.py [--seconds 240] [--mebibytes 1024] [--repeat 3] [--json FILE]
        [--programs N …]

It begins no case after ``--seconds``, and says what it left out. Without a GPU it says so and measures nothing.
Needs kv-offload-cpu[cuda].
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from kv_api import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor, ConfigError
from kv_offload_cpu import CopyEngineChoice, Direction, HostLayout, PageCopies
from kv_offload_cpu.copy.addresses import Moves
from kv_offload_cpu.copy.choose import METHODS, method_maker
from kv_offload_cpu.copy.cuda import CudaCopyEngine
from kv_offload_cpu.copy.cuda_batch import OneBatch, SourceOrder
from kv_offload_cpu.copy.descriptors import CopyPlan
from kv_offload_cpu.copy.tensors import device_tensors
from kv_offload_cpu.memory import MappedMemory

LAYERS = 16
PAGES_KIB = (4, 8, 16, 24, 32, 64, 128, 256, 2048)
COUNTS = (16, 256, 4096, 65536)
WAYS = ("store", "load", "both")
LOOP = "loop"
MATMUL_SIZE = 8192
MATMULS = 12
BESIDE = 8
"""Jobs that run beside the products."""


class Loop:
    """What stands for a batch where every copy is a call."""

    def __init__(self, bindings: Any) -> None:
        self._copy = bindings.cuMemcpyAsync

    def __call__(self, stream: Any, found: Moves, order: SourceOrder) -> None:
        """Give a stream copies."""
        for target, source, size in zip(*(column.tolist() for column in found), strict=True):
            [result] = self._copy(target, source, size, stream.cuda_stream)
            if int(result):
                raise RuntimeError(f"cuMemcpyAsync gave error {int(result)}")


class LoopDriver:
    """A driver with another ``copy_batch``."""

    def __init__(self, loop: Loop) -> None:
        self.copy_batch = loop


class WithPrograms:
    """A driver whose kernels are so many programs."""

    def __init__(self, torch: Any, driver: Any, programs: int) -> None:
        self._torch = torch
        self._driver = driver
        self._programs = programs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def run_kernel(self, stream: Any, table: Any, num_rows: int, rows: range, word: int) -> None:
        """Give ``stream`` the moves of some rows."""
        from kv_offload_cpu.copy.gather_kernel import launch

        with self._torch.cuda.stream(stream):
            launch(table.on_device, num_rows, rows, word, self._programs)


class Setting:
    """KV caches and chunks for two jobs of ``count`` pages, one of them for each direction.

    ``torch`` is the module; ``make_driver`` makes what the engines ask of the device.
    """

    def __init__(
        self, torch: Any, make_driver: Callable[..., Any], device: str, page_bytes: int, count: int
    ) -> None:
        self.torch = torch
        self.page_bytes = page_bytes
        self.layers = min(LAYERS, count)
        self.blocks = count // self.layers
        self.num_bytes = self.blocks * self.layers * page_bytes
        slot = self.layers * page_bytes
        layout = HostLayout(2 * self.blocks, 1, slot, 1, slot)
        self.memory = MappedMemory(layout)
        self.host = torch.from_numpy(self.memory.bytes).view(2 * self.blocks, self.layers, page_bytes)
        shape = (self.layers, 2 * self.blocks, page_bytes)
        self.cache = torch.zeros(shape, dtype=torch.uint8, device=device)
        self.shadow = torch.zeros((2 * self.blocks, self.layers, page_bytes), dtype=torch.uint8, device=device)
        refs = [CanonicalKVCacheRef(index, page_bytes) for index in range(self.layers)]
        tensors = [CanonicalKVCacheTensor(layer, page_bytes) for layer in self.cache]
        on_device = device_tensors(CanonicalKVCaches(tensors, [refs]))
        self.plan = CopyPlan([tensor.pages for tensor in on_device], [refs], layout, 0, self.memory.address)
        self.driver = make_driver(on_device, self.memory.bytes, pin_memory=True)
        random = np.random.default_rng(count)
        halves = (np.arange(self.blocks), np.arange(self.blocks, 2 * self.blocks))
        self.blocks_of = dict(zip(Direction, map(random.permutation, halves), strict=True))
        self.chunks_of = dict(zip(Direction, map(random.permutation, halves), strict=True))

    def engine(self, name: str, loop: Loop | None) -> CudaCopyEngine:
        """The engine with a method, by name."""
        if name == LOOP:
            assert loop is not None
            driver = LoopDriver(loop)
            return CudaCopyEngine(self.plan, self.driver, lambda stream: OneBatch(driver, stream))
        name, _, programs = name.partition("/")
        driver = WithPrograms(self.torch, self.driver, int(programs)) if programs else self.driver
        return CudaCopyEngine(
            self.plan, self.driver, method_maker(driver, CopyEngineChoice(name), self.page_bytes)
        )

    def copies(self, direction: Direction) -> PageCopies:
        """The pages of a job."""
        zeros = np.zeros(self.blocks, np.int64)
        return PageCopies(zeros, self.blocks_of[direction], self.chunks_of[direction], zeros)

    def refresh(self) -> None:
        """Fresh random bytes everywhere; host memory gets them by way of the device, which is quick."""
        self.cache.random_(0, 256)
        self.shadow.random_(0, 256)
        self.host.copy_(self.shadow)

    def verify(self, directions: list[Direction]) -> None:
        """Whether each chunk now equals its block."""
        self.shadow.copy_(self.host)
        for direction in directions:
            blocks, chunks = (
                self.torch.from_numpy(numbers[direction]).to(self.cache.device)
                for numbers in (self.blocks_of, self.chunks_of)
            )
            for layer in range(self.layers):
                if not self.torch.equal(self.cache[layer][blocks], self.shadow[chunks, layer]):
                    raise AssertionError(f"{direction.value} of {self.num_bytes} bytes: contents differ")

    def close(self) -> None:
        """Give everything back."""
        self.driver.shutdown()
        self.host = None
        self.memory.release()


def directions_of(way: str) -> list[Direction]:
    """What runs at once."""
    return list(Direction) if way == "both" else [Direction(way)]


def timed_run(setting: Setting, engine: CudaCopyEngine, way: str) -> float:
    """Seconds of one job, or of two at once, with fresh bytes that are checked."""
    directions = directions_of(way)
    setting.refresh()
    setting.torch.cuda.synchronize()
    begin = time.perf_counter()
    for job_id, direction in enumerate(directions):
        engine.submit(job_id, direction, setting.copies(direction))
    engine.wait(range(len(directions)))
    seconds = time.perf_counter() - begin
    ended = [result.success for result in engine.poll()]
    if ended != [True] * len(directions):
        raise AssertionError(f"{way}: {ended}")
    setting.verify(directions)
    return seconds


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


class Products:
    """Products of matrices on a stream of their own, so that copies don't wait for them."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.stream = torch.cuda.Stream()
        self.matrix = torch.randn((MATMUL_SIZE, MATMUL_SIZE), device="cuda").to(torch.bfloat16)
        self.alone = min(self.seconds() for _ in range(3))

    def seconds(self) -> float:
        """The time of some."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self.torch.cuda.stream(self.stream):
            begin.record(self.stream)
            for _ in range(MATMULS):
                self.matrix @ self.matrix
            end.record(self.stream)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    def slowdown(self, setting: Setting, engine: CudaCopyEngine) -> tuple[float, bool]:
        """How much slower they are beside stores, and whether those went on until the end."""
        copies = setting.copies(Direction.STORE)
        jobs = range(BESIDE)

        def submit() -> None:
            for job in jobs:
                engine.submit(job, Direction.STORE, copies)

        with ThreadPoolExecutor(1) as submitter:
            submitted = submitter.submit(submit)
            seconds = self.seconds()
            lasted = not submitted.done() or len(engine.poll()) < BESIDE
        engine.wait(jobs)
        engine.poll()
        return seconds / self.alone - 1, lasted


class Case(NamedTuple):
    """One line of the table."""

    page_bytes: int
    num_pages: int


def cases(most_bytes: int) -> Iterator[Case]:
    """The middle of the range first, so that a run that is cut short has seen each size."""
    for count in (4096, 65536, 256, 16):
        for kib in PAGES_KIB:
            if kib << 10 <= most_bytes // count:
                yield Case(kib << 10, count)


def measure(setting: Setting, names: list[str], loop: Loop | None, repeat: int, products: Any) -> dict[str, Any]:
    """GB/s of each method and way, and the slow-down of products."""
    found: dict[str, Any] = {}
    for name in names:
        engine = setting.engine(name, loop)
        found[name] = {}
        for way in WAYS:
            best = min(timed_run(setting, engine, way) for _ in range(repeat + 1))  # one to warm up
            found[name][way] = setting.num_bytes * len(directions_of(way)) / best / 1e9
        if products is not None:
            found[name]["matmul"], found[name]["lasted"] = products.slowdown(setting, engine)
    return found


def lines(case: Case, found: dict[str, Any], limit: dict[str, float]) -> Iterator[str]:
    """The table's lines of one case."""
    for name, rates in found.items():
        shares = "".join(f"{rates[way]:9.1f} {rates[way] / limit[way]:5.0%}" for way in WAYS)
        beside = f"{rates['matmul']:8.1%}{'' if rates['lasted'] else '?'}" if "matmul" in rates else ""
        yield f"{case.page_bytes >> 10:>6} KiB {case.num_pages:>7} {name:>14}{shares}{beside}"


def available(setting: Setting, loop: Loop | None, programs: list[int]) -> list[str]:
    """The methods that this machine has; says why it lacks the others."""
    names = []
    gathers = [f"{CopyEngineChoice.CUDA_GATHER.value}/{count}" for count in programs]
    for name in [LOOP, *(choice.value for choice in (*METHODS, CopyEngineChoice.CUDA_BEST)), *gathers]:
        try:
            setting.engine(name, loop)
        except (ConfigError, AssertionError) as error:
            print(f"{name} is left out: {error}")
        else:
            names.append(name)
    return names


def run(torch: Any, make_driver: Callable[..., Any], loop: Loop | None, arguments: Any) -> dict[str, Any]:
    """Measure and print."""
    deadline = time.perf_counter() + arguments.seconds
    most_bytes = arguments.mebibytes << 20
    results: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": []}
    pinned = torch.empty(2 * most_bytes, dtype=torch.uint8, pin_memory=True)
    results["limits"] = limit = limits(torch, pinned, arguments.repeat)
    products = Products(torch)
    print(f"{results['device']}, torch {torch.__version__}")
    print("limit, GB/s: " + ", ".join(f"{way} {rate:.1f}" for way, rate in limit.items()))
    print(f"{'page':>10} {'count':>7} {'method':>14}" + "".join(f"{way:>15}" for way in WAYS) + f"{'matmul':>9}")
    names: list[str] | None = None
    left_out = []
    for case in cases(most_bytes):
        if time.perf_counter() > deadline:
            left_out.append(f"{case.page_bytes >> 10} KiB × {case.num_pages}")
            continue
        setting = Setting(torch, make_driver, "cuda", *case)
        try:
            names = names or available(setting, loop, arguments.programs)
            beside = products if setting.num_bytes * 4 >= most_bytes else None
            found = measure(setting, names, loop, arguments.repeat, beside)
        finally:
            setting.close()
        results["cases"].append({**case._asdict(), "gigabytes_per_second": found})
        print("\n".join(lines(case, found, limit)), flush=True)
    results["left_out"] = left_out
    if left_out:
        print(f"left out for want of time: {', '.join(left_out)}")
    return results


def main() -> None:
    """Measure, if there is a GPU."""
    parser = argparse.ArgumentParser(description="The methods of the CUDA copy engine beside one large copy.")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--mebibytes", type=int, default=1024, help="the most bytes of one job")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--programs", type=int, nargs="+", default=[], metavar="N", help="of cuda-gather's kernel")
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
    from kv_offload_cpu.copy.batch_call import load_bindings
    from kv_offload_cpu.copy.torch_driver import TorchDriver

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
