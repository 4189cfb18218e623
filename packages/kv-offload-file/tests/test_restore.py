"""What is found of an engine before: what all ranks say, the latest of it, in the order of the stores."""

from kv_offload_file_rig import make_key

from kv_offload_file.label import Label, Row
from kv_offload_file.restore import Found, find_stores

NOW, BEFORE = 7, 6


def row(key, number, nth=0, epoch=NOW):
    return Row(Label(make_key(key), epoch, number, nth), 99)


def found(*ranks):
    return find_stores(lambda rank: ranks[rank].items(), len(ranks), NOW)


def stores(*ranks):
    return [([int(key[:-4]) for key in keys], slots) for keys, slots in found(*ranks).stores]


def test_nothing():
    assert found({}) == Found([], 1)
    assert found({}, {}) == Found([], 1)


def test_stores_come_in_their_order_and_so_do_their_chunks():
    rows = {0: row(5, 12, 1), 1: row(4, 12, 0), 2: row(9, 3, 0), 3: row(8, 12, 2)}
    assert stores(rows) == [([9], [2]), ([4, 5, 8], [1, 0, 3])]
    assert found(rows).next_number == 13


def test_what_any_rank_lacks_or_says_otherwise_is_not_there():
    first = {0: row(0, 1), 1: row(1, 2), 2: row(2, 3), 3: row(3, 4), 4: row(4, 5, 1)}
    second = {0: row(0, 1), 1: row(7, 2), 2: row(2, 9), 4: row(4, 5, 1)}
    third = {**first, 4: row(4, 5, 0)}
    assert stores(first, second) == [([0], [0]), ([4], [4])]
    assert stores(first, second, third) == [([0], [0])]
    assert stores(second, third, first) == [([0], [0])]
    assert stores(first, {}) == []


def test_bytes_differ_from_rank_to_rank():
    assert stores({0: row(0, 1)}, {0: row(0, 1)._replace(data_sum=1)}) == [([0], [0])]


def test_another_epoch_means_nothing_but_its_numbers_are_not_used_again():
    rows = {0: row(0, 50, epoch=BEFORE), 1: row(1, 2), 2: row(2, 3, epoch=NOW + 1)}
    assert stores(rows) == [([1], [1])]
    assert found(rows).next_number == 51
    assert found(dict(reversed(rows.items()))).next_number == 51


def test_of_a_chunk_that_was_stored_twice_the_later_one_counts():
    rows = {0: row(1, 8), 1: row(1, 4), 2: row(2, 4, 1), 3: row(1, 2)}
    assert stores(rows) == [([2], [2]), ([1], [0])]
    assert stores(dict(reversed(rows.items()))) == [([2], [2]), ([1], [0])]
