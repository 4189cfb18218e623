"""What a replay counts, called by hand: the connector's numbers, and what the digest covers."""

from dataclasses import fields, replace

from kv_sim_timed_traces import toy

from kv_api import CacheHitSource, Direction, KVConnectorStats
from kv_sim.replay.timed.durations.link import Ended
from kv_sim.replay.timed.engine.books import Books
from kv_sim.replay.timed.engine.request import Names, Times, TracedRequest
from kv_sim.replay.timed.server.sizes import plan
from kv_sim.replay.trace import TraceRequest


class Told(KVConnectorStats):
    """Numbers as they come."""

    def reduce(self) -> dict[str, object]:
        return self.data


def books() -> Books:
    return Books(plan(toy(), 4))


def test_what_a_connector_tells_is_added_up_over_its_children() -> None:
    counted = books()
    for answer in (
        Told({"jobs": 2, "refused": 0, "usage_perc": 0.5, "p2p_held_blocks": 3, "name": "offloading"}),
        Told({"0": {"jobs": 3, "bytes": 70}, "1": {"seconds": 0.25, "usage_perc": 1}}),
        None,
    ):
        counted.called("scheduler", "get_kv_connector_stats", (), answer)
    counted.called("scheduler", "update_connector_output", (), Told({"jobs": 1000}))
    assert counted.connector == {"jobs": 5, "bytes": 70, "seconds": 0.25}
    assert "refused" not in counted.connector


def digest_of(job: Ended, now: int) -> str:
    counted = books()
    counted.copy_ended(job, now)
    return counted.digest


def test_the_digest_covers_every_copy() -> None:
    job = Ended(0, 1, Direction.STORE, 2, 30, 40, True)
    changes = {
        "port": 1, "job_id": 2, "direction": Direction.LOAD, "blocks": 3, "begin": 31, "end": 41, "success": False,
    }  # fmt: skip
    assert list(changes) == [field.name for field in fields(Ended)]
    others = [replace(job, **{name: value}) for name, value in changes.items()]  # type: ignore[arg-type]
    digests = [books().digest, digest_of(job, 50), digest_of(job, 51), *(digest_of(other, 50) for other in others)]
    assert len(set(digests)) == 3 + len(changes)
    assert {len(digest) for digest in digests} == {32}


def digest_of_disk(job: Ended, now: int) -> str:
    counted = books()
    counted.disk_ended(job, now)
    return counted.digest


def test_the_digest_covers_what_is_read_and_written() -> None:
    job = Ended(0, 1, Direction.STORE, 2, 30, 40, True)
    changes = {"port": 1, "job_id": 2, "direction": Direction.LOAD, "blocks": 3, "begin": 31, "end": 41}
    others = [replace(job, **{name: value}) for name, value in changes.items()]  # type: ignore[arg-type]
    digests = [digest_of_disk(job, 50), digest_of_disk(job, 51), *(digest_of_disk(other, 50) for other in others)]
    assert len({books().digest, digest_of(job, 50), *digests}) == 4 + len(changes), "and it is no copy of the link"


def test_what_ended_is_added_up() -> None:
    counted = books()
    for index, (tokens, outputs, preemptions, times) in enumerate(
        [
            # A block of four tokens on the GPU and two beyond it, the second of them all but its last token.
            (14, 3, 2, Times(100, 110, 150, 251, load_wait=7, local_tokens=4, external_tokens=7)),
            (9, 1, 1, Times(200, 260, 280, 280, local_tokens=8)),
            (8, 2, 0, Times(300, 305, 340, 370, load_wait=9, local_tokens=0, external_tokens=4)),
            # From files: a single token beside a block on the GPU; and two blocks, of which a part is needed.
            (6, 1, 0, Times(400, 400, 420, 420, local_tokens=4, external_tokens=1, disk_tokens=1)),
            (9, 1, 0, Times(500, 500, 530, 530, local_tokens=0, external_tokens=8, disk_tokens=8)),
        ]
    ):
        request = TracedRequest(index, TraceRequest(0.0, tokens, outputs, (1, 2, 3)), Names(), 4)
        request.num_output_tokens, request.num_preemptions, request.times = outputs, preemptions, times
        counted.end(request)
    assert (counted.prompt_tokens, counted.prompt_blocks, counted.full_blocks) == (
        46,
        4 + 3 + 2 + 2 + 3,
        3 + 2 + 2 + 1 + 2,
    )
    assert (counted.output_tokens, counted.preemptions) == (8, 3)
    assert (counted.local_tokens, counted.external_tokens) == (4 + 8 + 0 + 4 + 0, 7 + 0 + 4 + 1 + 8)
    assert (counted.local_blocks, counted.external_blocks) == (1 + 2 + 0 + 1 + 0, 2 + 0 + 1 + 1 + 2)
    assert (counted.disk_tokens, counted.disk_blocks) == (1 + 8, 1 + 2)
    assert [*counted.ttft] == [50, 80, 40, 20, 30] and [*counted.latency] == [151, 80, 70, 20, 30]
    assert [*counted.queued] == [10, 60, 5, 0, 0]
    assert [*counted.load_wait] == [7, 9, 0, 0] and [*counted.per_token] == [101 // 2, 30]


def test_where_something_was_found_counts_once_and_no_more_than_was_found() -> None:
    counted, names = books(), Names()
    request, other = (TracedRequest(index, TraceRequest(0.0, 9, 1, (1, 2)), names, 4) for index in range(2))
    request.times.external_tokens, other.times.external_tokens = 8, 4
    for asked, sources in (
        (request, {CacheHitSource.HOST: 5, CacheHitSource.DISK: 3}),
        (request, {CacheHitSource.DISK: 8}),  # it was preempted, and looked up again
        (other, {CacheHitSource.DISK: 8}),
    ):
        counted.called("scheduler", "get_external_cache_hit_sources", (asked,), sources)
    assert (request.times.disk_tokens, other.times.disk_tokens) == (3, 4)


def digest_after(index: int, outputs: int, preemptions: int, times: Times) -> str:
    counted = books()
    request = TracedRequest(index, TraceRequest(0.0, 8, outputs, (1, 2)), Names(), 4)
    request.num_output_tokens, request.num_preemptions, request.times = outputs, preemptions, times
    counted.end(request)
    assert request.numbers == [], "what has ended takes no memory"
    return counted.digest


def test_the_digest_covers_every_request() -> None:
    values = {field.name: number for number, field in enumerate(fields(Times), 10)}
    others = [Times(**(values | {name: 99})) for name in values]
    digests = [
        digest_after(0, 1, 0, Times(**values)),
        digest_after(1, 1, 0, Times(**values)),
        digest_after(0, 2, 0, Times(**values)),
        digest_after(0, 1, 1, Times(**values)),
        *(digest_after(0, 1, 0, other) for other in others),
    ]
    assert len(set(digests)) == 4 + len(values)
