"""Where the pages of the engine's KV caches are. Tensors may be numpy's or torch's; neither is imported."""

from typing import Any, NamedTuple

from kv_api import CanonicalKVCaches, CanonicalKVCacheTensor, KVError


class TensorPages(NamedTuple):
    """The pages of one tensor: block ``b`` is at ``address + b * stride_bytes``, and so on for ``page_bytes``."""

    num_blocks: int
    page_bytes: int
    stride_bytes: int
    address: int = 0

    @property
    def span_bytes(self) -> int:
        """From the first byte of the first page to the last byte of the last one."""
        return (self.num_blocks - 1) * self.stride_bytes + self.page_bytes if self.num_blocks else 0


class DeviceTensor(NamedTuple):
    """A tensor of pages in the memory of ``device`` ("cpu", "cuda", …)."""

    pages: TensorPages
    device: str
    tensor: Any


def device_tensors(kv_caches: CanonicalKVCaches) -> list[DeviceTensor]:
    """All tensors of a worker."""
    return [_device_tensor(index, tensor) for index, tensor in enumerate(kv_caches.tensors)]


def _device_tensor(index: int, canonical: CanonicalKVCacheTensor) -> DeviceTensor:
    tensor, page_bytes = canonical.tensor, canonical.page_size_bytes
    place = f"KV cache tensor {index}"
    if hasattr(tensor, "data_ptr"):
        item, device, address = tensor.element_size(), str(tensor.device.type), int(tensor.data_ptr())
        strides = [stride * item for stride in tensor.stride()]
    elif hasattr(tensor, "__array_interface__"):
        item, device, address = tensor.itemsize, "cpu", int(tensor.__array_interface__["data"][0])
        strides = list(tensor.strides)
        if not tensor.flags.writeable:
            raise KVError(f"{place}: a read-only array, so nothing can be loaded into it")
    else:
        raise KVError(f"{place}: expected an array of numpy or a tensor of torch, got {type(tensor).__name__}")
    shape = [int(size) for size in tensor.shape]
    row_bytes = item
    for size, stride in zip(reversed(shape[1:]), reversed(strides[1:]), strict=True):
        if size > 1 and stride != row_bytes:
            raise KVError(
                f"{place}: the bytes of a block don't lie together: shape {shape}, strides {strides} bytes"
            )
        row_bytes *= size
    if len(shape) < 2 or row_bytes < page_bytes or page_bytes < 1:
        raise KVError(f"{place}: shape {shape} with {item} bytes an element has no pages of {page_bytes} bytes")
    return DeviceTensor(TensorPages(shape[0], page_bytes, strides[0], address), device, tensor)
