"""What must hold of the end of an engine: NO-CRASH and CONSERVATION are judged.

Each object of the connector is shut down once, the workers' before the scheduler's, whatever the others raise.
Then no thread is left that would keep a server's process from ending: one that began in this history and is no
daemon. Those of ``concurrent.futures`` keep nobody, since the interpreter wakes them when it ends.
"""

import re
import sys
import threading
from contextlib import suppress
from typing import Final

from kv_sim.engine.engine import Engine
from kv_sim.guard import HistoryEnds
from kv_sim.violation import Invariant, TestbedError, Violation

PATIENCE_SECONDS: Final = 1.0
"""A thread that was told to end may take so long for it."""


class Ending:
    """The end of a history that begins now."""

    def __init__(self) -> None:
        self._threads_before = threading.enumerate()

    def judge(self, engine: Engine) -> None:
        """Shut everything down, and judge what is left."""
        raised = []
        for guard in engine.guards:
            try:
                guard.shutdown()
            except (Violation, HistoryEnds) as found:
                raised.append(found)
        if raised:
            raise raised[0]
        self._check_threads(engine)

    def break_off(self, engine: Engine) -> None:
        """Shut everything down after something else was found, which is what is told."""
        for guard in engine.guards:
            with suppress(Violation, HistoryEnds, TestbedError):
                guard.shutdown()

    def _check_threads(self, engine: Engine) -> None:
        if Invariant.CONSERVATION in engine.referee.silent:
            return
        left = [thread for thread in threading.enumerate() if self._should_end(thread)]
        for thread in left:
            thread.join(PATIENCE_SECONDS)
        names = [re.sub(r"\d+", "…", thread.name) for thread in left if thread.is_alive()]
        if names:
            engine.referee.fail(
                Invariant.CONSERVATION,
                f"every side was shut down, and threads still run that are no daemons: {', '.join(sorted(names))}",
            )

    def _should_end(self, thread: threading.Thread) -> bool:
        pools = getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", ())
        return not thread.daemon and thread not in self._threads_before and thread not in pools
