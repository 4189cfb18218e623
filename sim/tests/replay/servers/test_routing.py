"""Who gets what of a trace on several servers, and which session a request is of."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_sim_fleets import fleets, routed, traces
from kv_sim_slow_replay import BLOCK, trace_of

from kv_sim.replay import TraceOptions, columns, open_trace
from kv_sim.replay.columns import NO_SESSION
from kv_sim.replay.readers.requests.naming import IdScope
from kv_sim.replay.servers.fleet import Fleet, Load
from kv_sim.replay.servers.routers import make_router, route
from kv_sim.replay.servers.routing import Routing
from kv_sim.replay.trace import EngineMemory


def choices(router, requests):
    return [router.choose(NO_SESSION, ids, BLOCK * len(ids)) for ids in requests]


def test_a_round_goes_to_each_in_turn():
    assert choices(make_router(Routing.ROUND_ROBIN, 3, BLOCK), [[1]] * 7) == [0, 1, 2, 0, 1, 2, 0]


def test_a_session_stays_where_it_is_and_sessions_are_spread():
    router = make_router(Routing.SESSION, 4, BLOCK)
    first = [router.choose(session, [], 1) for session in range(400)]
    assert first[:10] == [make_router(Routing.SESSION, 4, BLOCK).choose(session, [1], 9) for session in range(10)]
    assert [router.choose(session, [2], 7) for session in range(400)] == first
    counts = [first.count(server) for server in range(4)]
    assert sum(counts) == 400 and min(counts) > 70, counts
    assert len({(after - before) % 4 for before, after in pairwise(first)}) > 1, "not in turn"


def test_a_request_of_no_session_is_one_by_itself():
    chosen = choices(make_router(Routing.SESSION, 4, BLOCK), [[1]] * 400)
    assert min(chosen.count(server) for server in range(4)) > 70
    router = make_router(Routing.SESSION, 4, BLOCK)
    assert all(chosen[:20] != [router.choose(first + place, [], 1) for place in range(20)] for first in (0, 1))


def test_a_session_is_dealt_out_by_a_hash_of_64_bits():
    def hashed(number):
        mixed = number * 0x9E3779B97F4A7C15 % 2**64
        return mixed ^ (mixed // 2**32)

    router = make_router(Routing.SESSION, 97, BLOCK)
    assert [router.choose(session, [], 1) for session in range(300)] == [hashed(one) % 97 for one in range(300)]
    # Who is of no session counts down from what no session is.
    assert choices(router, [[1]] * 50) == [hashed(-2 - place) % 97 for place in range(50)]


def test_one_server_needs_no_sessions():
    needs = {
        (servers, routing): Fleet(servers, routing).needs_sessions for servers in (1, 2) for routing in Routing
    }
    assert [key for key, needed in needs.items() if needed] == [(2, Routing.SESSION)]


def test_a_prompt_follows_its_prefix():
    router = make_router(Routing.PREFIX, 3, BLOCK)
    assert choices(router, [[1, 2], [3, 4], [5, 6]]) == [0, 1, 2], "who has least to compute gets what nobody had"
    assert choices(router, [[3, 4, 7], [5, 6, 8], [1, 2]]) == [1, 2, 0]
    assert choices(router, [[5, 6, 8, 9]]) == [2]


def test_a_prefix_is_left_where_it_saves_less_than_the_server_is_behind():
    router = make_router(Routing.PREFIX, 2, BLOCK)
    assert choices(router, [[1, *range(10, 20)], [1, 2], [1, 3]]) == [0, 1, 1]
    assert choices(router, [[1, *range(10, 25)]]) == [0], "it saves ten blocks"
    assert choices(router, [[1, 10]]) == [1], "it saves one"


def test_what_a_server_has_to_compute_fades():
    """It falls to a fifth in 12 requests to two servers, of which 8 count."""
    router = make_router(Routing.PREFIX, 2, BLOCK)
    assert choices(router, [[*range(10)]]) == [0]
    assert choices(router, [[100], [101]]) == [1, 1]
    assert choices(router, [[*range(10)]] * 12) == [0] * 12, "nothing of it is to compute"
    assert choices(router, [[*range(200, 203)], [300]]) == [1, 0]


class SlowRouter:
    """By prefix, from its description: keeps who was sent what, and has to compute what."""

    def __init__(self, servers, block_tokens):
        self.block_tokens = block_tokens
        self.sent = [set() for _ in range(servers)]
        self.loads = [0.0] * servers

    def choose(self, ids, tokens):
        costs = []
        for sent, load in zip(self.sent, self.loads, strict=True):
            found = next((place for place, one in enumerate(ids) if one not in sent), len(ids))
            costs.append(load + max(0, tokens - found * self.block_tokens))
        chosen = costs.index(min(costs))
        self.sent[chosen].update(ids)
        self.loads[chosen] = costs[chosen]
        self.loads = [load * (1 - 1 / (4 * len(self.loads))) for load in self.loads]
        return chosen


@given(requests=traces, servers=st.integers(1, 6))
def test_routing_by_prefix_is_as_described(requests, servers):
    made = trace_of(requests)
    router, slow = make_router(Routing.PREFIX, servers, BLOCK), SlowRouter(servers, BLOCK)
    expected = [slow.choose(one.blocks, one.input_tokens) for one in made]
    assert route(router, made).tolist() == expected


@given(requests=traces, fleet=fleets, seed=st.integers(0, 99))
def test_each_request_is_one_server_s(requests, fleet, seed):
    trace = routed(requests, fleet, seed)
    trace.check()
    assert len(trace.shares) == fleet.servers
    for share in trace.shares:
        expected = [requests[request] for request in share.requests.tolist()]
        assert [[*request.blocks] for request in share.columns] == expected
        for name in ("arrivals", "inputs", "outputs"):
            assert getattr(share.columns, name).tolist() == getattr(trace.columns, name)[share.requests].tolist()
    tokens = [share.columns.input_tokens for share in trace.shares]
    counts = [len(share.columns) for share in trace.shares]
    expected = Load(trace.fleet.routing.value, tuple(counts), tuple(tokens))
    assert trace.load == (expected if fleet.servers > 1 else None)


def test_a_check_finds_a_request_that_nobody_gets():
    trace = routed([[1], [1, 2], [3]], Fleet(2))
    del trace.shares[1]
    with pytest.raises(AssertionError, match="a request is in no share, or in two"):
        trace.check()


def test_a_check_finds_a_shape_that_is_of_other_prompts():
    trace = routed([[1], [1, 2], [3]], Fleet(2))
    trace.check()
    trace.routed_shape.length[0] += 1
    with pytest.raises(AssertionError):
        trace.check()


def test_how_much_more_the_busiest_gets():
    assert Load("prefix", (1, 1, 2), (10, 20, 60)).most == 2.0
    assert Load("prefix", (0, 0), (0, 0)).most == 0


def test_a_part_of_a_trace_that_lies_in_a_file_lies_in_one(monkeypatch, tmp_path):
    builder = columns.ColumnsBuilder(4)
    for index, ids in enumerate([[1, 2, 3], [4, 5, 6], [], [7]]):
        builder.add(index, BLOCK * len(ids), 1, ids)
    made = builder.finish("made", BLOCK)
    made.engine = EngineMemory(10, 100)
    part = made.of(np.array([1, 2, 3]))
    assert part.engine is made.engine
    assert isinstance(made.blocks, np.memmap) and isinstance(part.blocks, np.memmap)
    assert [[*request.blocks] for request in part] == [[4, 5, 6], [], [7]]
    assert part.arrivals.tolist() == [1, 2, 3]
    part.check()
    folder = part._folder.path
    assert folder.exists()
    assert not len(made.of(np.array([2])).blocks)
    del part
    assert not folder.exists(), "it goes with the part"


# Which session a request is of


def chat(time, name, parent):
    return {
        "timestamp": time, "input_length": 16, "output_length": 1, "hash_ids": [time + 1], "chat_id": name,
        "parent_chat_id": parent,
    }  # fmt: skip


def lookup(time, name):
    return {"timestamp": time, "request_id": name, "chunk_size": 64, "seq_len": 64, "chunk_hashes": [f"{time}"]}


@pytest.mark.parametrize(
    ("records", "sessions"),
    [
        ([chat(0, 7, -1), chat(1, 8, 7), chat(2, 9, -1), chat(3, 10, 8)], [0, 0, 1, 0]),
        ([lookup(0, "a"), lookup(1, "b"), lookup(2, "a")], [NO_SESSION] * 3),
    ],
)
@pytest.mark.parametrize("scope", list(IdScope))
def test_chats_that_go_on_are_a_session_and_lookups_are_none(tmp_path, records, sessions, scope):
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert open_trace(file, TraceOptions(sessions=True, scope=scope)).sessions.tolist() == sessions
    assert open_trace(file, TraceOptions(scope=scope)).sessions is None


def test_sessions_are_sorted_with_their_requests(tmp_path):
    file = tmp_path / "trace.json"
    calls = [[0, 30], [10, 20]]
    sessions = [
        {"id": "x", "block_size": 64, "requests": [{"t": t, "in": 64, "out": 1, "hash_ids": [t]} for t in times]}
        for times in calls
    ]
    file.write_text("".join(json.dumps(one) + "\n" for one in sessions))
    made = open_trace(file, TraceOptions(sessions=True))
    assert (made.arrivals.tolist(), made.sessions.tolist()) == ([0, 10, 20, 30], [0, 1, 1, 0])
    talks = [[5, 9], [2, 7]]
    said = [[{"role": who, "content": "x", "time": t} for t in talk for who in ("user", "bot")] for talk in talks]
    file.write_text("".join(json.dumps({"conversation": talk}) + "\n" for talk in said))
    made = open_trace(file, TraceOptions(sessions=True))
    assert (made.arrivals.tolist(), made.sessions.tolist()) == ([0, 3, 5, 7], [1, 0, 1, 0])
