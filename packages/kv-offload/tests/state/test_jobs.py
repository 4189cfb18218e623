"""The book of jobs against a list of all jobs: what ends when, and for which of them others must wait."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kv_api import Direction
from kv_offload.scheduler.state.jobs import JobBook

WORKERS = 2
OWNERS = 3
BLOCKS = st.sets(st.integers(1, 9), min_size=1, max_size=4).map(sorted)


class Owner:
    """A request, as far as jobs know it. Equal to no other, like a life."""

    def __init__(self, name):
        self.context = SimpleNamespace(req_id=name)
        self.loads = set()
        self.stores = set()


@dataclass
class Entry:
    """A job in the model."""

    kind: str
    owner: int
    blocks: list[int]
    """Of a store at a boundary, its keys, too."""
    waiting: int = WORKERS
    unended: int = 0
    has_failed: bool = False
    is_released: bool = False
    is_stale: bool = False

    @property
    def is_load(self):
        return self.kind == "load"

    @property
    def is_live(self):
        return self.waiting > 0 and not self.is_stale

    @property
    def is_over(self):
        return not self.waiting and not self.unended

    @property
    def is_fence(self):
        return not self.is_over and (self.is_released or self.unended > 0)


@dataclass
class Model:
    """All jobs that ever were."""

    jobs: list[Entry] = field(default_factory=list)

    def release(self, owner):
        for job in self.jobs:
            if job.owner == owner and not job.is_load:
                job.is_released = True

    def report(self, job_id, ended, failed, given_up):
        job = self.jobs[job_id] if job_id < len(self.jobs) else None
        if job is None or not job.waiting:
            return None
        job.waiting -= min(ended, job.waiting)
        job.unended += given_up
        job.is_released |= given_up > 0
        is_first_failure = failed > 0 and not job.has_failed
        job.has_failed |= is_first_failure
        return is_first_failure, job.waiting == 0, job.is_stale

    def report_late(self, job_id):
        job = self.jobs[job_id] if job_id < len(self.jobs) else None
        if job is not None and job.unended:
            job.unended -= 1
            return job.is_over and not job.is_stale
        return False

    def stores_of(self, owner):
        return [i for i, job in enumerate(self.jobs) if job.is_live and job.owner == owner and not job.is_load]

    def loads_of(self, owner):
        return {i for i, job in enumerate(self.jobs) if job.waiting and job.owner == owner and job.is_load}

    def is_being_stored(self, key):
        return any(job.is_live and job.kind == "boundary" and key in job.blocks for job in self.jobs)

    def touching(self, blocks):
        return [i for i, job in enumerate(self.jobs) if job.is_fence and blocks.intersection(job.blocks)]


REPORTS = st.sampled_from([(1, 0, 0), (1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 1, 1), (2, 2, 1)])
"""How many workers say that a job ended, failed, was given up."""

ids = st.integers(0, 3)
owners = st.integers(0, OWNERS - 1)
calls = st.lists(
    st.one_of(
        st.tuples(st.just("load"), owners, BLOCKS),
        st.tuples(st.just("store"), owners, BLOCKS),
        st.tuples(st.just("boundary"), owners, BLOCKS),
        st.tuples(st.just("release"), owners),
        st.tuples(st.just("report"), ids, REPORTS),
        st.tuples(st.just("late"), ids),
        st.tuples(st.just("reset")),
    ),
    max_size=40,
)


GIVEN_UP_BY_ALL = [("store", 0, [1]), ("report", 0, (1, 1, 1)), ("report", 0, (1, 1, 1))]
A_SECOND_TIME = ("report", 0, (1, 0, 0))


@given(calls)
@example([*GIVEN_UP_BY_ALL, A_SECOND_TIME, ("late", 0), ("late", 0)])
@example([*GIVEN_UP_BY_ALL, ("reset",), A_SECOND_TIME, ("late", 0), ("late", 0)])
@example([("store", 0, [1]), ("report", 0, (1, 1, 0)), ("report", 0, (1, 1, 0))])
@example([("store", 0, [1]), ("report", 0, (2, 2, 1)), ("late", 0)])
@example([("store", 0, [1]), ("report", 0, (1, 1, 1)), ("late", 0), A_SECOND_TIME])
@example([("load", 1, [1]), ("report", 0, (1, 0, 0)), ("report", 0, (1, 0, 0))])
@example([("store", 0, [1]), ("report", 0, (1, 0, 0)), ("report", 0, (2, 0, 0))])
def test_agrees_with_the_model(history):
    book, model = JobBook(WORKERS), Model()
    requests = [Owner(f"r{number}") for number in range(OWNERS)]
    for name, *given_ in history:
        if name in ("load", "store", "boundary"):
            owner, blocks = given_
            if name == "load":
                job = book.begin_load(requests[owner], (), blocks, is_async=bool(owner))
            elif name == "store":
                job = book.begin_store(requests[owner], blocks, blocks, 0)
            else:
                job = book.begin_boundary_store(requests[owner], blocks, blocks, 0)
            assert job.job_id == len(model.jobs)
            model.jobs.append(Entry(name, owner, blocks))
        elif name == "release":
            book.release(requests[given_[0]])
            model.release(given_[0])
        elif name == "report":
            job_id, (count, failed, given_up) = given_
            ended = None if failed or job_id % 2 else book.end(job_id, count)
            found = None if ended else book.report(job_id, count, failed, given_up)
            told = found and (found.is_first_failure, found.is_done, found.is_stale)
            assert ((False, True, False) if ended else told) == model.report(job_id, count, failed, given_up)
            assert found is None or found.job.has_failed == model.jobs[job_id].has_failed
            assert ended is None or (ended.job_id, ended.waiting, ended.unended) == (job_id, 0, 0)
        elif name == "late":
            found = book.report_late(given_[0], 1)
            assert (found is not None) == (model.report_late(given_[0]) and not model.jobs[given_[0]].waiting)
        else:
            book.begin_reset()
            for job in model.jobs:
                job.is_stale |= not job.is_over
        book.check()
        for blocks in ({1}, {2, 3}, set(range(1, 10))):
            assert book.touching(blocks) == model.touching(blocks)
        assert book.is_watching == any(job.is_fence for job in model.jobs)
        for owner, request in enumerate(requests):
            assert [job.job_id for job in book.stores_of(request)] == model.stores_of(owner)
            assert request.loads == (model.loads_of(owner) if owner else set())
        stored = [key for key in range(1, 10) if book.is_being_stored(key)]
        assert stored == [key for key in range(1, 10) if model.is_being_stored(key)]
        known = {*book.live, *book.abandoned, *book.stale}
        assert known == {i for i, job in enumerate(model.jobs) if not job.is_over}


def test_a_job_that_one_worker_gave_up_has_not_ended_when_the_others_are_done():
    book, owner = JobBook(2), Owner("a")
    book.begin_load(owner, (), [1], is_async=True)
    assert book.end(0, 1) is None
    assert not book.report(0, 1, 1, 1).is_done
    assert book.end(0, 1) is None
    assert book.report(0, 1).is_done
    assert ([*book.abandoned], owner.loads) == ([0], set())
    book.check()


def test_who_has_its_blocks_makes_nobody_wait():
    book, owner = JobBook(1), Owner("a")
    job = book.begin_store(owner, (), [1, 2], 8)
    assert (book.is_watching, book.touching({1, 2}), book.kept()) == (False, [], [job])
    book.release(owner)
    assert (book.is_watching, book.touching({2}), book.kept()) == (True, [0], [])
    report = book.report(0, 1)
    assert (report.is_done, report.is_first_failure, [*book.abandoned]) == (True, False, [])
    assert (book.is_watching, book.kept()) == (False, [])
    book.check()


def test_check_sees_a_store_that_is_neither_kept_nor_watched():
    book = JobBook(1)
    book.begin_store(Owner("a"), (), [1], 4)
    book._kept.clear()
    with pytest.raises(AssertionError, match=r"stores \[\] are kept, \[0\] are not watched"):
        book.check()


def test_a_key_of_two_stores_is_being_stored_until_both_have_ended():
    book, owner = JobBook(1), Owner("a")
    book.begin_boundary_store(owner, (b"k", b"m"), [1], 4)
    book.begin_boundary_store(owner, (b"k",), [2], 4)
    for number, expected in enumerate([(True, False), (False, False)]):
        book.end(number, 1)
        assert (book.is_being_stored(b"k"), book.is_being_stored(b"m")) == expected
        book.check()


def test_check_sees_a_store_that_its_request_does_not_know_of():
    book, owner = JobBook(1), Owner("a")
    book.begin_boundary_store(owner, (b"k",), [1], 4)
    owner.stores.clear()
    with pytest.raises(AssertionError, match=r"a request knows of stores \[\], and has \[0\]"):
        book.check()
    owner.stores.add(0)
    book._boundary_keys.clear()
    with pytest.raises(
        AssertionError, match=r"stores at boundaries are of Counter\(\{b'k': 1\}\), known Counter\(\)"
    ):
        book.check()


def test_stores_of_a_request_come_the_oldest_first():
    book, owner, other = JobBook(1), Owner("a"), Owner("b")
    ids = [book.begin_store(owner if number in (1, 32, 64) else other, (), [1], 4).job_id for number in range(65)]
    assert [job.job_id for job in book.stores_of(owner)] == [ids[1], ids[32], ids[64]]


def test_a_reset_has_nobody_wait_for_a_copy_that_was_given_up():
    book, owner = JobBook(1), Owner("a")
    for block in (1, 2):
        book.begin_store(owner, (), [block], 4)
    book.report(0, 1, 1, 1)
    assert book.begin_reset() == [1]
    assert {*book.stale} == {0, 1}
    book.check()
    owner.stores.add(1)
    with pytest.raises(AssertionError, match=r"a request knows of stores \[1\], and has \[\]"):
        book.check()


def test_kinds():
    book, owner = JobBook(1), Owner("a")
    assert book.begin_load(owner, (), [1], is_async=True).direction is Direction.LOAD
    assert owner.loads == {0}
    assert book.begin_store(owner, (), [2], 4).direction is Direction.STORE
    assert owner.loads == {0}
