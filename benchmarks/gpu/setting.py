"""KV caches on a GPU and chunks in pinned memory, an engine between them by any method, and the bytes of both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gpu.peers import Loop, OneCall, OtherBatches

from kv_api import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor
from kv_offload_cpu import CopyEngineChoice, Direction, HostLayout, PageCopies
from kv_offload_cpu.copy.choose import METHODS, method_maker
from kv_offload_cpu.copy.cuda.engine import CudaCopyEngine
from kv_offload_cpu.copy.cuda.methods.batch import OneBatch
from kv_offload_cpu.copy.cuda.methods.gather import OneKernel
from kv_offload_cpu.copy.ranges.descriptors import CopyPlan
from kv_offload_cpu.copy.ranges.tensors import device_tensors
from kv_offload_cpu.memory import MappedMemory

LOOP = "loop"
ONE_CALL = "one call"
OTHERS = [LOOP, ONE_CALL]
OURS = [choice.value for choice in (*METHODS, CopyEngineChoice.AUTO, CopyEngineChoice.CUDA_BEST)]
NAMES = [*OTHERS, *OURS]


class Setting:
    """KV caches and chunks for two jobs of ``count`` pages, one of them for each direction.

    ``torch`` is the module; ``make_driver`` makes what the engines ask of the device. Others' methods have one of
    their own, which gives all at once, in memory that ours has pinned.
    """

    def __init__(
        self, torch: Any, make_driver: Callable[..., Any], page_bytes: int, count: int, arguments: Any
    ) -> None:
        self.torch = torch
        self.layers = min(arguments.layers, count)
        self.blocks = count // self.layers
        self.num_bytes = self.blocks * self.layers * page_bytes
        slot = self.layers * page_bytes
        layout = HostLayout(2 * self.blocks, 1, slot, 1, slot)
        self.memory = MappedMemory(layout)
        self.host = torch.from_numpy(self.memory.bytes).view(2 * self.blocks, self.layers, page_bytes)
        shape = (self.layers, 2 * self.blocks, page_bytes)
        self.cache = torch.zeros(shape, dtype=torch.uint8, device="cuda")
        self.shadow = torch.zeros((2 * self.blocks, self.layers, page_bytes), dtype=torch.uint8, device="cuda")
        refs = [CanonicalKVCacheRef(index, page_bytes) for index in range(self.layers)]
        tensors = [CanonicalKVCacheTensor(layer, page_bytes) for layer in self.cache]
        on_device = device_tensors(CanonicalKVCaches(tensors, [refs]))
        self.plan = CopyPlan([tensor.pages for tensor in on_device], [refs], layout, 0, self.memory.address)
        self.driver = make_driver(on_device, self.memory.bytes, pin_memory=True, notes=arguments.in_thread)
        self.of_others = make_driver(on_device, self.memory.bytes, pin_memory=False)
        random = np.random.default_rng(count)
        halves = (np.arange(self.blocks), np.arange(self.blocks, 2 * self.blocks))
        self.blocks_of = dict(zip(Direction, map(random.permutation, halves), strict=True))
        chunks = halves if arguments.in_order else map(random.permutation, halves)
        self.chunks_of = dict(zip(Direction, chunks, strict=True))

    def engine(self, name: str, loop: Loop | None) -> CudaCopyEngine:
        """The engine with a method, by name."""
        base, _, number = name.partition("/")
        made: Callable[[Any], Any]
        driver = self.driver if name not in OTHERS else self.of_others
        if name == LOOP:
            assert loop is not None
            batches = OtherBatches(loop)
            made = lambda stream: OneBatch(batches, stream, self.plan)  # noqa: E731
        elif name == ONE_CALL:
            driver.enable_batches()
            made = lambda stream: OneCall(driver, stream, self.plan)  # noqa: E731
        elif number and base == CopyEngineChoice.CUDA_BATCH.value:
            self.driver.enable_batches()
            made = lambda stream: OneBatch(self.driver, stream, self.plan, int(number))  # noqa: E731
        elif number:
            self.driver.enable_kernels()
            programs = dict.fromkeys(Direction, int(number))
            made = lambda stream: OneKernel(self.driver, stream, self.plan, programs)  # noqa: E731
        else:
            made = method_maker(self.driver, CopyEngineChoice(base), self.plan)
        return CudaCopyEngine(self.plan, driver, made)

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
        self.of_others.shutdown()
        self.driver.shutdown()
        self.host = None
        self.memory.release()


def parts_of(copies: PageCopies, num_jobs: int) -> list[PageCopies]:
    """The same pages in so many jobs, or fewer."""
    size = -(-len(copies) // num_jobs)
    return [copies.part(begin, begin + size) for begin in range(0, len(copies), size)]
