"""The kernel of ``bulk_kernel.cu``: what it needs of a device, and how many buffers a program has."""

from typing import Any, Final

from kv_api import ConfigError
from kv_offload_cpu.copy.cuda.kernel_call import DriverKernel
from kv_offload_cpu.copy.cuda.methods.page_table import STEP_BYTES
from kv_offload_cpu.copy.cuda.nvrtc import Loaded, Source
from kv_offload_cpu.copy.ranges.addresses import WIDEST_WORD_BYTES

LANES: Final = 8
"""How many threads of a warp have a buffer."""

WARPS: Final = {False: 6, True: 2}
"""Warps of a program, by whether it stores; fewer if the device has no room for so many. Stores have as many bytes
in flight as fill the link: on an H200 that takes two programs of 16 buffers. Loads have three times as many,
since their answers come later while stores run."""

SOURCE: Final = Source(
    "bulk_kernel.cu",
    (f"-DSTEP_BYTES={STEP_BYTES}", f"-DLANES={LANES}"),
    "kernel of bulk copies",
    "use 'cuda-gather'",
    oldest=(9, 0),
)
"""From Hopper on; all later devices have bulk copies."""

_BARRIER_BYTES: Final = 8


class BulkCall:
    """The kernel on the current device; a ConfigError if the device can't run it."""

    def __init__(self) -> None:
        loaded = Loaded(SOURCE)
        room = loaded.device_attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self.warps = {is_store: max(1, min(warps, room // shared_bytes(1))) for is_store, warps in WARPS.items()}
        self.function = loaded.function("move_pages")
        loaded.allow_shared_bytes(self.function, shared_bytes(max(self.warps.values())))

    def kernel(self, steps: Any, num_steps: int, *, is_store: bool, word: int) -> "BulkKernel":
        """The kernel for one direction and these steps; ``steps`` is a tensor on the device."""
        if word < WIDEST_WORD_BYTES:
            raise ConfigError(
                f"copy_engine: 'cuda-bulk' copies multiples of {WIDEST_WORD_BYTES} bytes, and these pages or "
                f"slots are multiples of {word}; use 'cuda-gather'"
            )
        return BulkKernel(self, steps, num_steps, is_store=is_store)


class BulkKernel(DriverKernel):
    """The kernel for one direction. Each of its programs runs until all steps are moved."""

    def __init__(self, call: BulkCall, steps: Any, num_steps: int, *, is_store: bool) -> None:
        warps = call.warps[is_store]
        threads, room = 32 * warps, shared_bytes(warps)
        super().__init__(call.function, steps, num_steps, is_store=is_store, threads=threads, shared_bytes=room)
        self._buffers = LANES * warps

    def grid(self, items: int, programs: int) -> tuple[int, int]:
        return max(1, min(programs, -(-items // self._buffers))), 1


def shared_bytes(warps: int) -> int:
    """Bytes of shared memory that the buffers of ``warps`` warps take, with a barrier for each buffer."""
    return LANES * warps * (STEP_BYTES + _BARRIER_BYTES)
