"""What a long prompt costs the scheduler: nothing that grows with what happened before, and little for a chunk.

And what it costs the engine itself: its objects are as quick to read as they were.
"""

import gc
import sys
from functools import cached_property

import pytest
from kv_offload_calls import key, report
from kv_offload_configs import FULL, STATE, WINDOW, Blocks, Request, kv_cache_config, step
from kv_offload_medium import Known, ScriptedSpec, Slots
from kv_offload_pool import Pool
from kv_offload_work import work_of

from kv_api import CacheHitSource, KVConnectorOutput, LookupResult, PrefixLookup, PrepareStoreOutput
from kv_offload import OffloadingWorkerMetadata

HIT, PENDING, MISS = LookupResult.HIT, LookupResult.HIT_PENDING, LookupResult.MISS


class Boundless(Known):
    """Has all chunks or none, has room for all, and does nothing chunk by chunk."""

    def lookup_prefix(self, keys, req_context):
        return PrefixLookup(len(keys), HIT) if self.known else PrefixLookup(0, MISS)

    def lookup(self, key, req_context):
        return HIT if self.known else MISS

    def get_load_source(self, key, req_context):
        return CacheHitSource.HOST

    def prepare_load(self, keys, req_context):
        return Slots(range(len(keys)))

    def prepare_store(self, keys, req_context):
        return PrepareStoreOutput(keys, Slots(range(len(keys))), [])


class Prompt(Request):
    """Its hashes are there before it is asked for them, as an engine's are."""

    @cached_property
    def block_hashes(self):
        return [b"%08d" % number for number in range(len(self.tokens) // self.per_hash)]


@pytest.fixture
def connect(make):
    def connect_to(manager, **extra):
        ScriptedSpec.manager = manager
        return make(hold_blocks="never", **extra)

    return connect_to


def work_of_a_hit(connector, name, chunks, begun=0):
    """A prompt of so many chunks is all there; the engine has the first `begun` tokens."""
    request, table = Prompt(name, range(4 * chunks + 1)), Blocks([*range(1, chunks + 2)])
    request.block_hashes  # noqa: B018

    def found_and_loaded():
        tokens, _ = connector.get_num_new_matched_tokens(request, begun)
        assert tokens == 4 * chunks - begun
        connector.update_state_after_alloc(request, table, tokens)
        assert connector.get_external_cache_hit_sources(request, tokens) == {CacheHitSource.HOST: tokens}

    connector.on_new_request(request)
    return work_of(found_and_loaded)


@pytest.mark.parametrize("begun", [0, 40])
def test_a_chunk_that_is_found_costs_little_however_many_there_are(connect, begun):
    connector = connect(Boundless({"all": HIT}))
    work_of_a_hit(connector, "warm", 64)
    few, some, many = (work_of_a_hit(connector, f"r{chunks}", chunks, begun) for chunks in (64, 512, 4096))
    assert (some - few) / (512 - 64) < 25, "bytecodes for a chunk"  # asking each for its source takes most of them
    assert (many - some) / (4096 - 512) < 25, "bytecodes for a chunk"


def test_waiting_for_room_costs_as_much_for_a_long_prompt_as_for_a_short_one(connect):
    """An engine that has no blocks for a request asks again in each step."""
    connector = connect(Boundless({"all": HIT}))
    again = {}
    for chunks in (64, 4096):
        request = Prompt(f"r{chunks}", range(4 * chunks + 1))
        connector.on_new_request(request)
        assert connector.get_num_new_matched_tokens(request, 0) == (4 * chunks, True)
        connector.build_connector_meta(step())
        again[chunks] = work_of(lambda request=request: connector.get_num_new_matched_tokens(request, 0))
        connector.build_connector_meta(step())
    assert again[4096] == again[64]


def test_steps_of_a_long_prompt_cost_no_more_at_its_end(connect):
    connector, per_step, steps, done = connect(Boundless({})), 32, 100, []
    request = Prompt("r", range(4 * per_step * steps))
    connector.on_new_request(request)
    work, stored, jobs = [], [], []

    def one_step(number):
        table = [*range(1 + number * per_step, 1 + (number + 1) * per_step)]
        if number:
            told = step(more=[("r", (table,))], counts={"r": 4 * per_step})
        else:
            connector.get_num_new_matched_tokens(request, 0)
            connector.update_state_after_alloc(request, Blocks(table), 0)
            told = step(new=[("r", (table,))], counts={"r": 4 * per_step})
        meta = connector.build_connector_meta(told)
        request.num_computed_tokens += 4 * per_step
        done[:] = meta.store_jobs
        jobs.append(len(done))
        for job in meta.store_jobs.values():
            stored.extend(job.src_spec.block_ids.tolist())

    for number in range(steps):
        report(connector, done=done)
        work.append(work_of(lambda number=number: one_step(number)))
    assert stored == [*range(1, 1 + per_step * steps)]
    assert (sum(jobs[:10]), sum(jobs[-20:])) == (9, 3), "jobs"
    assert sum(work[90:]) < sum(work[5:15])


def test_the_end_of_a_request_with_nothing_new_is_planned_by_nobody(connect):
    """What was complete has been offered, so that its keys, its offers and its table don't matter any more."""
    connector, work = connect(Boundless({})), {}
    for more in (0, 1):
        request, table = Prompt(f"r{more}", range(4 * (8 + more) + 1)), [*range(1, 10)]
        connector.on_new_request(request)
        connector.get_num_new_matched_tokens(request, 0)
        connector.update_state_after_alloc(request, Blocks(table), 0)
        meta = connector.build_connector_meta(step(new=[(request.request_id, (table,))], counts={f"r{more}": 32}))
        report(connector, done=[*meta.store_jobs])
        request.num_computed_tokens = 4 * (8 + more)
        work[more] = work_of(lambda: connector.request_finished_all_groups(request, (table,)))  # noqa: B023
        assert len(connector.build_connector_meta(step()).store_jobs) == more
    assert work[0] < 0.4 * work[1], f"bytecodes {work}"


@pytest.mark.parametrize(
    ("window", "first", "most"),
    [(5, 0, 10), (5, 1, 25)],
    ids=["all of it", "what comes after a null block"],
)
def test_a_chunk_of_a_window_that_is_stored_costs_little_however_many_there_are(connect, window, first, most):
    connector = connect(Boundless({}), cache=kv_cache_config(((FULL, 4, 0), (WINDOW, 4, window))))
    work = {}
    for chunks in (512, 4096):
        request, blocks = Prompt(f"r{chunks}", range(4 * chunks)), range(1, chunks + 1)
        connector.on_new_request(request)
        request.block_hashes  # noqa: B018
        connector.get_num_new_matched_tokens(request, 0)
        table = [*blocks], [0] * first + [block + 10_000 for block in blocks[first:]]
        connector.update_state_after_alloc(request, Blocks(*table), 0)
        told, met = step(new=[(request.request_id, table)], counts={request.request_id: 4 * chunks}), []
        work[chunks] = work_of(lambda told=told, met=met: met.append(connector.build_connector_meta(told)))
        (job,) = met[0].store_jobs.values()
        assert job.gpu_spec.group_sizes == (chunks, chunks - first)
    assert (work[4096] - work[512]) / (4096 - 512) < most, "bytecodes for a chunk of each group"


class Scripted(Known):
    """Counts the keys that it is shown."""

    def lookup_prefix(self, keys, req_context):
        self.shown = getattr(self, "shown", 0) + len(keys)
        return super().lookup_prefix(keys, req_context)


@pytest.mark.parametrize(
    ("answers", "found"),
    [([PENDING] * 1000, (None, False)), ([HIT, PENDING] * 500, (None, False)), ([HIT] * 1000, (4000, True))],
)
def test_what_is_not_readable_yet_has_nobody_look_at_all_the_rest(connect, answers, found):
    manager = Scripted({})
    connector = connect(manager)
    request = Prompt("r", range(4001))
    connector.on_new_request(request)
    manager.known = {key(request, chunk): answer for chunk, answer in enumerate(answers)}
    assert connector.get_num_new_matched_tokens(request, 0) == found
    connector.build_connector_meta(step())
    assert manager.shown < 3 * len(answers), "keys shown"
    again = answers[0] is HIT  # the first is asked for by itself before
    assert len(manager.asked) == len({*manager.asked}) + again


def test_waiting_for_chunks_costs_as_much_for_many_as_for_few(connect):
    """The engine asks again in each step."""
    work = {}
    for chunks in (10, 10, 1000):  # what only the first call does is not counted
        manager = Scripted({})
        connector, request = connect(manager), Prompt("r", range(4 * chunks + 1))
        connector.on_new_request(request)
        manager.known = {key(request, chunk): PENDING if chunk % 2 else HIT for chunk in range(chunks)}
        assert connector.get_num_new_matched_tokens(request, 0) == (None, False)
        manager.asked.clear()
        work[chunks] = work_of(lambda connector=connector, r=request: connector.get_num_new_matched_tokens(r, 0))
        assert manager.asked == [key(request, chunks - 1)]
        connector.build_connector_meta(step())
    assert work[1000] == work[10]


def many_are_stored(connector, requests, tables=None, **told):
    """All of them begin in one step, which stores what they have."""
    new, counts = [], {}
    for number, request in enumerate(requests):
        connector.on_new_request(request)
        connector.get_num_new_matched_tokens(request, 0)
        table = ([4 * number + 1, 4 * number + 2],) if tables is None else tables[number]
        connector.update_state_after_alloc(request, Blocks(*table), 0)
        new.append((request.request_id, table))
        counts[request.request_id] = request.num_tokens
    return connector.build_connector_meta(step(new=new, counts=counts, **told)).store_jobs


def prompts(name, count, tokens=9):
    return [Prompt(f"{name}{number}", range(tokens)) for number in range(count)]


def test_each_load_that_fails_costs_the_same_however_many_stores_are_under_way(connect):
    manager, work = Boundless({}), {}
    for count in (20, 200):
        connector = connect(manager)
        manager.known = {}
        many_are_stored(connector, prompts("stored", count))
        manager.known = {"all": HIT}
        for request in prompts("loaded", count):
            connector.on_new_request(request)
            assert connector.get_num_new_matched_tokens(request, 0) == (8, True)
            connector.update_state_after_alloc(request, Blocks([1000, 1001, 1002]), 8)
        loads = [*connector.build_connector_meta(step()).load_jobs]
        meta = OffloadingWorkerMetadata(dict.fromkeys(loads, 1), dict.fromkeys(loads, 1))
        output = KVConnectorOutput(kv_connector_worker_meta=meta)
        work[count] = work_of(lambda connector=connector, output=output: connector.update_connector_output(output))
    assert work[200] < 10.5 * work[20]


def test_blocks_that_were_not_filled_cost_each_request_the_same_however_many_there_are(connect):
    work = {}
    for count in (20, 200):
        connector = connect(Boundless({}))
        stores = many_are_stored(connector, prompts("r", count))
        output = KVConnectorOutput(invalid_block_ids={4 * number + 2 for number in range(count)})
        work[count] = work_of(lambda connector=connector, output=output: connector.update_connector_output(output))
        assert connector.build_connector_meta(step()).jobs_to_flush == {*stores}
    assert work[200] < 10.5 * work[20]


def test_blocks_of_others_that_were_not_filled_cost_a_long_request_no_more_than_a_short_one(connect):
    work = {}
    for blocks in (4, 4, 400):  # what only the first call does is not counted
        connector, request = connect(Boundless({})), Prompt("r", range(4 * blocks))
        many_are_stored(connector, [request], [([*range(1, blocks + 1)],)])
        output = KVConnectorOutput(invalid_block_ids={5000, 5001})
        work[blocks] = work_of(
            lambda connector=connector, output=output: connector.update_connector_output(output)
        )
    assert work[400] == work[4]


def test_a_step_costs_the_same_however_many_requests_may_lose_blocks_in_it(connect):
    """Whoever waits or runs may have had a fresh block in its window; only who has it is looked at."""
    work, windows = {}, kv_cache_config(((FULL, 4, 0), (WINDOW, 4, 5)))
    for count in (20, 200):
        connector = connect(Boundless({}), cache=windows)
        first = range(1, 10 * count, 10)
        many_are_stored(
            connector, prompts("r", count), [([b, b + 1, b + 2], [b + 3, b + 4, b + 5]) for b in first]
        )
        for request in prompts("waiting", count):
            connector.on_new_request(request)
        told = step(more=[("r1", ([8001], [8002])), ("r2", ([4], [5]))], counts={"r1": 1, "r2": 1})
        work[count] = work_of(lambda connector=connector, told=told: connector.build_connector_meta(told))
    assert work[200] == work[20]


class Roomy(Known):
    """Says what it was told to, and has room for all."""

    prepare_store = Boundless.prepare_store


def test_whether_a_tail_is_being_stored_costs_the_same_however_many_stores_are_under_way(connect):
    work, states = {}, kv_cache_config(((FULL, 16, 0), (STATE, 16, 0)), hands_over=True, tokens_per_hash=4)
    for count in (4, 40):
        manager = Roomy({})
        connector = connect(manager, cache=states)
        first = range(1, 10 * count, 10)
        stores = many_are_stored(
            connector,
            prompts("r", count, tokens=28),
            [([block, block + 1], [0, block + 2]) for block in first],
            offers={f"r{number}": [(1, block + 3, 28)] for number, block in enumerate(first)},
            copies={block + 3: block + 2 for block in first},
        )
        assert len(stores) == 2 * count
        # Everybody's tokens are the same, and so are their tails.
        manager.known = {key(Prompt("r", range(28)), 6, group=group): PENDING for group in (0, 1)}
        asked = Prompt("asked", range(32))
        connector.on_new_request(asked)
        found = []
        work[count] = work_of(lambda: found.append(connector.get_num_new_matched_tokens(asked, 16)))  # noqa: B023
        assert found == [(0, False)]
        connector.build_connector_meta(step())
    assert work[40] == work[4]


def has_a_dictionary(thing, attribute):
    """Whether its attributes have been moved to one, as some Pythons do once anybody looks at `__dict__`."""
    return any(type(held) is dict and attribute in held for held in gc.get_referents(thing))


def test_the_engines_objects_are_read_without_their_dictionaries(connect):
    """Each attribute takes longer to read ever after, and an engine's pool reads some for a block."""
    connector, request, pool = connect(Boundless({})), Request("r", range(33)), Pool()
    blocks = Blocks([*range(1, 10)])
    connector.bind_gpu_block_pool(pool)
    connector.on_new_request(request)
    connector.get_num_new_matched_tokens(request, 0)
    connector.update_state_after_alloc(request, blocks, 0)
    meta = connector.build_connector_meta(step(new=[("r", blocks.tables)], counts={"r": 32}))
    report(connector, done=[*meta.store_jobs])
    request.num_computed_tokens = 32
    connector.request_finished_all_groups(request, blocks.tables)
    for thing, attribute in ((request, "tokens"), (blocks, "tables"), (pool, "held")):
        assert not has_a_dictionary(thing, attribute), f"somebody has looked into {thing}"
        moved = bool(vars(thing)) and has_a_dictionary(thing, attribute)
        assert moved == (sys.version_info[:2] != (3, 13)), f"it can't be told of {thing}"
