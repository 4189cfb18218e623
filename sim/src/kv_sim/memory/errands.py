"""``Errands``: an executor that replaces a connector's threads. The world decides when their functions run.

An errand is a function that a connector's thread would run beside the engine: read a file, ask a store, compress a
page. Here it runs in one go, some time after it was submitted, like a copy's pages. If the subject claims to
withstand copies that fail or are lost, errands may fail or be lost, too. Waiting for an errand runs it.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future  # noqa: TID251 - what these are like; there is no thread here
from typing import Any, NoReturn, ParamSpec, TypeVar

from kv_api import ConfigError, Direction
from kv_sim.memory.copies import CopyQueue
from kv_sim.memory.copy import Result
from kv_sim.memory.device import Device
from kv_sim.violation import Invariant, TestbedError, Violation

P = ParamSpec("P")
T = TypeVar("T")


class Errand(Future[T]):
    """What ``Errands.submit`` returns: a future on which waiting always ends."""

    def __init__(self, errands: "Errands", call: Callable[[], T]) -> None:
        super().__init__()
        self._errands = errands
        self._call = call
        self.copy_id = -1

    def run(self) -> None:
        """Run it now. A violation that the testbed finds ends the history."""
        if self.running():
            self._errands.waits_for_itself(self)
        if not self.set_running_or_notify_cancel():
            return
        try:
            answer = self._call()
        except (Violation, ConfigError, TestbedError):
            raise
        except Exception as error:  # noqa: BLE001 - as an executor: whoever asks for the result gets it
            self.set_exception(error)
        else:
            self.set_result(answer)

    def result(self, timeout: float | None = None) -> T:
        """Return what it returned, or raise what it raised. A lost errand raises a ``TimeoutError``."""
        self._errands.wait_for(self)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What it raised."""
        self._errands.wait_for(self)
        return super().exception(0)


class Errands(Executor):
    """An executor for a connector's worker, or for its scheduler's side, of one rank's device."""

    def __init__(self, device: Device, *, in_order: bool = False) -> None:
        self._queue = _Queue(device)
        self._shadow = device.shadow
        device.copies.executors += 1
        self._stream = f"errands {device.copies.executors}" if in_order else ""
        """The copy stream of errands that run in order, as one thread would run them; another executor has
        another."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Errand[T]:
        """Have a function called at some later time."""
        errand = Errand(self, lambda: fn(*args, **kwargs))
        self._queue.send(errand, self._stream)
        return errand

    def wait_for(self, *errands: Errand[Any]) -> None:
        """Run these errands now, unless they are lost."""
        self._queue.wait([errand.copy_id for errand in errands])

    def waits_for_itself(self, errand: Errand[Any]) -> NoReturn:
        """Report an errand that waits for itself, or for one that must run after it."""
        said = f"errand {errand.copy_id} waits for itself, or for one behind it: a thread would wait for good"
        self._shadow.fail(Invariant.LIVENESS, said)
        raise RuntimeError(said)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Run or cancel all errands."""
        left = [*self._queue.under_way.values()]
        if cancel_futures:
            for errand in left:
                errand.cancel()
        if wait:
            self.wait_for(*left)


class _Queue(CopyQueue):
    """A copy queue for errands: it passes their ends on to them, and keeps none for a poll."""

    def __init__(self, device: Device) -> None:
        super().__init__(device.copies)
        self.under_way: dict[int, Errand[Any]] = {}

    def send(self, errand: Errand[Any], stream: str) -> None:
        """Submit an errand."""
        errand.copy_id = self._copies.begin(
            self, Direction.STORE, (), after_compute=False, stream=stream, errand=errand.run
        )
        self.under_way[errand.copy_id] = errand

    def report(self, result: Result) -> None:
        """An errand has ended; if it failed, it never began. This may be reported twice."""
        errand = self.under_way.pop(result.copy_id, None)
        if errand is not None and not errand.done() and errand.set_running_or_notify_cancel():
            errand.set_exception(OSError(f"errand {result.copy_id} fails, since the world says so"))
