"""Frames: the messages that one side of a TCP connection writes and the other side reads.

A frame is a small header, which is a JSON object, and parts, which are raw bytes:

    magic (4) · bytes of the header (4) · number of parts (4) · bytes of each part (8 each) · header · parts

Nothing in a frame is ever executed, and the reader limits its bytes. A connection that ends between two frames is
the end of a conversation; one that ends within a frame is an error.
"""

import json
import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, Protocol

MAGIC: Final = b"KVp1"
HEADER_BYTES_MAX: Final = 1 << 24
PARTS_MAX: Final = 1 << 16
_START: Final = struct.Struct(">4sII")
_SIZE: Final = struct.Struct(">Q")


class FrameError(ConnectionError):
    """The bytes received are no frame, or only a part of one."""


class Stream(Protocol):
    """A connected socket as frames use it."""

    def sendall(self, data: Any, /) -> None: ...
    def recv_into(self, buffer: Any, /) -> int: ...


class Frame(NamedTuple):
    """One message."""

    header: dict[str, Any]
    parts: list[memoryview]


def send_frame(stream: Stream, header: dict[str, Any], parts: Sequence[Any] = ()) -> None:
    """Write one frame. A part is any contiguous buffer."""
    views = [memoryview(part) for part in parts]
    views = [view.cast("B") if view.nbytes else memoryview(b"") for view in views]
    text = json.dumps(header).encode()
    for name, value, most in (("bytes of header", len(text), HEADER_BYTES_MAX), ("parts", len(views), PARTS_MAX)):
        if value > most:
            raise FrameError(f"a frame has at most {most} {name}, and this one has {value}")
    sizes = b"".join(_SIZE.pack(view.nbytes) for view in views)
    stream.sendall(_START.pack(MAGIC, len(text), len(views)) + sizes + text)
    for view in views:
        stream.sendall(view)


def recv_frame(
    stream: Stream, max_bytes: int, into: memoryview | None = None, *, max_header: int = HEADER_BYTES_MAX
) -> Frame | None:
    """Read one frame whose parts have at most ``max_bytes`` together. None: the other side has ended.

    The parts are one after the other in ``into``, which must have ``max_bytes``, or else in memory of their own. A
    reader whose peer may be anybody limits the header by ``max_header``: parsing JSON blocks all threads.
    """
    start = bytearray(_START.size)
    if not _fill(stream, start, at_end_ok=True):
        return None
    magic, header_bytes, num_parts = _START.unpack(start)
    if magic != MAGIC:
        raise FrameError(f"expected a frame, which begins with {MAGIC!r}, got {bytes(magic)!r}")
    if header_bytes > max_header or num_parts > PARTS_MAX:
        raise FrameError(
            f"a frame has at most {max_header} bytes of header and {PARTS_MAX} parts; "
            f"this one has {header_bytes} and {num_parts}"
        )
    sizes = bytearray(_SIZE.size * num_parts)
    _fill(stream, sizes)
    lengths = [size for (size,) in _SIZE.iter_unpack(sizes)]
    if sum(lengths) > max_bytes:
        raise FrameError(f"expected at most {max_bytes} bytes, the frame has {sum(lengths)}")
    text = bytearray(header_bytes)
    _fill(stream, text)
    header = _parse(text)
    memory = (memoryview(bytearray(sum(lengths))) if into is None else into)[: sum(lengths)]
    _fill(stream, memory)
    ends = accumulate(lengths)
    return Frame(header, [memory[end - length : end] for length, end in zip(lengths, ends, strict=True)])


def _parse(text: bytearray) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:  # RecursionError: brackets nested too deep
        raise FrameError(f"the header of a frame is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise FrameError(f"the header of a frame is a JSON object, got {type(header).__name__}")
    return header


def _fill(stream: Stream, buffer: bytearray | memoryview, *, at_end_ok: bool = False) -> bool:
    """Read until the buffer is full. False: the connection ended before its first byte, and that is allowed."""
    view, filled = memoryview(buffer), 0
    while filled < len(buffer):
        count = stream.recv_into(view[filled:])
        if count == 0:
            if at_end_ok and filled == 0:
                return False
            raise FrameError(f"the connection ended after {filled} of {len(buffer)} bytes of a frame")
        filled += count
    return True
