"""``Perfetto``: a history as a Chrome trace, to look at a race in ui.perfetto.dev.

One action takes 1000 µs of virtual time; the events within it are spread over that time, so only their order has a
meaning. The engine is sampled at every call of the connector and after every action.

* process *world*: the actions; instants for aborts, resets, pauses and the violation. * process *requests*: a
track for each life of a request, with spans of its state. * process *steps*: a track for each step that may be
under way at once (scheduled to processed), and below it one for each rank (launched to retired). * process *copies
of rank N*: tracks of copies by stream; a copy that waits for another has a track beside it. * process *blocks*: a
track for each of the first ``MOST_BLOCKS`` GPU blocks: which request has it, and who wrote it.

In a world with two engines each has these processes, except *world*.

Spans are pairs of ``B`` and ``E`` events; on one track they never overlap, so they nest in any viewer.
"""

import json
from pathlib import Path
from typing import Final

from kv_sim.actions import Action, Kind
from kv_sim.site import Call
from kv_sim.violation import Violation
from kv_sim.watching.describe import describe, describe_world
from kv_sim.watching.engine_tracks import EngineTracks
from kv_sim.watching.tracks import Tracks
from kv_sim.watching.watch import AT_REST, NotWritten, Watcher
from kv_sim.whole_file import whole_file
from kv_sim.world import World

WORLD: Final = 1
"""The process of actions; those of engines are in ``engine_tracks``."""
MARKED: Final = (Kind.ABORT, Kind.RESET, Kind.PAUSE, Kind.SLEEP, Kind.WAKE)
"""Actions with a mark across all tracks."""


class Perfetto(Watcher):
    """Writes the trace of one world to ``file`` when the world has ended."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tracks = Tracks()
        self._engines: list[EngineTracks] = []
        self._words: list[str] = []
        """By engine: the prefix of its names."""

    # -- what happens --------------------------------------------------------------------------

    def begins(self, world: World) -> None:
        self._tracks.name(WORLD, "world", 1, "actions")
        self._tracks.instant(WORLD, 1, "world", {"world": describe_world(world.config)})
        self._engines = [EngineTracks(site, self._tracks) for site in world.sites]
        self._words = [site.place.words for site in world.sites]

    def acts(self, number: int, action: Action) -> None:
        self._tracks.begin(WORLD, 1, describe(action), {"number": "at rest" if number == AT_REST else number})
        if action.kind in MARKED and number != AT_REST:
            self._tracks.instant(WORLD, 1, describe(action), scope="g")

    def called(self, call: Call) -> None:
        self._tracks.tick()
        if call.method == "shutdown":
            self._tracks.instant(WORLD, 1, f"{self._words[call.engine]}{call.side} shutdown")
        self._sample()

    def acted(self, number: int, action: Action, *, legal: bool) -> None:
        self._tracks.tick()
        self._sample()
        self._tracks.tick()
        self._tracks.end(WORLD, 1, {"skipped": "not legal here"} if not legal else dict(action.args))
        self._tracks.end_action()

    def ends(self, violation: Violation | None) -> None:
        self._sample()
        if violation is not None:
            self._tracks.instant(WORLD, 1, str(violation.invariant), {"violation": str(violation)}, scope="g")
        self._tracks.end_all()
        self._tracks.end_action()
        trace = {"traceEvents": self._tracks.names + self._tracks.events, "displayTimeUnit": "ms"}
        try:
            with whole_file(self._file) as file:
                file.write(f"{json.dumps(trace)}\n".encode())
        except OSError as error:
            raise NotWritten(f"{self._file}: the trace was not written: {error.strerror or error}") from error

    def _sample(self) -> None:
        for engine in self._engines:
            engine.sample()
