"""Keys of many chunks at once, against one after the other."""

import pytest

from kv_api import make_offload_key
from kv_offload.shape.naming import PIECE, names

COUNTS = (0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 7)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("num_bytes", [1, 16, 32])
def test_a_key_is_a_hash_and_its_group(count, num_bytes):
    hashes = [number.to_bytes(4, "big")[-num_bytes:].rjust(num_bytes, b"h") for number in range(count)]
    for group in (0, 7):
        keys = names(hashes, make_offload_key(b"", group))
        assert (len(keys), [*keys]) == (count, [make_offload_key(each, group) for each in hashes])


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("odd", [0, 1, PIECE - 1, PIECE, -1])
def test_hashes_of_several_lengths(count, odd):
    hashes = [b"%04d" % number for number in range(count)]
    if -count <= odd < count:
        hashes[odd] += b"longer"
    keys = names(hashes, make_offload_key(b"", 1))
    assert (len(keys), [*keys]) == (count, [make_offload_key(each, 1) for each in hashes])
