"""``Server``: lets other workers read the blocks held here. One thread accepts, and one serves each client.

A client may come with a ticket of which this worker will hear with its next step: its thread waits for the hold.

Anybody who reaches the port may connect, and a client may be slow, or hang. So everything has a limit: the time
until a client sends its request, the time for each frame, the size of a request, the number of clients that are
served at once, and of those that are sent blocks. Further clients wait. If there are too many clients that have
not sent a request, the oldest of these is dropped; otherwise clients that never ask would keep out all others.
When the time of a hold is over, reading it ends within the time of one frame.
"""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final

from kv_api import ConfigError
from kv_p2p import sockets
from kv_p2p.frames import recv_frame, send_frame
from kv_p2p.log import warn
from kv_p2p.pulling.carrier import TCP
from kv_p2p.pulling.pages import CachePages, WorkerPages
from kv_p2p.pulling.tcp.carried import SAID_BYTES, Batch, send_carried
from kv_p2p.pulling.tcp.holds import HoldTable
from kv_p2p.pulling.tcp.slots import SlotPool
from kv_p2p.sockets import Until

VERSION: Final = 2
FRAME_BYTES: Final = 8 << 20
"""About how many bytes of blocks are in the memory of either side at once, for each pull."""
PATIENCE_SECONDS: Final = 10.0
"""How long a client waits for a hold that is to come, at most: this worker is told of it with its next step."""
PAUSE_SECONDS: Final = 1.0
"""Seconds before connections are accepted again after one failed."""
ASK_SECONDS: Final = 5.0
"""How long a client may take to send its request; our own clients send it at once."""
ASKED_BYTES: Final = 1 << 20
"""Bytes of a request, at most. Most of them are the layout, some tens of bytes for each layer."""
MOST_CLIENTS: Final = 256
"""Clients at a time, at most: each has a thread, and a file descriptor, of which a process may have 1,024."""
MOST_READERS: Final = 64
"""Clients that are sent blocks at a time, at most: each takes the memory of a frame, or two slots of a carrier."""


def blocks_per_frame(pages: CachePages) -> int:
    """How many blocks of one KV cache group one frame has."""
    return max(1, FRAME_BYTES // max(1, pages.bytes_per_block))


def frame_memory(pages: WorkerPages, counts: Sequence[int]) -> memoryview:
    """Memory for any frame, if ``counts`` blocks of each group are sent."""
    sizes = [
        min(count, blocks_per_frame(of_group)) * of_group.bytes_per_block
        for of_group, count in zip(pages.by_group, counts, strict=True)
    ]
    return memoryview(bytearray(max(sizes)))


def slot_bytes(pages: WorkerPages) -> int:
    """Bytes that are enough for any frame."""
    return max(blocks_per_frame(of_group) * of_group.bytes_per_block for of_group in pages.by_group)


class Server:
    """Listens at one address until it is closed."""

    def __init__(
        self,
        address: tuple[str, int],
        pages: WorkerPages,
        holds: HoldTable,
        changed: threading.Condition,
        wake: Callable[[], None],
        silence_seconds: float,
        slots: SlotPool | None = None,
        engine_id: str | None = None,
    ) -> None:
        """``changed`` has the lock of ``holds``, and is notified of new holds. ``slots`` are a carrier's.

        ``engine_id`` is the name of this engine in its tickets.
        """
        self._engine_id = engine_id
        self._pages = pages
        self._holds = holds
        self._changed = changed
        self._wake = wake
        self._silence_seconds = silence_seconds
        self._slots = slots
        self._patience_seconds = min(PATIENCE_SECONDS, silence_seconds / 2)  # less than the client's own patience
        self._clients: set[socket.socket] = set()
        self._silent: dict[socket.socket, None] = {}
        """The clients that have not sent their request yet, the oldest first."""
        self._readers = 0
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        self._listener = _listen(address)
        self.port: int = self._listener.getsockname()[1]
        try:
            self._start(self._accept)
        except BaseException:
            self._listener.close()
            raise

    def _start(self, run: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=run, args=arguments, name=f"kv-p2p server {self.port}", daemon=True)
        self._threads = [thread, *(other for other in self._threads if other.is_alive())]
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError as error:
                if self._closed.is_set():
                    return
                if not isinstance(error, TimeoutError):  # too many files are open, or a client was gone at once
                    warn("accepting connections at %s failed: %s", self.port, error)
                    self._closed.wait(PAUSE_SECONDS)
                continue
            with self._changed:
                self._wait_for_place()
                if self._closed.is_set():
                    client.close()
                    return
                with suppress(OSError):  # it may be gone already, which its thread will notice
                    sockets.send_at_once(client)
                self._clients.add(client)
                self._silent[client] = None
                self._start(self._converse, client)

    def _wait_for_place(self) -> None:
        """Wait until one more client may be accepted. The caller has the lock, which is released meanwhile."""
        if len(self._clients) >= MOST_CLIENTS and self._silent:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            with suppress(OSError):  # it may be gone
                oldest.shutdown(socket.SHUT_RDWR)
        self._changed.wait_for(lambda: self._closed.is_set() or len(self._clients) < MOST_CLIENTS)

    def _converse(self, client: socket.socket) -> None:
        try:
            with client:
                asked = recv_frame(self._soon(client, ASK_SECONDS), 0, max_header=ASKED_BYTES)
                with self._changed:
                    self._silent.pop(client, None)
                if asked is not None:
                    self._answer(client, asked.header)
        except OSError as error:  # the client reports the failed pull
            if not self._closed.is_set():
                warn("a client of %s broke off: %s", self.port, error)
        finally:
            with self._changed:
                self._clients.discard(client)
                self._silent.pop(client, None)
                self._changed.notify_all()
            self._wake()

    def _soon(self, client: socket.socket, most_seconds: float = inf) -> Until:
        """The connection with the time limit of one frame, after which the client counts as dead."""
        return Until(client, min(most_seconds, self._silence_seconds))

    def _answer(self, client: socket.socket, asked: dict[str, Any]) -> None:
        hold_id, digest = str(asked.get("hold")), str(asked.get("digest"))
        if asked.get("op") == "decline":
            with self._changed:
                if not self._is_of_another(asked):
                    self._wait_for(hold_id)
                self._holds.decline(hold_id, digest)
            send_frame(self._soon(client), {"status": "declined"})
            return
        blocks = self._find(asked, hold_id, digest)
        if isinstance(blocks, str):
            send_frame(self._soon(client), {"status": "refused", "reason": blocks})
            return
        has_all = False
        try:
            has_all = self._send(client, hold_id, blocks, is_carried="carrier" in asked)
        finally:
            with self._changed:
                self._holds.end_read(hold_id, has_all=has_all)
                self._readers -= 1  # `_converse` wakes who waits for this place

    def _find(self, asked: dict[str, Any], hold_id: str, digest: str) -> list[tuple[int, ...]] | str:
        """Begin to read the requested blocks; returns those of each group, or the reason for a refusal."""
        if asked.get("op") != "pull":
            return f"unknown operation {asked.get('op')!r}; known: decline, pull"
        if asked.get("version") != VERSION:
            return f"the protocol here has version {VERSION}, the request has {asked.get('version')!r}"
        if asked.get("layout") != self._pages.layout:
            return "the KV caches of the two workers differ in the groups, names, types or sizes of their layers"
        here = TCP if self._slots is None else self._slots.carrier.name
        if asked.get("carrier", here) != here:
            return f"the carrier here is {here!r}, the request names {asked['carrier']!r}"
        places = _read_places(asked.get("places"))
        if isinstance(places, str):
            return places
        with self._changed:
            if self._is_of_another(asked) and self._holds.is_to_come(hold_id):
                return (
                    f"hold {hold_id!r} is of engine {asked['engine']!r}, but this is engine {self._engine_id!r}: "
                    "the other one has ended, or has another address"
                )
            if not self._wait_for(hold_id):
                return (
                    f"this worker did not learn of hold {hold_id!r} within {self._patience_seconds:g} seconds: "
                    "its engine hangs, or the hold is of an earlier engine at this address"
                )
            if not self._changed.wait_for(self._has_room, self._silence_seconds):
                return f"this worker is sending blocks to {MOST_READERS} others, and none of these pulls has ended"
            blocks = self._holds.begin_read(hold_id, digest, places)
            self._readers += not isinstance(blocks, str)
            return blocks

    def _has_room(self) -> bool:
        """Whether one more client may be sent blocks."""
        return self._closed.is_set() or self._readers < MOST_READERS

    def _is_of_another(self, asked: dict[str, Any]) -> bool:
        """Whether the ticket names another engine, of whose holds this worker never learns."""
        named = asked.get("engine")
        return named is not None and self._engine_id is not None and named != self._engine_id

    def _wait_for(self, hold_id: str) -> bool:
        """Wait until this worker learns of a hold; returns whether it did. The caller's lock is free meanwhile."""
        return self._changed.wait_for(
            lambda: self._closed.is_set() or not self._holds.is_to_come(hold_id), self._patience_seconds
        )

    def _send(
        self, client: socket.socket, hold_id: str, blocks: Sequence[Sequence[int]], *, is_carried: bool
    ) -> bool:
        """Send blocks, each frame from the same memory. True: the client confirmed that it has received all."""
        whole = self._soon(client)

        def of_a_frame() -> Until:
            with self._changed:
                return whole if self._holds.is_closing(hold_id) else self._soon(client)

        if is_carried:
            assert self._slots is not None, "a client that names a carrier is refused if there is none"
            send_carried(of_a_frame, self._batches(blocks), self._slots)
        else:
            memory = frame_memory(self._pages, [len(of_group) for of_group in blocks])
            for group, pages, some in self._batches(blocks):
                header = {"status": "blocks", "group": group, "count": len(some)}
                send_frame(of_a_frame(), header, pages.gather(some, memory))
        end = recv_frame(of_a_frame(), 0, max_header=SAID_BYTES)
        return end is not None and end.header.get("op") == "done"

    def _batches(self, blocks: Sequence[Sequence[int]]) -> Iterator[Batch]:
        """The blocks of each frame, in order."""
        for group, (pages, of_group) in enumerate(zip(self._pages.by_group, blocks, strict=True)):
            count = blocks_per_frame(pages)
            for first in range(0, len(of_group), count):
                yield group, pages, of_group[first : first + count]

    def close(self) -> None:
        """End all conversations. Nobody reads a block after that."""
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
            clients, threads = list(self._clients), list(self._threads)
        for open_socket in (self._listener, *clients):
            with suppress(OSError):  # the client may be gone
                open_socket.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        self._listener.close()  # only now: while a thread still used it, another file could get its number


def _read_places(given: object) -> list[tuple[int, int]] | str:
    """For each KV cache group the first requested place and the number of blocks; or an error's text."""
    pairs = [tuple(pair) if isinstance(pair, list) else () for pair in given] if isinstance(given, list) else [()]
    if any(len(pair) != 2 or any(type(number) is not int for number in pair) for pair in pairs):
        return f"expected [first, count] of blocks for each KV cache group, got places {given!r}"
    return [(first, count) for first, count in pairs]


def _listen(address: tuple[str, int]) -> socket.socket:
    try:
        listener = sockets.listen(*address)
    except OSError as error:
        host, port = address
        raise ConfigError(
            f"kv_connector_extra_config: can't listen at host {host!r}, port {port}: {error}; the address "
            "is listen_host (or host), the port is port (or kv_port) plus the worker's rank"
        ) from error
    listener.settimeout(1.0)  # on some systems shutting a socket down doesn't end a call of accept
    return listener
