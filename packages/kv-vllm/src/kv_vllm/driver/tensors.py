"""``DeviceTensor``: a layer of the testbed's memory as a torch tensor in vLLM's layout.

Where such a tensor lies is plain to see; whoever reads or writes elements of it does that at once: the device
first finishes what it was given, and the ledger of rights is asked about every block that is touched.
"""

from collections.abc import Callable
from typing import Any, Final
from weakref import WeakValueDictionary

import torch

from kv_api import ConfigError
from kv_sim.memory.device import Device

READS: Final = frozenset({torch.Tensor.__getitem__})
WRITES: Final = frozenset({torch.Tensor.__setitem__})


class DeviceTensor(torch.Tensor):  # type: ignore[misc]
    """The pages of one layer: ``(blocks, heads, slots, width)``, as vLLM hands them to a connector."""

    _device: Device

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Let the device finish before elements are touched, and ask for the right to."""
        if func in READS or func in WRITES:
            tensor = args[0]
            if isinstance(tensor, cls) and hasattr(tensor, "_device"):
                _touch(tensor, args[1], writes=func in WRITES)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def _touch(tensor: DeviceTensor, index: Any, *, writes: bool) -> None:
    device = tensor._device
    device.synchronize()
    first = index[0] if isinstance(index, tuple) else index
    with torch._C.DisableTorchFunctionSubclass():
        every = torch.arange(tensor.shape[0])
        blocks = sorted(set(every[first].reshape(-1).tolist()))
    copies = device.copies.running.values()
    if not writes:
        device.shadow.about_to_read(device.rank, blocks, "the connector reads it", copies)
        return
    for block in blocks:
        device.shadow.about_to_load(device.rank, block, "the connector writes it", copies)
        device.shadow.last_writer[device.rank][block] = "the connector"


_DEVICES: Final[WeakValueDictionary[int, Device]] = WeakValueDictionary()
"""Address of a device's memory -> the device."""


def device_tensor(device: Device, layer: int) -> DeviceTensor:
    """A layer of a device."""
    words = torch.from_numpy(device.memory.view("int64"))
    tensor: DeviceTensor = words[:, layer][:, None, :, None].as_subclass(DeviceTensor)
    tensor._device = device
    _DEVICES[words.data_ptr()] = device
    return tensor


def device_of(tensor: torch.Tensor) -> Device:
    """The device whose memory a tensor shows."""
    device = _DEVICES.get(tensor.untyped_storage().data_ptr())
    if device is None:
        raise ConfigError("the testbed copies what lies on its own devices, and this tensor doesn't")
    return device
