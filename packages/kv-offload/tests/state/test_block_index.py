"""Where blocks stand, against a model that goes through all tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_offload_work import work_of

from kv_offload.scheduler.state.block_index import BlockIndex

blocks = st.lists(st.integers(1, 9), unique=True, max_size=5)
nulls = st.integers(0, 2)
calls = st.sampled_from(["begin", "append", "remove", "vacate"])


def vacated(tables, fresh):
    return [[0 if block in fresh else block for block in table] for table in tables]


@given(st.lists(st.tuples(calls, st.integers(0, 9), nulls, blocks)))
def test_agrees_with_the_model(history):
    index, tables, model = BlockIndex(), [], []
    for call, number, leading, some in history:
        if call == "begin":  # it may have found others' blocks
            tables.append([0] * leading + some)
            model.append([0] * leading + some)
            index.add(tables[-1])
        elif call == "vacate":
            index.vacate({*some})
            model = vacated(model, some)
        elif tables and call == "append":  # nobody has these any more
            place = number % len(tables)
            index.vacate({*some})
            model = vacated(model, some)
            tables[place] += [0] * leading + some
            model[place] += [0] * leading + some
            index.add(tables[place], len(tables[place]) - leading - len(some))
        elif tables and call == "remove":
            place = number % len(tables)
            index.remove(tables[place])
            assert tables.pop(place) == model.pop(place)
        assert tables == model
        index.check(tables)
    for table in tables:
        index.remove(table)
    index.check([])


def test_tables_that_are_equal_are_not_the_same():
    index, one, other = BlockIndex(), [0, 3, 4], [0, 3, 4]
    index.add(one)
    index.add(other)
    index.remove(one)
    index.vacate({4})
    assert (one, other) == ([0, 3, 4], [0, 3, 0])
    index.check([other])


def test_a_block_is_lost_by_all_that_have_it():
    index, tables = BlockIndex(), [[3], [0, 3], [4, 3], [3, 5]]
    for table in tables:
        index.add(table)
    index.vacate({3})
    assert tables == [[0], [0, 0], [4, 0], [0, 5]]
    index.check(tables)


@pytest.mark.parametrize("shared", [[], [*range(1, 9)]])
def test_a_table_and_a_fresh_block_cost_the_same_however_many_tables_there_are(shared):
    work = {}
    for count in (20, 200):
        index, tables = BlockIndex(), [[*shared, *range(100 * n, 100 * n + 8)] for n in range(1, count + 1)]
        for table in tables[:-1]:
            index.add(table)
        work[count] = [
            work_of(lambda index=index, table=tables[-1]: index.add(table)),
            work_of(lambda index=index: index.vacate({*range(200, 204)})),
            work_of(lambda index=index, table=tables[count // 2]: index.remove(table)),
        ]
        del tables[count // 2]
        index.check(tables)
    assert work[20] == work[200]


def test_check_sees_what_is_wrong():
    index, table = BlockIndex(), [0, 5, 6]
    index.add(table)
    with pytest.raises(
        AssertionError, match=r"\(block, table, index\): \[\] in tables, \[\(5, -1, 1\), \(6, -1, 2\)\]"
    ):
        index.check([])
    with pytest.raises(AssertionError, match=r"\[\(5, 1, 1\)\] in tables"):
        index.check([[], [0, 5]])
    table[1] = 0
    with pytest.raises(AssertionError, match=r"\[\(6, 0, 2\)\] in tables, \[\(5, 0, 1\), \(6, 0, 2\)\] known"):
        index.check([table])
    table[1] = 5
    index._more[5] = {}
    with pytest.raises(AssertionError, match=r"blocks \[5\] have more than one place, and not one"):
        index.check([table])
    index._more = {6: {id(table): index._place_of.pop(6)}}
    with pytest.raises(AssertionError, match=r"blocks \[6\] have more than one place, and not one"):
        index.check([table])
