"""From offers to jobs, against a model that goes chunk by chunk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_api import AttentionKind, GPULoadStoreSpec, KVError, ReqContext
from kv_offload.scheduler.state.progress import Progress
from kv_offload.scheduler.storing.batches import beginning, blocks_of, chosen, in_batches, keys_of
from kv_offload.scheduler.storing.storing import _note_left
from kv_offload.shape.layout import Group, Layout

FULL, WINDOW, STATE = AttentionKind.FULL, AttentionKind.SLIDING_WINDOW, AttentionKind.STATE_SPACE
CHUNKS = 12


class Hashes:
    block_hashes = tuple(f"h{number}".encode() for number in range(4 * CHUNKS))


def make(*groups):
    """A request that fills CHUNKS chunks of each group; groups are (kind, blocks of a chunk)."""
    layout = Layout(
        tuple(
            Group(place, kind, 4, size, size, 8 if kind is WINDOW else 0)
            for place, (kind, size) in enumerate(groups)
        ),
        4,
        4,
    )
    progress = Progress(layout, ReqContext("a"))
    progress.extend_keys(Hashes)
    progress.begin([range(100 * (place + 1), 100 * (place + 1) + 4 * CHUNKS) for place in range(len(groups))])
    return layout, progress


def test_the_first_chunk_without_room_is_noted():
    left = {2: 4, 3: 9}
    _note_left(left, [range(2), [4, 5], range(3, 9), [7]], [[0, 1], [4], [3, 4, 5], []])
    assert left == {1: 5, 2: 4, 3: 7}


def test_blocks_at_the_end_complete_what_is_known():
    _, progress = make((WINDOW, 1))
    for known, told, table in (
        ([1, 2, 3], [0, 2, 3, 4], [1, 2, 3, 4]),  # the first slid out of the window
        ([0, 2, 3], [0, 0, 3], [0, 2, 3]),
        ([1, 2, 3], [1], [1, 2, 3]),
        ([1], [1, 2, 3], [1, 2, 3]),
        ([], [0, 2], [0, 2]),
    ):
        progress.begin([known])
        given = [*told]
        progress.end([given])
        assert (progress.groups[0].table, given) == (table, told)
        progress.check()


groups = st.lists(
    st.tuples(st.sampled_from([FULL, WINDOW, STATE]), st.sampled_from([1, 2, 3])), min_size=1, max_size=3
)
offer = st.one_of(
    st.tuples(st.integers(0, CHUNKS), st.integers(0, CHUNKS)).map(lambda ends: range(min(ends), max(ends))),
    st.sets(st.integers(0, CHUNKS - 1)).map(sorted),
    st.integers(1, CHUNKS).map(lambda chunk: range(chunk, chunk)),
)


def ends(layout, offers):
    """(end, place, chunk) of all chunks, in the order of tokens."""
    return sorted(
        ((chunk + 1) * layout.groups[place].tokens_per_chunk, place, chunk)
        for place, chunks in enumerate(offers)
        for chunk in chunks
    )


def by_group(triples, count):
    return [[chunk for _, place, chunk in triples if place == wanted] for wanted in range(count)]


def plain(batch):
    return [[*chunks] for chunks in batch]


@given(groups, st.data())
def test_batches_are_what_a_job_can_name(kinds, data):
    layout, _ = make(*kinds)
    offers = [data.draw(offer) for _ in kinds]
    is_alone = [kind is STATE and size > 1 for kind, size in kinds]
    whole = [[] if alone else [*chunks] for alone, chunks in zip(is_alone, offers, strict=True)]
    expected = [whole] if any(whole) else []
    expected += [by_group([triple], len(kinds)) for triple in ends(layout, offers) if is_alone[triple[1]]]
    assert [plain(batch) for batch in in_batches(layout, offers)] == expected


@given(groups, st.data())
def test_the_beginning_of_a_batch_is_a_prefix_of_the_request(kinds, data):
    layout, _ = make(*kinds)
    offers = [data.draw(offer) for _ in kinds]
    triples = ends(layout, offers)
    count = data.draw(st.integers(0, len(triples)))
    assert plain(beginning(layout, offers, count)) == by_group(triples[:count], len(kinds))


def test_chunks_of_other_sizes_begin_by_where_they_end():
    layout, _ = make((FULL, 1), (FULL, 4))
    beginnings = [plain(beginning(layout, [range(6), range(1)], count)) for count in (4, 5, 6)]
    assert beginnings == [[[0, 1, 2, 3], []], [[0, 1, 2, 3], [0]], [[0, 1, 2, 3, 4], [0]]]


@given(groups, st.data())
def test_a_job_reads_the_blocks_of_its_chunks(kinds, data):
    layout, progress = make(*kinds)
    offers = data.draw(
        st.sampled_from(in_batches(layout, [data.draw(offer) for _ in kinds]) or [[()] * len(kinds)])
    )
    blocks, sizes, firsts, keys = [], [], [], []
    for place, ((kind, size), chunks) in enumerate(zip(kinds, offers, strict=True)):
        indices = [
            index
            for chunk in chunks
            for index in range(chunk * size, (chunk + 1) * size)
            if kind is not STATE or index % size == size - 1
        ]
        blocks += [100 * (place + 1) + index for index in indices]
        sizes.append(len(indices))
        firsts.append(indices[0] if indices else 0)
        keys += [Hashes.block_hashes[(chunk + 1) * size - 1] + place.to_bytes(4, "big") for chunk in chunks]
    end_token = max((end for end, _, _ in ends(layout, offers)), default=0)
    assert blocks_of(progress, offers) == (blocks, GPULoadStoreSpec(blocks, sizes, firsts), end_token)
    assert keys_of(progress, offers) == keys


@given(st.sampled_from([((FULL, 2),), ((FULL, 2), (WINDOW, 1))]), st.data())
def test_what_a_medium_wants_is_taken_in_its_order(kinds, data):
    _layout, progress = make(*kinds)
    offers = [data.draw(offer) for _ in kinds]
    wanted = [data.draw(st.permutations(chunks)) if chunks else [] for chunks in offers]
    wanted = [of_group[: data.draw(st.integers(0, len(of_group)))] for of_group in wanted]
    keys = [progress.groups[place].keys[chunk] for place, of_group in enumerate(wanted) for chunk in of_group]
    assert plain(chosen(progress, offers, keys)) == wanted


def test_a_medium_that_mixes_groups_is_told():
    _, progress = make((FULL, 1), (FULL, 1))
    first, second = (group.keys for group in progress.groups)
    with pytest.raises(KVError) as error:
        chosen(progress, [range(2), range(2)], [first[0], second[0], first[1]])
    assert str(error.value) == (
        "prepare_store: keys_to_store mixes chunks of groups [0, 1, 0]; expected all chunks of one group before "
        "those of the next"
    )
