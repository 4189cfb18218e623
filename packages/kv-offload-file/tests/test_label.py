import zlib

import pytest

from kv_api import KVError, OffloadKey
from kv_offload_file.label import ROW_BYTES, Label, Row, pack_row, unpack_row

ROW = Row(Label(OffloadKey(b"\x00key with a zero at its end\x00"), 2**63 + 5, 2**40, 7), 0xDEADBEEF)


def test_a_row_says_what_was_written():
    data = pack_row(ROW)
    assert len(data) == ROW_BYTES == 256
    assert unpack_row(data) == ROW


@pytest.mark.parametrize("size", [0, 1, 36, 226])
def test_keys_may_have_any_length_up_to_what_a_row_has_room_for(size):
    row = Row(Label(OffloadKey(b"k" * size), 1, 1, 0), 0)
    assert unpack_row(pack_row(row)) == row


def test_a_longer_key_is_an_error_that_says_so():
    with pytest.raises(KVError, match=rf"^key {'6b' * 227} has 227 bytes; a row of a slot has room for 226$"):
        pack_row(Row(Label(OffloadKey(b"k" * 227), 1, 1, 0), 0))


def test_a_row_with_any_byte_changed_says_nothing():
    data = pack_row(ROW)
    for place in range(ROW_BYTES):
        changed = bytearray(data)
        changed[place] ^= 1
        assert unpack_row(bytes(changed)) is None


@pytest.mark.parametrize("data", [b"", bytes(ROW_BYTES), pack_row(ROW)[:-1], pack_row(ROW) + b"\x00"])
def test_what_was_never_written_or_is_no_row_says_nothing(data):
    assert unpack_row(data) is None


def test_a_later_version_reads_what_this_one_wrote():
    data = pack_row(Row(Label(OffloadKey(b"key"), epoch=5, number=6, nth=7), data_sum=8))
    fields = [8, 4], [5, 8], [6, 8], [7, 4], [3, 2]
    assert data[4:].rstrip(b"\0") == b"".join(value.to_bytes(size, "little") for value, size in fields) + b"key"
    assert zlib.crc32(data[4:]) == int.from_bytes(data[:4], "little")
