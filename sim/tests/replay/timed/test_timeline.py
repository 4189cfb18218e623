"""Timelines worked out by hand.

A token takes 1000 ns and 4 more for each that it attends to; a step 10,000 beside the forward pass, which is
rounded up to the next nanosecond; a block of 4 tokens takes 1016 ns on the link, and a job one more; an engine
that only waits looks every 5000.
"""

from array import array
from dataclasses import replace

import pytest
from kv_sim_timed_traces import ListedTrace, answer, toy, trace_of

from kv_api import ConfigError, Direction
from kv_sim.replay.timed import Answers
from kv_sim.replay.timed.connectors.timed_config import NOTHING, timed_config
from kv_sim.replay.timed.durations.link import Ended
from kv_sim.replay.timed.engine.arrivals import TraceArrivals
from kv_sim.replay.timed.engine.books import Books
from kv_sim.replay.timed.engine.drive import Drive
from kv_sim.replay.timed.engine.engine import CheckedEngine, QuickEngine
from kv_sim.replay.timed.engine.request import Times
from kv_sim.replay.timed.engine.together import run_together
from kv_sim.replay.timed.runs.answers import Copies, Spread, answers_of
from kv_sim.replay.timed.runs.finished import finished_of
from kv_sim.replay.timed.server.settings import EngineSettings, Stepping
from kv_sim.replay.timed.server.sizes import plan
from kv_sim.subject import Subject
from kv_sim.violation import Violation


class Diary(Books):
    """Keeps the times of everybody."""

    def __init__(self, settings: EngineSettings, trace: ListedTrace) -> None:
        super().__init__(plan(settings, trace.block_tokens))
        self.times: dict[int, Times] = {}
        self.copies: list[Ended] = []

    def end(self, request) -> None:  # type: ignore[no-untyped-def]
        self.times[request.index] = request.times
        super().end(request)

    def copy_ended(self, job: Ended, now: int) -> None:
        self.copies.append(job)
        super().copy_ended(job, now)


def diary(trace: ListedTrace, settings: EngineSettings, *, connector: bool = True) -> tuple[Diary, Answers]:
    books = Diary(settings, trace)
    transfer = settings.transfer_config() if connector else NOTHING
    engine = QuickEngine(plan(settings, trace.block_tokens), timed_config(transfer, 1), books.called)
    engine.link.log = books.copy_ended
    arrivals = TraceArrivals(enumerate(trace), books, engine.make_request)
    run_together([Drive(engine, books, arrivals, Stepping.FUSED)])
    return books, answers_of(finished_of(engine, books))


def test_one_request_alone() -> None:
    books, answers = diary(trace_of((0, 6, 3, [1, 2])), toy())
    # The prompt: 6 tokens attend to 1 + 2 + … + 6 = 21: 10,000 + 6000 + 84 + 1. Then tokens 7 and 8 are computed:
    # each 10,000 + 1000 + 4 × 7 + 1, or × 8.
    assert books.times == {0: Times(arrival=0, scheduled=0, first_token=16_085, end=38_147, local_tokens=0)}
    # Its first block is full, and is copied when the step has run. The second fills with an output: not stored.
    assert books.copies == [Ended(0, 0, Direction.STORE, 1, 16_085, 17_102, True)]
    assert (answers.steps, answers.fused_steps, answers.ttft.mean) == (4, 0, 16_085e-9)
    assert answers.time_per_output_token.mean == 11_031e-9


A, B, C = (0, 8, 1, [1, 2]), (1000, 15, 1, [3, 4, 5, 6]), (2000, 9, 2, [1, 2, 7])


def test_what_left_the_gpu_is_loaded() -> None:
    books, answers = diary(trace_of(A, B, C), toy(gpu_blocks=4))
    assert books.times == {
        0: Times(0, scheduled=0, first_token=18_145, end=18_145, local_tokens=0),
        1: Times(1_000_000, scheduled=1_000_000, first_token=1_025_481, end=1_025_481, local_tokens=0),
        # Its load is planned at 2,000,000 and ends at 2,002,033. The engine looks at 2,005,000, and plans its last
        # prompt token at 2,010,000: 10,000 + 1000 + 36 + 1 more.
        2: Times(
            2_000_000,
            scheduled=2_000_000,
            first_token=2_021_037,
            end=2_032_078,
            load_wait=10_000,
            local_tokens=0,
            external_tokens=8,
        ),
    }
    assert books.copies == [
        Ended(0, 0, Direction.STORE, 2, 18_145, 20_178, True),
        Ended(0, 1, Direction.STORE, 3, 1_025_481, 1_028_530, True),
        Ended(0, 2, Direction.LOAD, 2, 2_000_000, 2_002_033, True),
    ]
    assert (answers.cpu_token_ratio, answers.cpu_block_ratio, answers.gpu_token_ratio) == (8 / 32, 2 / 9, 0.0)
    assert (answers.loads.bytes, answers.stores.bytes) == (32, 80)


def test_who_is_preempted_waits_for_each_of_its_loads() -> None:
    trace = trace_of((0, 8, 1, [0, 1]), (0, 14, 9, [100, 101, 102]), (1, 4, 6, [0]))
    books, answers = diary(trace, toy(gpu_blocks=6))
    loads = [(job.begin, job.end) for job in books.copies if job.direction is Direction.LOAD]
    assert loads == [(54_691, 55_708), (122_181, 123_198)] and answers.preemptions == 1
    # The first is planned at 43,626, begins after that step, and the step after the next begins at 65,760. The
    # second begins at once: nobody else runs, and the engine looks twice.
    assert (books.times[2].scheduled, books.times[2].load_wait) == (43_626, 65_760 - 43_626 + 2 * 5000)
    assert answers.load_wait == Spread.of(array("q", [32_134]))


def test_who_finds_nothing_before_it_is_preempted_has_loaded_all_the_same() -> None:
    trace = trace_of((0, 5, 9, [100]), (1, 11, 9, [0, 1, 2]), (2, 8, 2, [100, 101]))
    books, answers = diary(trace, toy(gpu_blocks=6))
    assert (books.times[2].external_tokens, books.times[2].load_wait) == (0, 10_000)
    assert (answers.preemptions, answers.loads.jobs) == (2, 1)
    assert answers.load_wait == Spread.of(array("q", [10_000]))


def test_what_the_times_add_up_to() -> None:
    """The same, and one that comes while the third loads: it is planned when the engine looks, 4000 later."""
    books, answers = diary(trace_of(A, B, C, (2001, 4, 3, [9])), toy(gpu_blocks=4))
    assert [(t.arrival, t.scheduled, t.first_token, t.end) for _, t in sorted(books.times.items())] == [
        (0, 0, 18_145, 18_145),
        (1_000_000, 1_000_000, 1_025_481, 1_025_481),
        (2_000_000, 2_000_000, 2_052_124, 2_063_165),
        (2_001_000, 2_005_000, 2_019_041, 2_041_087),
    ]
    assert replace(answers, connector={}, digest="") == Answers(
        requests=4,
        refused={},
        prompt_tokens=8 + 15 + 9 + 4,
        prompt_blocks=2 + 4 + 3 + 1,
        full_prompt_blocks=2 + 3 + 2 + 1,
        output_tokens=1 + 1 + 2 + 3,
        gpu_hit_tokens=0,
        cpu_hit_tokens=8,
        disk_hit_tokens=0,
        gpu_hit_blocks=0,
        cpu_hit_blocks=2,
        disk_hit_blocks=0,
        block_tokens=4,
        seconds=2_063_165e-9,
        ttft=Spread.of(array("q", [18_145, 25_481, 52_124, 18_041])),
        time_per_output_token=Spread.of(array("q", [11_041, 22_046 // 2])),
        latency=Spread.of(array("q", [18_145, 25_481, 63_165, 40_087])),
        queueing=Spread.of(array("q", [0, 0, 0, 4000])),
        load_wait=Spread.of(array("q", [41_087])),
        preemptions=0,
        loads=Copies(1, 2, 32, 2033e-9),
        stores=Copies(3, 2 + 3 + 1, 96, 6099e-9),
        disk_reads=Copies(0, 0, 0, 0.0),
        disk_writes=Copies(0, 0, 0, 0.0),
        host_wait_seconds=0.0,
        steps=13,
        fused_steps=0,
        connector={},
        digest="",
    )


def test_without_a_connector_it_is_computed() -> None:
    books, answers = diary(trace_of(A, B, C), toy(gpu_blocks=4), connector=False)
    # 9 tokens that attend to 45: 10,000 + 9000 + 180 + 1.
    assert books.times[2] == Times(
        2_000_000, scheduled=2_000_000, first_token=2_019_181, end=2_030_222, local_tokens=0
    )
    assert (books.copies, answers.connector, answers.cpu_hit_tokens) == ([], {}, 0)


def test_what_is_on_the_gpu_is_found_there() -> None:
    books, answers = diary(trace_of(A, (1000, 9, 1, [1, 2, 7])), toy())
    assert books.times[1] == Times(
        1_000_000, scheduled=1_000_000, first_token=1_011_037, end=1_011_037, local_tokens=8
    )
    assert (answers.gpu_token_ratio, answers.gpu_block_ratio) == (8 / 17, 2 / 5)


def test_two_share_a_step() -> None:
    books, _ = diary(trace_of((0, 8, 2, [1, 2]), (0, 4, 1, [3])), toy())
    # 12 tokens, 36 + 10 pairs; then one token that attends to 9.
    assert [(t.first_token, t.end) for t in books.times.values()] == [(22_185, 22_185), (22_185, 33_222)]


def test_a_long_prompt_is_cut_into_steps() -> None:
    books, _ = diary(trace_of((0, 8, 1, [1, 2])), toy(max_step_tokens=8, max_running=8, gpu_blocks=4))
    assert books.times[0].end == 18_145
    books, _ = diary(trace_of((0, 12, 1, [1, 2, 3])), toy(max_step_tokens=8, max_running=8, gpu_blocks=4))
    # 8 tokens, 36 pairs: 18,145. Then 4 tokens that attend to 9 + 10 + 11 + 12.
    end = 18_145 + 10_000 + 4000 + 4 * 42 + 1
    assert books.times == {0: Times(0, scheduled=0, first_token=end, end=end, local_tokens=0)}


def test_the_host_waits_for_a_copy_that_still_reads_a_block() -> None:
    settings = toy(gpu_blocks=4, copy_microseconds=100.0)
    books, answers = diary(trace_of((0, 8, 1, [1, 2]), (20, 15, 1, [3, 4, 5, 6])), settings)
    assert books.copies[0] == Ended(0, 0, Direction.STORE, 2, 18_145, 218_178, True)
    # The second one's hooks run at 30,000, and the copy reads blocks that are now its own.
    assert books.times[1].end == 218_178 + 15_481
    assert (answers.host_wait_seconds, answers.seconds) == (188_178e-9, 233_659e-9)


def test_who_is_preempted_computes_what_is_not_found_again() -> None:
    trace = trace_of((0, 4, 6, [1]), (1, 4, 6, [2]))
    books, answers = diary(trace, toy(gpu_blocks=4))
    assert [times.first_token for times in books.times.values()] == [14_041, 29_102]
    # At 65,261 the first one needs a third block for its token 9, and there are two for each. The second one has 8
    # tokens then; the GPU still has its first block. It computes four tokens that attend to 26, and one to 9.
    assert [times.end for times in books.times.values()] == [76_298, 76_298 + 14_105 + 11_037]
    assert (answers.preemptions, answers.gpu_hit_tokens) == (1, 0)
    # It was scheduled when it was for the first time, at 0 as well.
    books, answers = diary(trace_of((0, 4, 6, [1]), (0, 4, 6, [2])), toy(gpu_blocks=4))
    assert [times.scheduled for times in books.times.values()] == [0, 0]
    assert (answers.preemptions, answers.queueing.worst) == (1, 0.0)


def test_who_is_preempted_after_its_first_token_has_had_it_then() -> None:
    settings = toy(gpu_blocks=3, max_running=2, max_step_tokens=3, connector=NOTHING)
    books, answers = diary(trace_of((0, 4, 8, [1]), (0, 4, 3, [2])), settings)
    first, second = (books.times[number] for number in (0, 1))
    # The first one takes the block that the second one needs for its token 5, and then the one that it had.
    assert (answers.preemptions, answers.gpu_hit_tokens) == (1, 0)
    assert first.first_token < second.first_token < first.end < second.end


def test_a_load_of_the_step_itself_is_waited_for() -> None:
    transfer = toy(gpu_blocks=4).transfer_config()
    transfer["kv_connector_extra_config"]["sync_load_budget_bytes"] = 1000
    books, answers = diary(trace_of(A, B, C), toy(gpu_blocks=4, connector=transfer))
    # At 2,010,000 the hooks run, and wait 2033 for the load.
    assert books.times[2].first_token == 2_012_033 + 1037
    assert (answers.host_wait_seconds, answers.load_wait) == (2033e-9, Spread.of(array("q", [0])))


def test_who_waits_for_ever_ends_a_replay_in_fused_steps_too() -> None:
    transfer = toy(gpu_blocks=4).transfer_config()
    transfer |= {"kv_connector": "SilentConnector", "kv_connector_module_path": "kv_sim_timed_broken"}
    with pytest.raises(Violation) as caught:
        diary(trace_of(A, B, C), toy(gpu_blocks=4, connector=transfer))
    assert str(caught.value) == (
        "LIVENESS  nothing is under way, and there are still requests: <request 2 waiting for a load 8/9>"
    )


def test_what_a_connector_is_told_of_the_memory() -> None:
    settings = toy(gpu_blocks=6)
    for engine_class, tells in ((QuickEngine, False), (CheckedEngine, True)):
        engine = engine_class(plan(settings, 4), timed_config(NOTHING, 1), lambda *call: None)
        caches, told = engine.describe_caches(), engine.describe(Subject("NoConnector"), 0)
        # Four tokens of 4 bytes; and the null block.
        assert [group.kv_cache_spec.page_size_bytes for group in caches.kv_cache_groups] == [16]
        assert [tensor.size for tensor in caches.kv_cache_tensors] == [16 * 7]
        assert [device.rank for device in engine.devices] == [0]
        assert told.kv_events_config.enable_kv_cache_events is tells
        assert told.kv_transfer_config.kv_connector == "NoConnector"
        config = told.scheduler_config
        assert (config.max_num_seqs, config.max_num_batched_tokens) == (8, 64)


def test_requests_that_are_too_long_are_counted() -> None:
    trace = trace_of((0, 8, 1, [1, 2]), (0, 12, 6, [1, 2, 3]), (0, 60, 8, []), (0, 0, 1, []), (1, 4, 0, [3]))
    answers = answer(trace, toy(gpu_blocks=4, max_model_len=64))
    assert answers.refused == {
        "is longer than all GPU blocks": 1,
        "is longer than the model's maximum": 1,
        "has no prompt": 1,
    }
    assert (answers.requests, answers.output_tokens) == (2, 2)  # whoever wants no token gets one
    nobody = answer(trace_of((7, 12, 6, [1, 2, 3])), toy(gpu_blocks=4))
    assert (nobody.requests, nobody.seconds, nobody.tokens_per_second, nobody.steps) == (0, 0.0, 0.0, 0)


@pytest.mark.parametrize(
    ("longest", "reason"), [(14, "is longer than the model's maximum"), (17, "is longer than all GPU blocks")]
)
def test_what_fits_exactly_is_replayed(longest: int, reason: str) -> None:
    settings = toy(gpu_blocks=4, max_model_len=longest)
    most = plan(settings, 4).most_tokens
    trace = trace_of((0, 1, 1, []), (1, most - 2, 2, []), (2, most - 2, 3, []), (3, most, 0, []))
    answers = answer(trace, settings)
    assert (most, answers.requests, answers.refused) == (min(longest, 16), 2, {reason: 2})


def test_who_is_not_taken_may_come_as_late_as_it_likes() -> None:
    late = 2e9 * 1e6
    answers = answer(trace_of((0, 4, 1, [1]), (late, 0, 1, [])), toy())
    assert (answers.requests, answers.refused) == (1, {"has no prompt": 1})
    with pytest.raises(ConfigError, match=r"^request 2 arrives after 2e\+09 s"):
        answer(trace_of((0, 4, 1, [1]), (late, 0, 1, []), (late, 4, 1, [1])), toy())


def test_a_request_is_put_off_while_what_it_needs_is_stored() -> None:
    """The second prompt is whole in a store that goes on: looked at three times, then its end is computed."""
    settings = toy(copy_microseconds=50.0)
    transfer = settings.transfer_config()
    transfer["kv_connector_extra_config"]["max_deferred_lookups"] = 3
    books, answers = diary(trace_of((0, 8, 1, [1, 2]), (20, 8, 1, [1, 2])), replace(settings, connector=transfer))
    assert books.copies == [Ended(0, 0, Direction.STORE, 2, 18_145, 118_178, True)]
    # At 20,000, 25,000 and 30,000; four tokens that attend to 5 + 6 + 7 + 8.
    assert books.times[1] == Times(20_000, scheduled=35_000, first_token=49_105, end=49_105, local_tokens=4)
    # Three that compute nothing, one that computes each prompt, and the ends: told at once, and of the copy.
    assert (answers.steps, answers.fused_steps, answers.seconds) == (8, 0, 49_105e-9)


def test_who_waits_long_for_what_is_stored_loads_it() -> None:
    books, answers = diary(trace_of((0, 8, 1, [1, 2]), (20, 8, 1, [1, 2])), toy(copy_microseconds=50.0))
    assert books.copies == [
        Ended(0, 0, Direction.STORE, 2, 18_145, 118_178, True),
        Ended(0, 1, Direction.LOAD, 1, 125_000, 175_017, True),
    ]
    # The load is planned in the step after the one that hears of the store's end, and heard of at 180,000.
    assert books.times[1] == Times(
        20_000,
        scheduled=125_000,
        first_token=196_033,
        end=196_033,
        load_wait=60_000,
        local_tokens=4,
        external_tokens=3,
    )
    assert (answers.steps, answers.fused_steps) == (37, 10)
    # Looked up at 20,000 for the first time, and every 5000 up to 125,000: a lookup itself takes no time.
    counted = {name: count for name, count in answers.connector.items() if "lookup" in name}
    assert counted == {
        "vllm:kv_offload_lookup_async_delay_seconds_count": 1,
        "vllm:kv_offload_lookup_async_delay_seconds_sum": 0.000105,
        "vllm:kv_offload_lookup_sync_delay_seconds_count": 23,
    }
