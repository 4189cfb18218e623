"""Holds and pulls over TCP: two engines in one process, and their connectors called in an engine's order."""

import json
import threading
from contextlib import ExitStack, suppress

import numpy as np
import pytest
from kv_p2p_background import Background
from kv_p2p_engine import ALL, SIZE, Blocks, Request, kv_cache_config, spec, step, vllm_config
from kv_p2p_ipv6 import EITHER
from kv_p2p_tcp import BLOCKS, HOST, wait_for

from kv_api import KVConnectorOutput, KVConnectorRole, KVOutputAggregator
from kv_p2p import P2PConnector
from kv_p2p.sockets import listen

WANTED = {"do_remote_decode": True, "do_remote_prefill": False}
PROMPT = range(100, 110)


def free_port(host, count):
    """The first of so many ports at which nobody listens."""
    while True:
        with ExitStack() as taken, suppress(OSError):
            first = taken.enter_context(listen(host, 0)).getsockname()[1]
            for rank in range(1, count):
                taken.enter_context(listen(host, first + rank))
            return first


def as_table(blocks):
    """A block, or all of a group."""
    return tuple(blocks) if isinstance(blocks, list) else blocks


class Engine:
    """The connectors of an engine of some ranks, and their caches."""

    def __init__(self, role, seed, *, ranks=2, host=HOST, specs=ALL, **extra):
        random = np.random.default_rng(seed)
        extra = {"host": host, "port": free_port(host, ranks), **extra}
        self.port = extra["port"]

        layout = kv_cache_config(BLOCKS, specs, LAYERS if len(specs) > 1 else None)

        def connector(side, rank=0):
            return P2PConnector(vllm_config(role, tp=ranks, rank=rank, **extra), side, layout)

        self.scheduler = connector(KVConnectorRole.SCHEDULER)
        self.caches = [
            {f"layer{index}": random.integers(0, 256, (BLOCKS, SIZE, 3), dtype=np.uint8) for index in range(2)}
            for _ in range(ranks)
        ]
        self.workers = [connector(KVConnectorRole.WORKER, rank) for rank in range(ranks)]
        for worker, caches in zip(self.workers, self.caches, strict=True):
            worker.register_kv_caches(caches)
        self.aggregator = KVOutputAggregator(ranks)

    def step(self, tokens=0):
        """One step. Returns what all workers together reported."""
        metadata = self.scheduler.build_connector_meta(step(tokens))
        reports = []
        for worker in self.workers:
            worker.handle_preemptions(metadata)
            worker.bind_connector_metadata(metadata)
            worker.start_load_kv(None)
            for name in ("layer0", "layer1"):
                worker.wait_for_layer_load(name)
                worker.save_kv_layer(name, None, None)
            worker.wait_for_save()
            results = worker.get_transfer_results(set())
            reports.append(KVConnectorOutput(
                finished_sending=results.finished_sending,
                finished_recving=results.finished_recving,
                failed_recving=results.failed_recving,
                invalid_block_ids=worker.get_block_ids_with_load_errors(),
            ))  # fmt: skip
            worker.clear_connector_metadata()
            worker.side.check()
        output = self.aggregator.aggregate_reports(reports)
        self.scheduler.update_connector_output(output)
        self.scheduler.side.check()
        return output

    def step_until(self, ended):
        """Step until there is such a report. Returns it."""
        found = []

        def one_step():
            output = self.step()
            if ended(output):
                found.append(output)
            return found

        wait_for(one_step)
        return found[0]

    def compute(self, request, *blocks):
        """A request comes, computes its prompt and ends."""
        self.scheduler.on_new_request(request)
        assert self.scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
        self.scheduler.update_state_after_alloc(request, Blocks(*map(as_table, blocks)), 0)
        self.step(request.num_tokens)
        if isinstance(blocks[0], list):
            return self.scheduler.request_finished_all_groups(request, blocks)
        return self.scheduler.request_finished(request, list(blocks))

    def load(self, request, more, *blocks):
        """A request comes, and its prompt is loaded."""
        self.scheduler.on_new_request(request)
        assert self.scheduler.get_num_new_matched_tokens(request, 0) == (more, True)
        self.scheduler.update_state_after_alloc(request, Blocks(*map(as_table, blocks)), more)

    def block(self, number):
        return [caches[name][number].tobytes() for caches in self.caches for name in caches]

    @property
    def blocks(self):
        return [self.block(number) for number in range(BLOCKS)]

    def close(self):
        for worker in self.workers:
            Background(worker.shutdown).result()
        self.scheduler.shutdown()


@pytest.fixture
def engine():
    """Makes engines; after the test none of their threads is left."""
    before, made = {*threading.enumerate()}, []

    def make_one(*arguments, **options):
        made.append(Engine(*arguments, **options))
        return made[-1]

    yield make_one
    for one in made:
        one.close()
    assert {*threading.enumerate()} <= before


def sent(name):
    return lambda output: name in (output.finished_sending or ())


def received(name):
    return lambda output: name in (output.finished_recving or ())


def through_a_client(params):
    return json.loads(json.dumps(params))


@pytest.mark.parametrize("host", EITHER)
def test_a_prompt_is_held_and_pulled(engine, host):
    there, here = engine("kv_producer", 1, host=host), engine("kv_consumer", 2)
    hold, params = there.compute(Request("a", PROMPT, WANTED, output=[7]), 3, 1, 4)
    assert hold is True
    assert (params["remote_host"], params["remote_port"]) == (host, there.port)
    expected = here.blocks
    for source, target in ((3, 9), (1, 2), (4, 6)):
        expected[target] = there.block(source)
    there.step()
    request = Request("b", PROMPT, through_a_client(params), computed=0)
    here.load(request, 10, 9, 2, 6)
    output = here.step_until(received("b"))
    assert (output.failed_recving, output.invalid_block_ids) == (set(), set())
    assert here.blocks == expected
    there.step_until(sent("a"))
    for one in (there, here):
        assert not one.scheduler.has_pending_push_work()
        assert one.step().is_empty()
    here.scheduler.update_state_after_alloc(request, Blocks(9, 2, 6), 0)
    assert here.scheduler.request_finished(request, [9, 2, 6]) == (False, None)
    assert not here.scheduler.has_pending_push_work()


def test_the_beginning_of_a_longer_prompt_beyond_what_is_here(engine):
    there, here = engine("kv_both", 1, ranks=1), engine("kv_both", 2, ranks=1)
    _, params = there.compute(Request("a", PROMPT, WANTED), 3, 1, 4)
    there.step()
    expected = here.blocks
    expected[5] = there.block(1)
    request = Request("b", [*PROMPT, 1, 2, 3], through_a_client(params), computed=0)
    here.scheduler.on_new_request(request)
    assert here.scheduler.get_num_new_matched_tokens(request, 4) == (4, True)
    here.scheduler.update_state_after_alloc(request, Blocks(8, 5, 7, 10), 4)
    here.step_until(received("b"))
    there.step_until(sent("a"))
    assert here.blocks == expected


def test_nobody_wants_it(engine):
    there, here = engine("kv_producer", 1), engine("kv_consumer", 2)
    _, params = there.compute(Request("a", PROMPT, WANTED), 3, 1, 4)
    there.step()
    request = Request("b", PROMPT, through_a_client(params), computed=0)
    here.scheduler.on_new_request(request)
    here.scheduler.request_finished(request, [])
    here.step()
    there.step_until(sent("a"))


def test_its_ticket_comes_with_the_wrong_prompt(engine):
    there, here = engine("kv_producer", 1), engine("kv_consumer", 2)
    before = here.blocks
    _, params = there.compute(Request("a", PROMPT, WANTED), 3, 1, 4)
    there.step()
    here.compute(Request("b", range(10), through_a_client(params)), 1, 2, 3)
    here.step()
    there.step_until(sent("a"))  # it was declined
    assert here.blocks == before


def test_its_ticket_is_used_twice(engine):
    there, here = engine("kv_producer", 1), engine("kv_consumer", 2)
    before = here.blocks
    _, params = there.compute(Request("a", PROMPT, WANTED), 3, 1, 4)
    there.step()
    here.load(Request("b", PROMPT, through_a_client(params), computed=0), 10, 1, 2, 3)
    here.step_until(received("b"))
    there.step_until(sent("a"))
    late = Request("c", PROMPT, through_a_client(params), computed=0)
    here.load(late, 10, 4, 5, 6)
    output = here.step_until(received("c"))
    assert output.failed_recving == {"c"}
    assert output.invalid_block_ids == {4, 5, 6}
    assert here.blocks[4:] == before[4:]
    assert here.scheduler.get_num_new_matched_tokens(late, 0) == (0, False)


def test_its_time_is_over(engine):
    there, here = engine("kv_producer", 1, hold_seconds=0.001), engine("kv_consumer", 2)
    before = here.blocks
    _, params = there.compute(Request("a", PROMPT, WANTED), 3, 1, 4)
    there.step_until(sent("a"))
    here.load(Request("b", PROMPT, through_a_client(params), computed=0), 10, 1, 2, 3)
    output = here.step_until(received("b"))
    assert (output.failed_recving, output.invalid_block_ids) == ({"b"}, {1, 2, 3})
    assert here.blocks == before


def test_the_producer_is_gone(engine):
    there, here = engine("kv_producer", 1), engine("kv_consumer", 2)
    _, params = there.compute(Request("a", PROMPT, WANTED), 3, 1, 4)
    there.step()
    there.close()
    here.load(Request("b", PROMPT, through_a_client(params), computed=0), 10, 1, 2, 3)
    output = here.step_until(received("b"))
    assert (output.failed_recving, output.invalid_block_ids) == ({"b"}, {1, 2, 3})


def test_the_producer_forgets_its_cache(engine):
    there, here = engine("kv_producer", 1), engine("kv_consumer", 2)
    _, params = there.compute(Request("a", PROMPT, WANTED), 3, 1, 4)
    there.step()
    assert there.scheduler.reset_cache() is True
    assert sent("a")(there.step())
    here.load(Request("b", PROMPT, through_a_client(params), computed=0), 10, 1, 2, 3)
    assert here.step_until(received("b")).failed_recving == {"b"}


def test_an_engine_pulls_from_itself(engine):
    one = engine("kv_both", 1)
    _, params = one.compute(Request("a", PROMPT, WANTED), 3, 1, 4)
    expected = one.blocks
    for source, target in ((3, 9), (1, 2), (4, 6)):
        expected[target] = one.block(source)
    one.load(Request("b", PROMPT, through_a_client(params), computed=0), 10, 9, 2, 6)
    seen = {"a": False, "b": False}

    def both():
        output = one.step()
        seen["a"] |= sent("a")(output)
        seen["b"] |= received("b")(output)
        return all(seen.values())

    wait_for(both)
    assert one.blocks == expected


def test_caches_that_are_registered_again(engine):
    """The old wire lets go of its port first, and what is pulled comes from the new caches."""
    there, here = engine("kv_producer", 1, ranks=1), engine("kv_consumer", 2, ranks=1)
    there.caches[0] = {name: np.ascontiguousarray(cache[::-1]) for name, cache in there.caches[0].items()}
    there.workers[0].register_kv_caches(there.caches[0])
    _, params = there.compute(Request("a", PROMPT, WANTED), 3, 1, 4)
    there.step()
    here.load(Request("b", PROMPT, through_a_client(params), computed=0), 10, 9, 2, 6)
    here.step_until(received("b"))
    assert [here.block(block) for block in (9, 2, 6)] == [there.block(block) for block in (3, 1, 4)]


def test_a_consumer_does_not_listen(engine):
    """So two of them may have the same port."""
    one = engine("kv_consumer", 1)
    engine("kv_consumer", 2, port=one.port)
    assert not [thread for thread in threading.enumerate() if "server" in thread.name]


SPECS = (spec(4), spec(8, window=9))
LAYERS = [["layer0"], ["layer1"]]


@pytest.mark.parametrize(("more", "loaded"), [(0, 18), (5, 16)])
def test_a_prompt_of_two_groups_is_held_and_pulled(engine, more, loaded):
    """Of the second one, whose blocks are twice as long, one has slid out of its window."""
    there, here = (engine(role, seed, specs=SPECS) for role, seed in (("kv_producer", 1), ("kv_consumer", 2)))
    prompt = range(30, 49)
    hold, params = there.compute(Request("a", prompt, WANTED, output=[7]), [3, 1, 4, 5, 6], [0, 8, 9])
    assert hold is True
    expected = here.blocks
    tables = [9, 2, 6, 7, 8], [0, 10, 11]
    places = -(-loaded // 4), -(-loaded // 8)
    for layer, (sources, targets) in enumerate(zip(([3, 1, 4, 5, 6], [0, 8, 9]), tables, strict=True)):
        for source, target in list(zip(sources, targets, strict=True))[: places[layer]]:
            for rank in range(2) if target else ():
                parts = expected[target]
                parts[2 * rank + layer] = there.block(source)[2 * rank + layer]
    there.step()
    request = Request("b", [*prompt, *range(more)], through_a_client(params), computed=0)
    here.load(request, loaded, *(table[:count] for table, count in zip(tables, places, strict=True)))
    assert here.step_until(received("b")).failed_recving == set()
    assert here.blocks == expected
    there.step_until(sent("a"))
    for one in (there, here):
        assert not one.scheduler.has_pending_push_work()


def test_a_failed_pull_of_two_groups_is_told_by_request(engine):
    there, here = (engine(role, seed, specs=SPECS) for role, seed in (("kv_producer", 1), ("kv_consumer", 2)))
    _, params = there.compute(Request("a", PROMPT, WANTED), [3, 1, 4], [8, 9])
    there.step()
    there.close()
    here.load(Request("b", PROMPT, through_a_client(params), computed=0), 9, [1, 2, 3], [4, 5])
    output = here.step_until(received("b"))
    assert (output.failed_recving, output.invalid_block_ids) == ({"b"}, set())
