"""``Client``: pulls blocks from other workers in threads, one pull at a time in each.

A pull has memory for one frame: each frame is received there and written to its blocks before the next one is
read. A pull may be given up between two frames, and writes nothing after that. It takes its memory only when the
answer begins to arrive, and only a limited number of pulls have memory at a time.
"""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

from kv_p2p import sockets
from kv_p2p.frames import Frame, FrameError, recv_frame, send_frame
from kv_p2p.pulling.metadata import Pull, Source
from kv_p2p.pulling.pages import WorkerPages
from kv_p2p.pulling.tcp.carried import CarriedFrames
from kv_p2p.pulling.tcp.lanes import Lanes
from kv_p2p.pulling.tcp.server import VERSION, frame_memory
from kv_p2p.pulling.tcp.slots import SlotPool
from kv_p2p.pulling.wire import Ended

CONNECT_SECONDS: Final = 5.0
"""How long another worker may be silent; closing may take as long."""
MOST_RECEIVING: Final = 16
"""Pulls that receive blocks at a time, at most: each takes the memory of a frame, or a slot of a carrier."""
MOST_DECLINES: Final = 1000
"""Declines that wait for a worker that doesn't answer, at most. Further ones are dropped, and the holds expire."""

NextFrame = Callable[[], Frame | None]
"""Returns the next frame of blocks, or the other side's refusal; None if it has closed the connection."""


class RefusedError(Exception):
    """The other side refused the request."""


class _UnderWay:
    """A pull in flight. Its attributes are written under the client's lock, and read there where it matters."""

    def __init__(self, pull: Pull) -> None:
        self.pull = pull
        self.socket: socket.socket | None = None
        self.is_writing = False
        self.is_given_up = False


class Client:
    """The pulls of one worker."""

    def __init__(
        self,
        rank: int,
        pages: WorkerPages,
        lock: threading.Lock,
        wake: Callable[[], None],
        silence_seconds: float,
        slots: SlotPool | None = None,
    ) -> None:
        self._slots = slots
        self._rank = rank
        self._pages = pages
        self._ended = Ended()
        self._lock = lock
        self._wake = wake
        self._silence_seconds = silence_seconds
        self._pulls: dict[str, _UnderWay] = {}
        self._lanes = Lanes(f"kv-p2p client {rank}")
        self._receiving = threading.Semaphore(MOST_RECEIVING)

    def take_ended(self) -> Ended:
        """The pulls that ended since the last call. The caller has the lock."""
        taken, self._ended = self._ended, Ended()
        return taken

    def pull(self, pull: Pull) -> None:
        """Begin a pull."""
        under_way = _UnderWay(pull)
        with self._lock:
            self._pulls[pull.request_id] = under_way
        self._lanes.add(pull.source.address, partial(self._run, under_way))

    def give_up(self, request_id: str) -> bool:
        """Stop a pull. False: it is writing blocks now."""
        with self._lock:
            under_way = self._pulls.get(request_id)
            if under_way is None:  # it has just ended, which wasn't reported yet
                self._ended.pulled = [ended for ended in self._ended.pulled if ended != request_id]
                self._ended.failed = [ended for ended in self._ended.failed if ended[0] != request_id]
                return True
            if under_way.is_writing:
                return False
            self._stop(under_way)
            del self._pulls[request_id]
            return True

    def _stop(self, under_way: _UnderWay) -> None:
        under_way.is_given_up = True
        if under_way.socket is not None:
            with suppress(OSError):  # it may have ended by itself
                under_way.socket.shutdown(socket.SHUT_RDWR)

    def _run(self, under_way: _UnderWay) -> None:
        reason = None
        try:
            if not under_way.is_given_up:
                self._receive_all(under_way)
        except Exception as error:  # noqa: BLE001 - the load has failed, whatever the reason, and is reported
            reason = f"{type(error).__name__}: {error}" if not isinstance(error, RefusedError) else str(error)
        with self._lock:
            if under_way.is_given_up:
                return
            request_id = under_way.pull.request_id
            del self._pulls[request_id]
            if reason is None:
                self._ended.pulled.append(request_id)
            else:
                self._ended.failed.append((request_id, reason))
        self._wake()

    def _receive_all(self, under_way: _UnderWay) -> None:
        pull = under_way.pull
        asked = {
            "op": "pull",
            "version": VERSION,
            "hold": pull.source.hold_id,
            "digest": pull.source.digest,
            "layout": self._pages.layout,
            "places": [[part.first, len(part.block_ids)] for part in pull.parts],
            "engine": pull.source.address.engine_id,
        }
        if self._slots is not None:
            asked["carrier"] = self._slots.carrier.name
        with self._connect(pull.source) as connection:
            if not self._keep(under_way, connection):
                return
            send_frame(connection, asked)
            connection.recv(1, socket.MSG_PEEK)  # wait for the answer's begin before taking memory
            with self._receiving, self._frames(connection, pull) as next_frame:
                for group, part in enumerate(pull.parts):
                    here = part.block_ids
                    while here:
                        count = self._receive(under_way, next_frame, group, here)
                        if not count:
                            return
                        here = here[count:]
            send_frame(connection, {"op": "done"})

    @contextmanager
    def _frames(self, connection: socket.socket, pull: Pull) -> Iterator[NextFrame]:
        """The function that reads the next frame, each into the same memory."""
        if self._slots is None:
            memory = frame_memory(self._pages, [len(part.block_ids) for part in pull.parts])
            yield lambda: recv_frame(connection, len(memory), memory)
            return
        with self._slots.take(1) as [slot]:
            yield CarriedFrames(connection, self._slots, slot).next

    def _connect(self, source: Source) -> socket.socket:
        host, port = source.address.host, source.address.port + self._rank
        connection = sockets.connect(host, port, min(CONNECT_SECONDS, self._silence_seconds))
        connection.settimeout(self._silence_seconds)
        return connection

    def _keep(self, under_way: _UnderWay, connection: socket.socket) -> bool:
        """Remember the connection, so that another thread can break it. False: the pull was given up before."""
        with self._lock:
            under_way.socket = connection
            return not under_way.is_given_up

    def _receive(self, under_way: _UnderWay, next_frame: NextFrame, group: int, here: Sequence[int]) -> int:
        """Write one frame to the next blocks of ``here``; returns how many. 0: the pull was given up."""
        pages = self._pages.by_group[group]
        frame = next_frame()
        if frame is None:
            raise FrameError(f"the connection ended with {len(here)} blocks of group {group} to come")
        if frame.header.get("status") != "blocks":
            raise RefusedError(str(frame.header.get("reason")))
        count = _count_of(frame.header, group, len(here))
        with self._lock:
            if under_way.is_given_up:
                return 0
            under_way.is_writing = True
        parts = frame.parts if self._slots is None else pages.split(count, frame.parts[0])
        pages.scatter(here[:count], parts)
        with self._lock:
            under_way.is_writing = False  # also if writing raised: then the pull ends
            self._ended.pulled_bytes += count * pages.bytes_per_block
        return count

    def decline(self, source: Source) -> None:
        """Tell the producer that its hold isn't wanted."""
        if self._lanes.length(source.address) < MOST_DECLINES:
            self._lanes.add(source.address, partial(self._decline, source))

    def _decline(self, source: Source) -> None:
        with suppress(OSError), self._connect(source) as connection:  # if it fails, the hold ends by its time
            # ``close`` waits for this, so it has a limit even if a byte arrives now and then.
            stream = sockets.Until(connection, min(CONNECT_SECONDS, self._silence_seconds))
            declined = {"op": "decline", "hold": source.hold_id, "digest": source.digest}
            send_frame(stream, {**declined, "engine": source.address.engine_id})
            recv_frame(stream, 0)

    def close(self) -> None:
        """Give up all pulls. Nobody writes a block after that."""
        self._lanes.stop()  # first, or a thread whose pull is stopped would begin the next one
        with self._lock:
            for under_way in self._pulls.values():
                self._stop(under_way)
            self._pulls.clear()
        self._lanes.join()

    def check(self) -> None:
        """Recount the lanes."""
        self._lanes.check()


def _count_of(header: dict[str, Any], group: int, most: int) -> int:
    count = header.get("count")
    is_right = type(count) is int and 0 < count <= most and header.get("group") == group
    if not is_right:
        what = f"{count!r} blocks of group {header.get('group')!r}"
        raise FrameError(f"a frame says that it has {what}; to come are {most} of group {group}")
    return int(count or 0)
