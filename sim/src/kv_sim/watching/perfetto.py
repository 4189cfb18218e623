"""``Perfetto``: a history as a Chrome trace, to look at a race in ui.perfetto.dev.

One action takes 1000 µs of virtual time; what happens within it is spread over that time in its order, which is
all that its place means. The engine is sampled at every call of the connector and after every action.

* process *world*: the actions; instants for aborts, resets and the violation.
* process *requests*: a track for each life of a request, with spans of its state.
* process *steps*: a track for each step that may be under way at once (scheduled to processed), and below it one
  for each rank (launched to retired).
* process *copies of rank N*: tracks of copies by stream; one that waits for another has a track beside it.
* process *blocks*: a track for each of the first ``MOST_BLOCKS`` GPU blocks: who holds it, and who wrote it.

Spans are pairs of ``B`` and ``E`` events; on one track they never overlap, so they nest in any viewer.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final, TypeAlias

from kv_sim.actions import Action, Kind
from kv_sim.engine.request import SimRequest
from kv_sim.memory.copies import Copy
from kv_sim.violation import Violation
from kv_sim.watching.log import describe, describe_pairs, describe_state, describe_world
from kv_sim.watching.watch import AT_REST, NotWritten, Tracker, Watcher
from kv_sim.whole_file import whole_file
from kv_sim.world import World

Event: TypeAlias = dict[str, Any]

ACTION_US: Final = 1000
"""Virtual time of one action."""
MOST_BLOCKS: Final = 64
"""Blocks that get a track. Worlds are small; a viewer with more tracks than this is no help."""

WORLD, REQUESTS, STEPS, BLOCKS, COPIES = 1, 2, 3, 4, 10
"""Process ids; copies of rank ``r`` are in ``COPIES + r``."""


class Tracks:
    """Events, and the spans that are open on each track."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.names: list[Event] = []
        self._open: dict[tuple[int, int], str] = {}
        self._processes: set[int] = set()
        self._tracks: set[tuple[int, int]] = set()
        self._start = 0
        self._places = 0
        self._first_of_action = 0

    def name(self, pid: int, process: str, tid: int, track: str) -> None:
        """Give a track its name, once."""
        if pid not in self._processes:
            self._processes.add(pid)
            self._meta(pid, 0, "process_name", {"name": process})
            self._meta(pid, 0, "process_sort_index", {"sort_index": pid})
        if (pid, tid) not in self._tracks:
            self._tracks.add((pid, tid))
            self._meta(pid, tid, "thread_name", {"name": track})
            self._meta(pid, tid, "thread_sort_index", {"sort_index": tid})

    def _meta(self, pid: int, tid: int, name: str, args: dict[str, Any]) -> None:
        self.names.append({"ph": "M", "ts": 0, "pid": pid, "tid": tid, "name": name, "args": args})

    # -- time ----------------------------------------------------------------------------------

    def tick(self) -> None:
        """What comes now is later than what came before, within the same action."""
        self._places += 1

    def end_action(self) -> None:
        """Spread the events of an action over its time, and go on to the next."""
        for event in self.events[self._first_of_action :]:
            event["ts"] = round(self._start + ACTION_US * event["ts"] / (self._places + 1), 3)
        self._start += ACTION_US
        self._places = 0
        self._first_of_action = len(self.events)

    # -- events --------------------------------------------------------------------------------

    def begin(self, pid: int, tid: int, name: str, args: dict[str, Any] | None = None) -> None:
        """Begin a span; one that is open on the track ends."""
        self.end(pid, tid)
        self._open[pid, tid] = name
        self._add("B", pid, tid, name, args)

    def end(self, pid: int, tid: int, args: dict[str, Any] | None = None) -> None:
        """End the open span of a track, if there is one."""
        name = self._open.pop((pid, tid), None)
        if name is not None:
            self._add("E", pid, tid, name, args)

    def is_open(self, pid: int, tid: int) -> bool:
        """Whether a span is open on the track."""
        return (pid, tid) in self._open

    def instant(self, pid: int, tid: int, name: str, args: dict[str, Any] | None = None, scope: str = "t") -> None:
        """Something that happened at one moment. ``scope``: the (t)rack, the (p)rocess or all of it (g)."""
        self._add("i", pid, tid, name, args)
        self.events[-1]["s"] = scope

    def _add(self, kind: str, pid: int, tid: int, name: str, args: dict[str, Any] | None) -> None:
        event: Event = {"ph": kind, "ts": self._places, "pid": pid, "tid": tid, "name": name}
        if args:
            event["args"] = args
        self.events.append(event)

    def end_all(self) -> None:
        """End every span that is still open."""
        for pid, tid in list(self._open):
            self.end(pid, tid, {"open": "at the end of the history"})


class Perfetto(Watcher):
    """Writes the trace of one world to ``file`` when the world has ended."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tracks = Tracks()
        self._tracker = Tracker()
        self._world: World | None = None
        self._lives: dict[str, tuple[SimRequest, int, str]] = {}
        self._lives_of: Counter[str] = Counter()
        self._num_lives = 0
        self._slots: dict[int, int] = {}
        """Step -> which of the tracks of steps under way it has."""
        self._under_way: list[int] = []
        self._copies: dict[tuple[int, int], int] = {}
        self._streams: dict[int, list[str]] = {}
        self._holders: dict[int, str] = {}
        self._writers: dict[tuple[int, int], str] = {}

    # -- what happens --------------------------------------------------------------------------

    def begins(self, world: World) -> None:
        self._world = world
        self._tracks.name(WORLD, "world", 1, "actions")
        self._tracks.instant(WORLD, 1, "world", {"world": describe_world(world.config)})
        slots = world.config.max_concurrent_steps
        for slot in range(slots):
            for rank in range(-1, world.config.world_size):
                track = f"step {slot}" if rank < 0 else f"step {slot}, rank {rank}"
                self._tracks.name(STEPS, "steps", self._step_track(slot, rank), track)
        for block in range(min(world.config.num_blocks, MOST_BLOCKS)):
            self._tracks.name(BLOCKS, "blocks", block + 1, f"block {block}" if block else "block 0 (null)")

    def acts(self, number: int, action: Action) -> None:
        self._tracks.begin(WORLD, 1, describe(action), {"number": number} if number else {"number": "at rest"})
        if action.kind in (Kind.ABORT, Kind.RESET) and number != AT_REST:
            self._tracks.instant(WORLD, 1, describe(action), scope="g")

    def called(self, side: str, method: str, args: tuple[Any, ...], answer: Any) -> None:
        self._tracks.tick()
        if method == "shutdown":
            self._tracks.instant(WORLD, 1, f"{side} shutdown")
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

    # -- sampling ------------------------------------------------------------------------------

    def _sample(self) -> None:
        self._sample_requests()
        self._sample_steps()
        self._sample_copies()
        self._sample_blocks()

    def _sample_requests(self) -> None:
        assert self._world is not None
        scheduler = self._world.engine.scheduler
        for name, (life, track, _) in list(self._lives.items()):
            if scheduler.requests.get(name) is not life:
                self._tracks.end(REQUESTS, track)
                self._tracks.instant(REQUESTS, track, life.status.value)
                del self._lives[name]
        for name, request in scheduler.requests.items():
            if name not in self._lives:
                self._num_lives += 1
                self._lives_of[name] += 1
                again = f", life {self._lives_of[name]}" if self._lives_of[name] > 1 else ""
                self._tracks.name(REQUESTS, "requests", self._num_lives, name + again)
                self._lives[name] = (request, self._num_lives, "")
            _, track, before = self._lives[name]
            state = describe_state(request)
            if state != before:
                tokens = f"{request.num_computed_tokens} of {request.num_tokens} computed"
                self._tracks.begin(REQUESTS, track, state, {"request": name, "tokens": tokens})
                self._lives[name] = (request, track, state)

    def _step_track(self, slot: int, rank: int) -> int:
        assert self._world is not None
        return 1 + slot * (1 + self._world.config.world_size) + 1 + rank

    def _sample_steps(self) -> None:
        assert self._world is not None
        for change in self._tracker.kernels(self._world.engine):
            track = self._step_track(self._slots[change.step], change.rank)
            if change.what == "launches":
                self._tracks.begin(STEPS, track, f"kernels of step {change.step}")
            else:
                self._tracks.end(STEPS, track)
        under_way = {step.number: step for step in self._world.engine.steps}
        for number in [number for number in self._under_way if number not in under_way]:
            self._under_way.remove(number)
            self._tracks.end(STEPS, self._step_track(self._slots[number], -1))
        for number, step in under_way.items():
            if number not in self._under_way:
                taken = {self._slots[other] for other in self._under_way}
                slots = range(self._world.config.max_concurrent_steps)
                slot = self._slots[number] = next(slot for slot in slots if slot not in taken)
                self._under_way.append(number)
                what = {name: f"{count} tokens" for name, count in step.output.num_scheduled_tokens.items()}
                self._tracks.begin(STEPS, self._step_track(slot, -1), f"step {number}", what)

    def _sample_copies(self) -> None:
        assert self._world is not None
        for change in self._tracker.copies(self._world.engine):
            pid, copy, rank = COPIES + change.rank, change.copy, change.rank
            if change.what == "begins":
                self._copies[rank, copy.copy_id] = track = self._free_copy_track(rank, copy)
                what = {"pages": describe_pairs(copy.direction, copy.pairs), "after launch": copy.after_step}
                self._tracks.begin(pid, track, str(copy), {**what, "stream": copy.stream})
            track = self._copies[rank, copy.copy_id]
            if change.what == "ends":
                self._tracks.end(pid, track, {"state": copy.state.value})
            elif change.what != "begins":
                word = "lost" if change.what == "lost" else f"{copy.copied} of {len(copy.pairs)} pages"
                self._tracks.instant(pid, track, word)
            self._tracks.tick()  # a copy that was waited for did all of it between two samples

    def _free_copy_track(self, rank: int, copy: Copy) -> int:
        stream = "streams of their own" if copy.stream.startswith("own ") else copy.stream
        streams = self._streams.setdefault(rank, [])
        for index, name in enumerate(streams):
            if name == stream and not self._tracks.is_open(COPIES + rank, index + 1):
                return index + 1
        streams.append(stream)
        self._tracks.name(COPIES + rank, f"copies of rank {rank}", len(streams), stream)
        return len(streams)

    def _sample_blocks(self) -> None:
        assert self._world is not None
        scheduler, shadow = self._world.engine.scheduler, self._world.engine.shadow
        holders: dict[int, list[str]] = {}
        for name, tables in scheduler.blocks.tables.items():
            for table in tables.groups:
                for block in table:
                    holders.setdefault(block, []).append(name)
        counts = scheduler.blocks.block_pool.ref_counts
        for block in range(1, min(len(counts), MOST_BLOCKS)):
            names = sorted(holders.get(block, ()))
            holder = " ".join(names) if names else "waits to be freed" if counts[block] else ""
            if holder != self._holders.get(block, ""):
                self._holders[block] = holder
                self._tracks.end(BLOCKS, block + 1)
                if holder:
                    self._tracks.begin(BLOCKS, block + 1, holder)
        for rank, written in enumerate(shadow.last_writer):
            for block, writer in written.items():
                if block < MOST_BLOCKS and self._writers.get((rank, block)) != writer:
                    self._writers[rank, block] = writer
                    self._tracks.instant(BLOCKS, block + 1, f"rank {rank}: {writer}")
