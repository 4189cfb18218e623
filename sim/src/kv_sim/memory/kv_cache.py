"""``KVCache``: the pages of a layer, as a connector gets them."""

from typing import Any, cast

import numpy as np

from kv_sim.memory.content import Words


class KVCache(np.ndarray[Any, np.dtype[np.uint64]]):
    """The pages of a layer on one device, for a connector: an array of (blocks, words).

    The array shows the memory as it is at this moment, and is read-only; it is for connectors that need addresses
    and strides. ``read`` and ``write`` wait for the device first, as an access from the host does. ``device``,
    which views keep, has ``copies``, which don't wait.
    """

    _device: Any
    layer: int

    def __array_finalize__(self, origin: Any) -> None:
        if isinstance(origin, KVCache):
            self._device, self.layer = origin._device, origin.layer

    @property
    def device(self) -> Any:
        """The ``Device`` whose memory this is, and which made it."""
        return self._device

    def read(self, block: int) -> Words:
        """A copy of a page, after the device has finished all launched steps."""
        self.device.must_be_in_turn("KVCache.read")
        self.device.must_have(block, "KVCache.read")
        self.device.must_be_awake(block, "the connector")
        self.device.must_not_be_over(block, self.device.copies.errand)
        self.device.synchronize()
        self.device.shadow.about_to_read(
            self.device.rank, [block], "the connector reads it", self.device.copies.running.values()
        )
        return cast(Words, self.device.memory[block, self.layer].copy())

    def write(self, block: int, page: Any) -> None:
        """Overwrite a page by one from ``read``, after the device has finished all launched steps."""
        words = self.device.memory.shape[-1]
        if not isinstance(page, np.ndarray) or page.dtype != np.uint64 or page.shape != (words,):
            got = _described(page)
            raise TypeError(f"KVCache.write, block {block}: a page is {words} uint64 words, got {got}")
        self.device.must_be_in_turn("KVCache.write")
        self.device.must_have(block, "KVCache.write")
        self.device.must_be_awake(block, "the connector")
        self.device.must_not_be_over(block, self.device.copies.errand)
        self.device.synchronize()
        self.device.shadow.about_to_load(
            self.device.rank, block, "the connector writes it", self.device.copies.running.values()
        )
        self.device.memory[block, self.layer] = page
        if self.device.copies.errand is not None:
            self.device.copies.errand.filled.add(block)
        self.device.shadow.wrote_part(self.device.rank, block, "the connector", slice(0, words), self.layer)


def _described(page: Any) -> str:
    if isinstance(page, np.ndarray):
        return f"an array of shape {page.shape} and dtype {page.dtype}"
    if isinstance(page, bytes | bytearray | memoryview):
        return f"{len(page)} bytes (numpy.frombuffer(page, numpy.uint64) makes words of them)"
    return f"{page!r} ({type(page).__name__})"
