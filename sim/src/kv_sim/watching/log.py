"""``Log``: a history as text for people: numbered actions, and their effects.

Under each action stand, in order, the calls of the connector with brief arguments and answers, the progress of
copies, and at the end the requests that changed. Calls that say nothing are left out: per-layer hooks, polls, and
questions with empty answers. The text depends on the history alone.

      7 step
        scheduler   get_num_new_matched_tokens r2 0 -> 8 tokens, asynchronous
        worker 0    start_load_kv
        rank 0      load copy 1 begins: host 5 → block 3, host 4 → block 2
        engine      r2 waiting → waiting for a load, 8/9 tokens, blocks [2 3]

In a world with two engines each line names its engine.
"""

from collections.abc import Callable
from typing import Final

from kv_sim.actions import Action
from kv_sim.site import Call
from kv_sim.violation import Violation
from kv_sim.watching.describe import describe, describe_world
from kv_sim.watching.engine_lines import EngineLines
from kv_sim.watching.watch import AT_REST, Watcher
from kv_sim.world import World

REST_HEADING: Final = "rest all"
END_HEADING: Final = " end"
QUIET_HEADINGS: Final = ("rest steps come back", REST_HEADING, END_HEADING)


class Log(Watcher):
    """Writes the log line by line to ``write``."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._engines: list[EngineLines] = []
        self._lines: list[str] = []
        self._has_ended = False

    # -- what happens --------------------------------------------------------------------------

    def begins(self, world: World) -> None:
        self._engines = [EngineLines(site) for site in world.sites]
        self._write(f"connector {world.subject.kv_connector}")
        self._write(f"world     {describe_world(world.config)}")

    def acts(self, number: int, action: Action) -> None:
        self._flush("rest steps come back")

    def called(self, call: Call) -> None:
        if call.method == "shutdown" and not self._has_ended:
            self._flush(REST_HEADING)
            self._has_ended = True
        self._lines += self._engines[call.engine].called(call)

    def acted(self, number: int, action: Action, *, legal: bool) -> None:
        if not legal:
            if number != AT_REST:
                self._write(f"{number:4} {describe(action)}  (not legal here: skipped)")
            return
        self._look()
        self._flush(f"{'rest' if number == AT_REST else number:>4} {describe(action)}")

    def ends(self, violation: Violation | None) -> None:
        self._look()
        self._flush(END_HEADING if self._has_ended else REST_HEADING)
        self._write(f"FAIL      {violation}" if violation else "at rest: nothing is wrong")

    # -- lines ---------------------------------------------------------------------------------

    def _flush(self, heading: str) -> None:
        """Write the collected lines below a heading; a heading outside of actions is left out if it has none."""
        lines, self._lines = self._lines, []
        if heading in QUIET_HEADINGS and not lines:
            return
        self._write(heading.rstrip())
        for line in lines:
            self._write(line)

    def _look(self) -> None:
        for engine in self._engines:
            self._lines += engine.look()
