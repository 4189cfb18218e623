"""Stand-ins for an accelerator's streams and events, on a machine that has none.

On such a machine torch's streams and events can't be used, so a connector that orders its copies by events
couldn't run. The testbed's devices run work as soon as it is launched, so everything that a stream or event would
wait for has happened, and these stand-ins say so. They don't replace pinned memory, memory pools and kernels.
"""

from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, Final

import torch


class Event:
    """An event that has happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes any arguments."""

    def record(self, stream: Any = None) -> None:
        """Nothing to do: it has happened."""

    def wait(self, stream: Any = None) -> None:
        """Nothing to wait for: it has happened."""

    def synchronize(self) -> None:
        """Nothing to wait for: it has happened."""

    def query(self) -> bool:
        """Whether it has happened."""
        return True

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds in between: nothing takes time."""
        return 0.0


class Stream:
    """A queue in which everything has run."""

    priority = 0
    device_index = 0
    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Whatever it is made with."""

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *error: object) -> None:
        """What was queued has run."""

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Least and greatest: one priority is as good as another."""
        return (0, 0)

    def wait_event(self, event: Any) -> None:
        """Nothing to wait for: it has happened."""

    def wait_stream(self, stream: Any) -> None:
        """Nothing to wait for: it is empty."""

    def record_event(self, event: Any = None) -> Any:
        """An event that has happened."""
        return Event() if event is None else event

    def synchronize(self) -> None:
        """Nothing to wait for: it is empty."""

    def query(self) -> bool:
        """Whether it is empty."""
        return True


_ONLY: Final = Stream()


def _stream(stream: Any) -> AbstractContextManager[Any]:
    return nullcontext()


def _only_stream(device: Any = None) -> Stream:
    return _ONLY


def _done(*args: Any, **kwargs: Any) -> None:
    """Nothing is under way."""


def _first_device() -> int:
    return 0


STAND_INS: Final[dict[ModuleType, dict[str, Any]]] = {
    torch: {"Event": Event},
    torch.cuda: {
        "Event": Event,
        "Stream": Stream,
        "stream": _stream,
        "current_stream": _only_stream,
        "default_stream": _only_stream,
        "synchronize": _done,
        "current_device": _first_device,
        "set_device": _done,
    },
    torch.accelerator: {
        "current_stream": _only_stream,
        "set_stream": _done,
        "synchronize": _done,
        "current_device_index": _first_device,
        "set_device_index": _done,
    },
}


def stand_in_for_streams() -> None:
    """Put the stand-ins in the place of torch's streams and events, unless there is an accelerator."""
    if torch.accelerator.is_available():
        return
    for module, names in STAND_INS.items():
        for name, stand_in in names.items():
            setattr(module, name, stand_in)
