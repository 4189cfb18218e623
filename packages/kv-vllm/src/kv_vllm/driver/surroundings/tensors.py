"""``DeviceTensor``: a layer of the testbed's memory as a torch tensor in vLLM's layout.

Addresses, sizes and strides can be read freely, and a view of such a tensor is a ``DeviceTensor``, too. Before
elements are read or written, the device finishes the work that it was given, and its shadow checks the right to
every block that is touched. Accesses by address aren't noticed. So a device runs a step as soon as it is launched,
unless a worker has asked for the device itself, to copy through the testbed (``device_of``).

A connector's own thread may run at any moment, but a device is made for one thread. So the device doesn't finish
work for such a thread. Its reads aren't noticed; for writes it needs the right.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

import torch

from kv_api import ConfigError
from kv_vllm.driver.surroundings.device import TensorDevice
from kv_vllm.vllm_world import numbers_of

LOOKS: Final = frozenset(
    {
        *("__array__", "__dlpack__", "__dlpack_device__", "__get__", "__hash__", "__len__", "__set__"),
        *(
            "as_strided",
            "as_subclass",
            "chunk",
            "data_ptr",
            "detach",
            "dim",
            "element_size",
            "expand",
            "get_device",
        ),
        *("is_contiguous", "is_pinned", "movedim", "ndimension", "numel", "numpy", "permute", "requires_grad_"),
        *("size", "split", "squeeze", "storage_offset", "stride", "swapaxes", "t", "tensor_split", "transpose"),
        *("unbind", "unflatten", "unsqueeze", "untyped_storage", "view", "view_as"),
    }
)
"""Methods that touch no elements, or return a view of them."""

TAKES_PART: Final = frozenset({"__getitem__", "gather", "index_select", "narrow", "select", "take"})
"""Methods that read only those elements of the first argument that the other arguments select."""


class DeviceTensor(torch.Tensor):  # type: ignore[misc]
    """The pages of one layer, ``(blocks, heads, slots, width)``, as vLLM registers them; or a view of them."""

    _device: TensorDevice

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Before elements are touched, let the device finish, and check the right."""
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name not in LOOKS:
            with torch._C.DisableTorchFunctionSubclass():
                _touch(func, name, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return _kept(func(*args, **kwargs))


def _touch(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    in_place = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    first = args[0] if args else kwargs.get("input")
    written = [*_device_tensors([first if in_place else kwargs.get("out")])]
    for tensor in _device_tensors((args, tuple(kwargs.values()))):
        numbers = _block_numbers(tensor)
        if any(tensor is one for one in written):
            _about_to_write(tensor._device, name, _distinct(_written_part(name, numbers, args[1:], kwargs)))
            continue
        if name in TAKES_PART and tensor is first:
            which = {key: value for key, value in kwargs.items() if key not in ("input", "out")}
            numbers = func(numbers, *args[1:], **which)
        _about_to_read(tensor._device, name, _distinct(numbers))


def _written_part(name: str, numbers: torch.Tensor, said: Sequence[Any], named: Mapping[str, Any]) -> torch.Tensor:
    """The part of a tensor that an in-place method writes, by its other arguments."""
    if name == "__setitem__":
        return numbers[said[0]]
    if name == "index_put_":
        return numbers[tuple(said[0] if said else named["indices"])]
    if name.startswith("masked_"):
        return numbers[(said[0] if said else named["mask"]).expand_as(numbers)]
    if name.startswith(("index_", "scatter_")):
        dim, index = [*said[:2], *(named[key] for key in ("dim", "index")[len(said) :])]
        return numbers.gather(dim, index) if name.startswith("scatter_") else numbers.index_select(dim, index)
    return numbers


def _about_to_read(device: TensorDevice, method: str, blocks: list[int]) -> None:
    if device.is_in_between(f"Tensor.{method}"):
        return
    for block in blocks:
        device.must_be_awake(block, "the connector")
    device.synchronize()
    device.shadow.about_to_read(device.rank, blocks, "the connector reads it", device.copies.running.values())


def _about_to_write(device: TensorDevice, method: str, blocks: list[int]) -> None:
    who, copies = "the connector", device.copies.running
    if device.is_in_between(f"Tensor.{method}"):
        who, copies = f"the connector's thread {threading.current_thread().name}", {}
    else:
        device.synchronize()
    for block in blocks:
        device.must_be_awake(block, who)
        device.shadow.about_to_load(device.rank, block, f"{who} writes it", copies.values())
        device.shadow.last_writer[device.rank][block] = who


def _block_numbers(tensor: DeviceTensor) -> torch.Tensor:
    """The block of each element of a tensor."""
    config, size = tensor._device.config, tensor.element_size()
    elements = torch.arange(tensor.untyped_storage().nbytes() // size)
    pages = elements * size // config.page_bytes
    return torch.as_strided(pages % config.num_blocks, tensor.size(), tensor.stride(), tensor.storage_offset())


def _distinct(numbers: torch.Tensor) -> list[int]:
    return sorted(set(numbers.reshape(-1).tolist()))


def _device_tensors(values: Iterable[Any]) -> Iterator[DeviceTensor]:
    """The device tensors among arguments, at any depth."""
    for value in values:
        if isinstance(value, DeviceTensor):
            if hasattr(value, "_device"):
                yield value
        elif isinstance(value, tuple | list):
            yield from _device_tensors(value)


_DEVICES: Final[WeakValueDictionary[int, TensorDevice]] = WeakValueDictionary()
"""Address of a device's memory -> the device."""


def _kept(result: Any) -> Any:
    """Make a result that is a view of a device's memory a ``DeviceTensor``."""
    if isinstance(result, tuple | list):
        return type(result)(map(_kept, result)) if type(result) in (tuple, list) else result
    if not isinstance(result, torch.Tensor):
        return result
    device = _DEVICES.get(result.untyped_storage().data_ptr())
    return result if device is None else _of_device(result, device)


def _of_device(tensor: torch.Tensor, device: TensorDevice) -> DeviceTensor:
    found: DeviceTensor = tensor.as_subclass(DeviceTensor)
    found._device = device
    return found


def device_tensor(device: TensorDevice, layer: int) -> DeviceTensor:
    """A layer of a device: the key and the value of each slot of a block."""
    dtype, head_size = numbers_of(device.config)
    tokens: DeviceTensor = _layer(device, layer).view(dtype)[:, None].unflatten(2, (-1, 2 * head_size))
    return tokens


def state_tensor(device: TensorDevice, layer: int) -> DeviceTensor:
    """A layer of states: their bytes, of which only the layer knows the parts."""
    pages: DeviceTensor = _layer(device, layer).view(torch.int8)[:, None, None]
    return pages


def _layer(device: TensorDevice, layer: int) -> DeviceTensor:
    words = torch.from_numpy(device.memory.view("int64"))
    _DEVICES[words.untyped_storage().data_ptr()] = device
    return _of_device(words[:, layer], device)


def device_of(tensor: torch.Tensor) -> TensorDevice:
    """The device whose memory a tensor is of. A worker that asks for it copies through it, and not by address."""
    device = _DEVICES.get(tensor.untyped_storage().data_ptr())
    if device is None:
        raise ConfigError("the testbed can copy only tensors on its own devices, and this tensor is on another")
    device.is_read_by_address = False
    return device
