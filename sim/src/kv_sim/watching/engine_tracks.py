"""``EngineTracks``: draws one engine: its requests, its steps, its copies and its blocks."""

from collections import Counter
from typing import Final

from kv_sim.engine.request import SimRequest
from kv_sim.memory.copy import Copy
from kv_sim.site import Site
from kv_sim.watching.describe import describe_pairs, describe_state
from kv_sim.watching.tracks import Tracks
from kv_sim.watching.watch import Tracker

MOST_BLOCKS: Final = 64
"""Blocks that get a track. Worlds are small, and a viewer with more tracks is no help."""

REQUESTS, STEPS, BLOCKS, COPIES = 2, 3, 4, 10
"""Process ids; copies of rank ``r`` are in ``COPIES + r``."""
ENGINE: Final = 1000
"""Added to the process ids of the second engine."""


class EngineTracks:
    """The tracks of one engine, and their last state."""

    def __init__(self, site: Site, tracks: Tracks) -> None:
        self._engine = site.engine
        self._words = site.place.words
        self._pid = ENGINE * site.place.number
        self._tracks = tracks
        self._tracker = Tracker()
        self._lives: dict[str, tuple[SimRequest, int, str]] = {}
        self._lives_of: Counter[str] = Counter()
        self._num_lives = 0
        self._slots: dict[int, int] = {}
        """Step under way -> its track."""
        self._under_way: list[int] = []
        self._copies: dict[tuple[int, int], int] = {}
        self._streams: dict[int, list[str]] = {}
        self._holders: dict[int, str] = {}
        self._writers: dict[tuple[int, int], str] = {}
        self._name_tracks()

    def _name_tracks(self) -> None:
        config, words = self._engine.config, self._words
        for slot in range(config.max_concurrent_steps):
            for rank in range(-1, config.world_size):
                track = f"step {slot}" if rank < 0 else f"step {slot}, rank {rank}"
                self._tracks.name(self._pid + STEPS, f"{words}steps", self._step_track(slot, rank), track)
        for block in range(min(config.num_blocks, MOST_BLOCKS)):
            name = f"block {block}" if block else "block 0 (null)"
            self._tracks.name(self._pid + BLOCKS, f"{words}blocks", block + 1, name)

    def sample(self) -> None:
        """Draw changes since the last call."""
        self._sample_requests()
        self._sample_steps()
        self._sample_copies()
        self._sample_blocks()

    def _sample_requests(self) -> None:
        scheduler = self._engine.scheduler
        for name, (life, track, _) in list(self._lives.items()):
            if scheduler.requests.get(name) is not life:
                self._tracks.end(self._pid + REQUESTS, track)
                self._tracks.instant(self._pid + REQUESTS, track, life.status.value)
                del self._lives[name]
        for name, request in scheduler.requests.items():
            if name not in self._lives:
                self._num_lives += 1
                self._lives_of[name] += 1
                again = f", life {self._lives_of[name]}" if self._lives_of[name] > 1 else ""
                self._tracks.name(self._pid + REQUESTS, self._words + "requests", self._num_lives, name + again)
                self._lives[name] = (request, self._num_lives, "")
            _, track, before = self._lives[name]
            state = describe_state(request)
            if state != before:
                tokens = f"{request.num_computed_tokens} of {request.num_tokens} computed"
                self._tracks.begin(self._pid + REQUESTS, track, state, {"request": name, "tokens": tokens})
                self._lives[name] = (request, track, state)

    def _step_track(self, slot: int, rank: int) -> int:
        return 1 + slot * (1 + self._engine.config.world_size) + 1 + rank

    def _sample_steps(self) -> None:
        for change in self._tracker.kernels(self._engine):
            track = self._step_track(self._slots[change.step], change.rank)
            if change.what == "launches":
                self._tracks.begin(self._pid + STEPS, track, f"kernels of step {change.step}")
            else:
                self._tracks.end(self._pid + STEPS, track)
        under_way = {step.number: step for step in self._engine.steps}
        for number in [number for number in self._under_way if number not in under_way]:
            self._under_way.remove(number)
            self._tracks.end(self._pid + STEPS, self._step_track(self._slots[number], -1))
        for number, step in under_way.items():
            if number not in self._under_way:
                taken = {self._slots[other] for other in self._under_way}
                slots = range(self._engine.config.max_concurrent_steps)
                slot = self._slots[number] = next(slot for slot in slots if slot not in taken)
                self._under_way.append(number)
                what = {name: f"{count} tokens" for name, count in step.output.num_scheduled_tokens.items()}
                self._tracks.begin(self._pid + STEPS, self._step_track(slot, -1), f"step {number}", what)

    def _sample_copies(self) -> None:
        for change in self._tracker.copies(self._engine):
            pid, copy, rank = self._pid + COPIES + change.rank, change.copy, change.rank
            if change.what == "begins":
                self._copies[rank, copy.copy_id] = track = self._free_copy_track(rank, copy)
                what = {"pages": describe_pairs(copy.direction, copy.pairs), "after launch": copy.after_step}
                self._tracks.begin(pid, track, str(copy), {**what, "stream": copy.stream})
            track = self._copies[rank, copy.copy_id]
            if change.what == "ends":
                self._tracks.end(pid, track, {"state": copy.state.value})
            elif change.what != "begins":
                word = "lost" if change.what == "lost" else f"{copy.copied} of {copy.size} pages"
                self._tracks.instant(pid, track, word)
            self._tracks.tick()  # a copy that was waited for did all of it between two samples

    def _free_copy_track(self, rank: int, copy: Copy) -> int:
        stream = "streams of their own" if copy.stream.startswith("own ") else copy.stream
        streams = self._streams.setdefault(rank, [])
        for index, name in enumerate(streams):
            if name == stream and not self._tracks.is_open(self._pid + COPIES + rank, index + 1):
                return index + 1
        streams.append(stream)
        self._tracks.name(self._pid + COPIES + rank, f"{self._words}copies of rank {rank}", len(streams), stream)
        return len(streams)

    def _sample_blocks(self) -> None:
        scheduler, shadow = self._engine.scheduler, self._engine.shadow
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
                self._tracks.end(self._pid + BLOCKS, block + 1)
                if holder:
                    self._tracks.begin(self._pid + BLOCKS, block + 1, holder)
        for rank, written in enumerate(shadow.last_writer):
            for block, writer in written.items():
                if block < MOST_BLOCKS and self._writers.get((rank, block)) != writer:
                    self._writers[rank, block] = writer
                    self._tracks.instant(self._pid + BLOCKS, block + 1, f"rank {rank}: {writer}")
