"""Makes the noted calls of the driver for a lane's streams, in order, in a thread beside the one that noted them.

The driver takes half a microsecond or more for each copy of a batch, so a job of some hundred megabytes keeps a
thread for milliseconds. The thread that submits a job is the one that launches the model's work, so it should not
do this. And where copies are small, one thread is too slow for both directions at once. So calls of the driver are
noted, and each lane has a giver, whose thread makes them and never waits for the interpreter.

**Theory of operation.** Calls are noted in a list, until ``go``. Lists are numbered, and given in this order: to
give a list is to make its calls. If no other list is under way, ``go`` gives a short one itself, since waking the
thread takes as long as some dozens of copies. All other lists are published to the thread. A Python function can
be noted, too (an *action*); for that the thread does need the interpreter.

When a call fails, nothing after it is given: the rest of its job would be wrong, and the giver doesn't know where
the next job begins. That list and all later ones count as failed, until ``drain`` has found the lane's streams
idle.

**Invariant.** Lists up to ``_given`` were given, or have failed; ``_waiting`` has the later ones that have gone.
"""

import ctypes
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from kv_offload_cpu.copy.cuda.call_loop import MOST_LISTS, CallLoop, Calls, Server

AT_ONCE: Final = 64
"""``go`` itself gives a list of at most this many copies; the thread gives longer ones."""

_NAP: Final = 20e-6
"""Seconds of the first nap between two looks at what was given. Each nap is twice as long, up to ``_LONGEST_NAP``
times."""
_LONGEST_NAP: Final = 16

_CALL_OF_PYTHON = ctypes.CFUNCTYPE(ctypes.c_int)

Action = Callable[[], object]


class _List(NamedTuple):
    number: int
    in_thread: int
    """Its number among the lists that the thread gives, counted from 0."""
    calls: Calls
    kept: list[Any]


class Giver:
    """Gives calls of the driver in the order in which they were noted.

    A thread makes them within ``on_device``; ``name_of`` gives the name of the function at an address. All methods
    are for one thread, the one that submits jobs.
    """

    def __init__(
        self,
        loop: CallLoop,
        on_device: Callable[[], AbstractContextManager[object]],
        name_of: Callable[[int], str],
        name: str,
    ) -> None:
        self.number = 1
        """The number of the list that is being noted; ``is_given`` takes it."""
        self._loop = loop
        self._on_device = on_device
        self._name_of = name_of
        self._server = Server(loop, on_device, name)
        self._calls = Calls()
        self._kept: list[Any] = []
        self._copies = 0
        self._waiting: deque[_List] = deque()
        self._given = 0
        self._broken: Exception | None = None
        self._failures: dict[int, Exception] = {}
        self._raised: Exception | None = None

    def note(self, function: int, arguments: tuple[int, ...], *kept: object, copies: int = 1) -> None:
        """Note a call of the function at an address; it costs as much as ``copies`` copies.

        ``kept`` is kept alive until the call was made.
        """
        self._calls.add(function, arguments)
        self._kept += kept
        self._copies += copies

    def note_action(self, action: Action, copies: int = 1) -> None:
        """Note a call of a Python function, which needs the interpreter; it costs as much as ``copies`` copies."""
        call = _CALL_OF_PYTHON(lambda: self._act(action))
        self.note(ctypes.cast(call, ctypes.c_void_p).value or 0, (), call, copies=copies)

    def go(self) -> None:
        """Give the noted list: at once if it is short and no other is under way, else by the thread."""
        if not len(self._calls):
            return
        calls, kept, copies, number = self._calls, self._kept, self._copies, self.number
        self._calls, self._kept, self._copies, self.number = Calls(), [], 0, number + 1
        self._look()
        if self._broken is not None and not self._waiting:
            self._end_list(number)
            return
        if self._waiting or copies > AT_ONCE:
            self._nap_until(lambda: len(self._waiting) < MOST_LISTS)
            self._waiting.append(_List(number, self._server.publish(calls), calls, kept))
            return
        with self._on_device():
            made, error = self._loop.make(calls)
        if error:
            self._broken = self._failure(calls.function(made), error)
        self._end_list(number)

    def is_given(self, number: int) -> bool:
        """Whether a list was given; raises its error if it failed."""
        if number > self._given:
            self._look()
            if number > self._given:
                return False
        if self._failures and (failure := self._failures.get(number)) is not None:
            raise failure
        return True

    def wait_for(self, number: int) -> None:
        """Return when a list was given; raises its error if it failed."""
        assert number < self.number, f"list {number} is still being noted"
        self._nap_until(lambda: self._given >= number)
        self.is_given(number)

    def drain(self, wait: Callable[[], None]) -> None:
        """Give all that was noted, and call ``wait``, which returns when the lane's streams are idle.

        No work of a failed job is left then, so later lists are given again.
        """
        self.end()
        wait()
        self._server.mend()
        self._broken = None

    def end(self) -> None:
        """Give all that was noted, and end the thread; the next long list begins another one. May be repeated."""
        self.go()
        self._nap_until(lambda: not self._waiting)
        self._server.end()

    def _look(self) -> None:
        """Take out the lists that the thread has given since the last look, and note those that failed."""
        num_made = self._server.num_made
        while self._waiting and self._waiting[0].in_thread < num_made:
            number, in_thread, calls, _ = self._waiting.popleft()
            broken = self._server.broken
            if broken is not None and broken[0] == in_thread:
                self._broken = self._failure(calls.function(broken[1]), broken[2])
            self._end_list(number)
        if self._waiting and self._server.is_lost:
            self._broken = RuntimeError("the thread that issues copies has ended; its error was printed to stderr")
            while self._waiting:
                self._end_list(self._waiting.popleft().number)

    def _end_list(self, number: int) -> None:
        if self._broken is not None:
            self._failures[number] = self._broken
        self._given = number

    def _nap_until(self, is_so: Callable[[], bool]) -> None:
        """Look at what the thread has given, with naps in between, until ``is_so`` returns True."""
        nap = _NAP
        self._look()
        while not is_so():
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP * _NAP)
            self._look()

    def _act(self, action: Action) -> int:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - is_given raises it
            self._raised = error
            return 1
        return 0

    def _failure(self, function: int, error: int) -> Exception:
        raised, self._raised = self._raised, None
        return raised or RuntimeError(f"{self._name_of(function)} returned error {error}")
