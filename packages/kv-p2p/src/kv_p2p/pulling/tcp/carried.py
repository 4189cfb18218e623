"""The protocol of server and client, over their connection, for blocks that a carrier moves.

The server gathers blocks in one of two slots and sends the address. The client reads them by the carrier and sends
"read"; the server answers "kept" if the slot's bytes were unchanged until then. Only after that does the client
use the bytes: a server that has given up the client may have filled the slot for another one during the read, and
then it never sends "kept".

    server                                     client
    blocks, at an address of slot 0 ─────────▶ reads it
    blocks, at an address of slot 1 ─────────▶
                                    ◀───────── read
    kept ────────────────────────────────────▶ writes its blocks, and reads the next
    blocks, at an address of slot 0 ─────────▶
"""

import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from kv_p2p.frames import Frame, FrameError, Stream, recv_frame, send_frame
from kv_p2p.pulling.carrier import Slot
from kv_p2p.pulling.pages import CachePages
from kv_p2p.pulling.tcp.slots import SlotPool

SAID_BYTES: Final = 1 << 10
"""Bytes of a client's frame while it reads, at most; they have fewer."""
Batch = tuple[int, CachePages, Sequence[int]]
"""A KV cache group's number, its pages, and those of its blocks that go into one slot together."""


def send_carried(of_a_frame: Callable[[], Stream], batches: Iterable[Batch], pool: SlotPool) -> None:
    """Have the client read all batches. ``of_a_frame`` gives the connection with the time limit of one frame."""
    with pool.take(2) as slots:
        under_way = 0
        for number, (group, pages, blocks) in enumerate(batches):
            if under_way == len(slots):
                _confirm(of_a_frame)
                under_way -= 1
            slot = slots[number % len(slots)]
            size = pages.gather_into(blocks, slot.memory)
            send_frame(
                of_a_frame(),
                {
                    "status": "blocks",
                    "group": group,
                    "count": len(blocks),
                    "session": pool.carrier.session,
                    "address": slot.address,
                    "bytes": size,
                },
            )
            under_way += 1
        for _ in range(under_way):
            _confirm(of_a_frame)


def _confirm(of_a_frame: Callable[[], Stream]) -> None:
    """Wait until the client has read the oldest batch that was announced."""
    said = recv_frame(of_a_frame(), 0, max_header=SAID_BYTES)
    if said is None or said.header.get("op") != "read":
        raise FrameError("the client ended before it had read all blocks")
    send_frame(of_a_frame(), {"status": "kept"})


class CarriedFrames:
    """A client's frames of blocks, one after the other, with the bytes that the carrier read."""

    def __init__(self, connection: socket.socket, pool: SlotPool, slot: Slot) -> None:
        self._connection = connection
        self._carrier = pool.carrier
        self._slot = slot
        self._announced: deque[Frame] = deque()

    def next(self) -> Frame | None:
        """The next frame. If it has blocks, its part is their bytes, which are valid until the next call."""
        frame = self._announced.popleft() if self._announced else recv_frame(self._connection, 0)
        if frame is None or frame.header.get("status") != "blocks":
            return frame
        session, address, size = _place_of(frame.header, len(self._slot.memory))
        if size:  # 0 if the rank has no layers of the group
            self._carrier.read(session, address, self._slot, size)
        send_frame(self._connection, {"op": "read"})
        for heard in self._heard():
            if heard.header.get("status") == "kept":
                break
            self._announced.append(heard)
        return Frame(frame.header, [self._slot.memory[:size]])

    def _heard(self) -> Iterator[Frame]:
        while (heard := recv_frame(self._connection, 0)) is not None:
            yield heard
        raise FrameError("the connection ended before it was known whether the blocks are what they were")


def _place_of(header: dict[str, Any], most_bytes: int) -> tuple[str, int, int]:
    session, address, size = header.get("session"), header.get("address"), header.get("bytes")
    if type(address) is not int or type(size) is not int or address <= 0 or not 0 <= size <= most_bytes:
        place = f"{size!r} bytes at {address!r}"
        raise FrameError(f"blocks are said to be {place}; expected at most {most_bytes} bytes at an address")
    return str(session), address, size
