"""Gives a lane's streams what was noted for them, in order, while whoever noted it goes on.

The driver takes half a microsecond and more for each copy of a batch, so a job of some hundred megabytes keeps a
thread for milliseconds. If whoever submits the job does this, it is the thread that launches the model's own work.
And two directions at once are more than one thread can give, where copies are small. So calls of the driver are
noted, and each lane has a giver, with a thread that makes them and never waits for the interpreter.

**Theory of operation.** What is noted comes into a list, until ``go``. Lists are numbered, and given in their
order. If no other is under way, ``go`` gives a short one itself, since to wake a thread takes as long as some
dozens of copies. All others are published to the thread, which gives them. What Python itself has to do is a call
of Python, for which the thread must have the interpreter after all.

When an entry fails, nothing more is given: what comes after it in its job would be wrong, and where the next job
begins the giver doesn't know. All lists from that one on count as failed, until ``drain`` has found the lane's
streams idle.

**Invariant.** Lists up to ``_given`` were given, or have failed; ``_waiting`` has those after it that have gone.
"""

import ctypes
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple

from kv_offload_cpu.copy.cuda.call_loop import MOST_LISTS, CallLoop, Calls, Server

AT_ONCE: Final = 64
"""A list of so many copies at most is given by ``go`` itself; a longer one by the thread."""

_NAP: Final = 20e-6
"""Seconds between two looks at what was given. It doubles until it is so many times as long."""
_LONGEST_NAP: Final = 16

_CALL_OF_PYTHON = ctypes.CFUNCTYPE(ctypes.c_int)

Action = Callable[[], object]


class _List(NamedTuple):
    number: int
    in_thread: int
    """Its place among those that the thread gives, from 0; the thread counts by it."""
    calls: Calls
    kept: list[Any]


class Giver:
    """Gives calls of the driver in the order in which they were noted.

    A thread must be within ``on_device`` to make them; ``name_of`` has the name of the function at an address. All
    methods are for one thread, the one that submits jobs.
    """

    def __init__(
        self,
        loop: CallLoop,
        on_device: Callable[[], AbstractContextManager[object]],
        name_of: Callable[[int], str],
        name: str,
    ) -> None:
        self.number = 1
        """Of the list that is being noted: what says later whether all of it was given."""
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
        """Note a call of the function at an address, worth so many copies. ``kept`` lives until it was made."""
        self._calls.add(function, arguments)
        self._kept += kept
        self._copies += copies

    def note_action(self, action: Action, copies: int = 1) -> None:
        """Note a call of Python's, which needs the interpreter; it is worth so many copies."""
        call = _CALL_OF_PYTHON(lambda: self._act(action))
        self.note(ctypes.cast(call, ctypes.c_void_p).value or 0, (), call, copies=copies)

    def go(self) -> None:
        """Give what was noted: at once, if that is little and nothing is under way, else by the thread."""
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
        """Whether all of a list was given; raises the error that it failed with."""
        if number > self._given:
            self._look()
            if number > self._given:
                return False
        if self._failures and (failure := self._failures.get(number)) is not None:
            raise failure
        return True

    def wait_for(self, number: int) -> None:
        """Return when all of a list was given; raises the error that it failed with."""
        assert number < self.number, f"list {number} is still being noted"
        self._nap_until(lambda: self._given >= number)
        self.is_given(number)

    def drain(self, wait: Callable[[], None]) -> None:
        """Give all that was noted, and call ``wait``, which returns when the lane's streams are idle.

        Then nothing is left of a job that failed, so lists after this one may be given again.
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
        """Look at what the thread has given, with naps between, until something is so."""
        nap = _NAP
        self._look()
        while not is_so():
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP * _NAP)
            self._look()

    def _act(self, action: Action) -> int:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - whoever asks for the list hears of it
            self._raised = error
            return 1
        return 0

    def _failure(self, function: int, error: int) -> Exception:
        raised, self._raised = self._raised, None
        return raised or RuntimeError(f"{self._name_of(function)} returned error {error}")
