"""The end of an engine: shutdown must not crash (NO-CRASH), and must leave nothing behind (CONSERVATION).

Each object of the connector is shut down once, the workers' before the scheduler's, whatever the others raise.
Then no thread may be left that keeps a server's process from ending: a non-daemon thread begun in this history.
Threads of ``concurrent.futures`` keep no process, since the interpreter wakes them when it ends.

Nothing may be left open either (``left_open``). A library may open something at its first use and keep it, but
only once in a process. So if something is left open, the same history is run again, and only what that leaves
open is reported.
"""

import gc
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, TypeAlias

from kv_sim.checkers.left_open import Holdings, Segment
from kv_sim.engine.engine import Engine
from kv_sim.guard import HistoryEnds
from kv_sim.violation import Invariant, LeftBehind, Referee, TestbedError, Violation

PATIENCE_SECONDS: Final = 1.0
"""How long threads and processes may take to end, all together."""
LOOKS: Final = 50
"""How often to look, within that time, whether they have ended."""
COLLECTING_SECONDS: Final = 10.0
"""A limit for garbage collection, which takes far less unless some object waits for ever when it is closed."""


Again: TypeAlias = Callable[[], Counter[str] | None]
"""What the same history leaves open when it is run again; None: it can't be run again."""


class Ending:
    """The end of a history that begins now."""

    _left_before: ClassVar[bool] = False
    """Whether an earlier history left something open. Its objects are unreachable by now, and get collected."""

    def __init__(self) -> None:
        if Ending._left_before:
            Ending._left_before = False
            _close_what_nobody_can_reach()
        self._threads_before = threading.enumerate()
        self._before = Holdings.now()
        self._made: set[Segment] = set()
        """Shared memory that this process had at the end of the history."""

    def judge(self, engines: Sequence[Engine], referee: Referee, again: Again) -> None:
        """Shut everything down, and judge what is left."""
        self._made = Holdings.now().segments_since(self._before)
        raised = []
        for guard in _guards(engines):
            try:
                guard.shutdown()
            except (Violation, HistoryEnds) as found:
                raised.append(found)
        Ending._left_before = bool(Holdings.now().since(self._before, self._made))
        if raised:
            raise raised[0]
        if Invariant.CONSERVATION not in referee.switched_off:
            self._check_threads(referee)
            self._check_left_open(referee, again)

    def break_off(self, engines: Sequence[Engine]) -> None:
        """Shut everything down after a violation was found; only that one is reported."""
        self._made = Holdings.now().segments_since(self._before)
        for guard in _guards(engines):
            with suppress(Violation, HistoryEnds, TestbedError):
                guard.shutdown()
        if Holdings.now().since(self._before, self._made):
            Ending._left_before = True
            _close_what_nobody_can_reach()

    def left_open(self, patience: float) -> Counter[str]:
        """What was opened in this history and is still open, after threads and processes had time to end.

        They get this part of the usual time.
        """
        left = Holdings.now().since(self._before, self._made)
        if left:
            _close_what_nobody_can_reach()
            for _ in range(round(LOOKS * patience)):
                # In this order: a thread that ends after the first look has closed its files before the second.
                goes_on = self._new_threads() or Holdings.now().children_since(self._before)
                left = Holdings.now().since(self._before, self._made)
                if not left or not goes_on:
                    break
                time.sleep(PATIENCE_SECONDS / LOOKS)
        return left

    def _check_left_open(self, referee: Referee, again: Again) -> None:
        first = self.left_open(referee.patience)
        second = again() if first else None
        left = first if second is None else second
        if left:
            names = ", ".join(
                f"{name} ({count} times)" if count > 1 else name for name, count in sorted(left.items())
            )
            said = f"every side was shut down, but these are still open: {names}"
            referee.fail(Invariant.CONSERVATION, said, LeftBehind)

    def _new_threads(self) -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread not in self._threads_before]

    def _check_threads(self, referee: Referee) -> None:
        left = [thread for thread in threading.enumerate() if self._should_end(thread)]
        until = time.monotonic() + PATIENCE_SECONDS * referee.patience
        for thread in left:
            thread.join(max(0.0, until - time.monotonic()))
        names = [re.sub(r"\d+", "…", thread.name) for thread in left if thread.is_alive()]
        if names:
            referee.fail(
                Invariant.CONSERVATION,
                "every side was shut down, but these threads still run, and are not daemons: "
                f"{', '.join(sorted(names))}",
                LeftBehind,
            )

    def _should_end(self, thread: threading.Thread) -> bool:
        pools = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", ())
        return not thread.daemon and thread not in self._threads_before and thread not in pools


def _guards(engines: Sequence[Engine]) -> Iterator[Any]:
    for engine in engines:
        yield from engine.guards


def _close_what_nobody_can_reach() -> None:
    """Collect garbage in a thread: closing an object may block for ever, as a context of used sockets does."""
    collector = threading.Thread(target=gc.collect, daemon=True)
    collector.start()
    collector.join(COLLECTING_SECONDS)
