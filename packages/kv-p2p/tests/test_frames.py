"""Frames: what is written is read again, and everything else is refused."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_p2p.frames import HEADER_BYTES_MAX, MAGIC, PARTS_MAX, Frame, FrameError, recv_frame, send_frame

BIG = 1 << 20


class Pipe:
    """Fits `kv_p2p.frames.Stream`: what was written can be read, in pieces of any size."""

    def __init__(self, data=b"", pieces=()):
        self.data = bytearray(data)
        self.pieces = list(pieces)

    def sendall(self, data):
        self.data += data

    def recv_into(self, buffer):
        count = min(len(buffer), len(self.data), self.pieces.pop(0) if self.pieces else BIG)
        buffer[:count] = self.data[:count]
        del self.data[:count]
        return count


def start(header=b"{}", sizes=(), *, magic=MAGIC, header_bytes=None, num_parts=None):
    """The beginning of a frame, right or wrong."""
    numbers = len(header) if header_bytes is None else header_bytes, len(sizes) if num_parts is None else num_parts
    return struct.pack(">4sII", magic, *numbers) + b"".join(struct.pack(">Q", size) for size in sizes) + header


def refused(data, max_bytes=BIG):
    with pytest.raises(FrameError) as raised:
        recv_frame(Pipe(data), max_bytes)
    assert isinstance(raised.value, OSError)
    return str(raised.value)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=4)
headers = st.dictionaries(st.text(), values, max_size=5)
frames = st.tuples(headers, st.lists(st.binary(max_size=200), max_size=6))


@given(st.lists(frames, max_size=3), st.lists(st.integers(1, 50), max_size=100))
def test_what_is_sent_is_received(sent, pieces):
    pipe = Pipe(pieces=pieces)
    for header, parts in sent:
        send_frame(pipe, header, parts)
    for header, parts in sent:
        assert recv_frame(pipe, sum(map(len, parts))) == Frame(header, [bytearray(part) for part in parts])
    assert recv_frame(pipe, 0) is None


@given(st.lists(st.binary(max_size=9), max_size=4), st.integers(0, 3), st.lists(st.integers(1, 5), max_size=20))
def test_into_memory_that_is_there(parts, more, pieces):
    pipe = Pipe(pieces=pieces)
    send_frame(pipe, {"a": 1}, parts)
    data = b"".join(parts)
    memory = bytearray(b"x" * (len(data) + more))
    frame = recv_frame(pipe, len(memory), memoryview(memory))
    assert frame == Frame({"a": 1}, [bytearray(part) for part in parts])
    assert all(part.obj is memory for part in frame.parts)
    assert memory == data + b"x" * more


def test_as_it_lies_in_memory():
    pipe = Pipe()
    send_frame(pipe, {"a": 1}, [b"xy", b""])
    assert bytes(pipe.data) == start(b'{"a": 1}', (2, 0)) + b"xy"


def test_parts_are_whatever_has_its_bytes_together():
    pipe = Pipe()
    array = np.arange(6, dtype=np.uint16).reshape(2, 3)
    send_frame(pipe, {}, [array, memoryview(b"ab"), np.zeros((0, 4), np.int8), bytearray(b"c")])
    frame = recv_frame(pipe, 15)
    assert frame == Frame({}, [bytearray(array.tobytes()), bytearray(b"ab"), bytearray(), bytearray(b"c")])


def test_nothing_at_all_is_the_end():
    assert recv_frame(Pipe(), 0) is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GET / HTTP/1.1\r\n", "expected a frame, which begins with b'KVp1', got b'GET '"),
        (
            start(header_bytes=HEADER_BYTES_MAX + 1),
            "a frame has at most 16777216 bytes of header and 65536 parts; this one has 16777217 and 0",
        ),
        (
            start(num_parts=PARTS_MAX + 1),
            "a frame has at most 16777216 bytes of header and 65536 parts; this one has 2 and 65537",
        ),
        (start(sizes=(BIG, 1)), f"expected at most {BIG} bytes, the frame has {BIG + 1}"),
        (start(sizes=(1 << 63, 1 << 63)), f"expected at most {BIG} bytes, the frame has {1 << 64}"),
        (start(b"[1]"), "the header of a frame is a JSON object, got list"),
        (start(b"null"), "the header of a frame is a JSON object, got NoneType"),
        (start()[:5], "the connection ended after 5 of 12 bytes of a frame"),
        (start(sizes=(3,))[:15], "the connection ended after 3 of 8 bytes of a frame"),
        (start(b"{}")[:13], "the connection ended after 1 of 2 bytes of a frame"),
        (start(b"{}")[:12], "the connection ended after 0 of 2 bytes of a frame"),
        (start(sizes=(1, 3)) + b"abc", "the connection ended after 3 of 4 bytes of a frame"),
    ],
)
def test_what_is_no_frame(data, message):
    assert refused(data) == message


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe\xff", b"{}{}", b"[" * 200_000, b'{"a":' * 200_000])
def test_a_header_that_is_no_json(text):
    assert refused(start(text)).startswith("the header of a frame is no JSON: ")


def test_the_most_there_may_be():
    pipe = Pipe()
    text = "x" * (HEADER_BYTES_MAX - len('{"a": ""}'))
    send_frame(pipe, {"a": text}, [b"y"] * PARTS_MAX)
    frame = recv_frame(pipe, PARTS_MAX)
    assert frame is not None
    assert (len(json.dumps(frame.header)), len(frame.parts)) == (HEADER_BYTES_MAX, PARTS_MAX)
    with pytest.raises(FrameError) as raised:
        send_frame(pipe, {"a": text + "x"})
    assert str(raised.value) == "a frame has at most 16777216 bytes of header, and this one has 16777217"
    with pytest.raises(FrameError) as raised:
        send_frame(pipe, {}, [b""] * (PARTS_MAX + 1))
    assert str(raised.value) == "a frame has at most 65536 parts, and this one has 65537"
    assert not pipe.data  # nothing of a frame that can't be is sent


def test_what_is_refused_is_not_received():
    """A frame of terabytes takes no memory, and what it has is left where it is."""
    pipe = Pipe(start(b"{}", (1 << 40,)) + b"abc")
    with pytest.raises(FrameError):
        recv_frame(pipe, BIG)
    assert bytes(pipe.data) == b"{}abc"
