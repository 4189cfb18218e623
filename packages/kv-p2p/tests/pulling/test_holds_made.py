"""The scheduler's side, of an engine whose requests are to be held for another one."""

import json
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest
from kv_p2p_engine import OPTIONS, Blocks, Request, scheduler, shape, spec, step, ticket_of

from kv_api import KVConnectorHandshakeMetadata, KVConnectorOutput
from kv_p2p.pulling.metadata import Hold, P2PMetadata, Part, Pull
from kv_p2p.pulling.stats import HELD_BLOCKS, REFUSED_HOLDS
from kv_p2p.pulling.ticket import Address, digest_of, read_ticket

WANTED = {"do_remote_decode": True, "do_remote_prefill": False}
TOKENS = range(10)
NOTHING = (False, None)


def ended(half, request, blocks=(7, 8, 9)):
    half.on_new_request(request)
    half.get_num_new_matched_tokens(request, 0)
    half.update_state_after_alloc(request, Blocks(*blocks), 0)
    return half.request_finished(request, list(blocks))


def told(half):
    return half.build_connector_meta(step())


def test_what_is_wanted_is_held_and_has_a_ticket(make):
    half = make("kv_producer", tp=2, pp=3)
    request = Request("a", TOKENS, WANTED, output=[77])
    hold, params = ended(half, request, (7, 8, 9, 10))
    assert hold is True
    ticket = read_ticket(json.loads(json.dumps(params)))
    assert params == ticket.to_params("engine")
    digest = digest_of(request, 10)
    assert (ticket.address, ticket.shape) == (Address(OPTIONS.host, OPTIONS.port), shape(tp=2, pp=3))
    assert (ticket.hold_id, ticket.digest, ticket.num_tokens) == ("a.1", digest, 10)
    assert half.has_pending_push_work()
    assert told(half) == P2PMetadata(holds=[Hold("a", "a.1", digest, ((7, 8, 9),))])
    half.check()
    assert told(half) == P2PMetadata()
    assert half.has_pending_push_work()
    half.update_connector_output(KVConnectorOutput(finished_sending={"a", "somebody else's"}))
    assert not half.has_pending_push_work()


def test_no_more_is_held_than_may_be(make, caplog):
    half = make(options=replace(OPTIONS, max_held_blocks=5))
    assert ended(half, Request("a", TOKENS, WANTED))[0]
    assert ended(half, Request("b", TOKENS, WANTED), (3, 4, 5)) == NOTHING
    assert caplog.messages == [
        "request b: 3 more blocks are to be held, but 3 are held and max_held_blocks is 5 (if not set, a third of "
        "the blocks of an engine that is kv_both; one that only prefills should be a kv_producer, which has no "
        "limit); it isn't held; 1 so far, and the next warning is at 2"
    ]
    assert ended(half, Request("c", range(8), WANTED), (3, 4))[0]
    assert ended(half, Request("d", TOKENS), (5, 6, 10)) == NOTHING
    assert half.get_kv_connector_stats().data == {HELD_BLOCKS: 5, REFUSED_HOLDS: 1}
    assert [hold.request_id for hold in told(half).holds] == ["a", "c"]
    half.update_connector_output(KVConnectorOutput(finished_sending={"a"}))
    assert ended(half, Request("b", TOKENS, WANTED), (7, 8, 9))[1]["remote_request_id"] == "b.3"
    half.check()
    half._producer._max_held_blocks = 4
    with pytest.raises(AssertionError, match="5 blocks are held, at most 4"):
        half.check()
    half._producer._max_held_blocks = 5


def test_a_block_of_several_holds_counts_once(make):
    """All prompts begin alike: their beginning is in the same blocks."""
    half = make(options=replace(OPTIONS, max_held_blocks=5))
    for name, own, held in (("a", 7, 3), ("b", 8, 4), ("c", 9, 5)):
        assert ended(half, Request(name, TOKENS, WANTED), (1, 2, own))[0]
        assert half.get_kv_connector_stats().data == {HELD_BLOCKS: held}
    assert ended(half, Request("d", TOKENS, WANTED), (1, 2, 10)) == NOTHING
    told(half)
    for name, held in (("b", 4), ("a", 3), ("c", 0)):
        half.update_connector_output(KVConnectorOutput(finished_sending={name}))
        half.check()
        assert half.get_kv_connector_stats().data[HELD_BLOCKS] == held


def test_two_groups_may_call_two_blocks_by_one_number(make):
    half = make(specs=(spec(), spec()))
    assert half.request_finished_all_groups(Request("a", TOKENS, WANTED), ([7, 8, 9], [7, 8, 9]))[0]
    assert half.get_kv_connector_stats().data == {HELD_BLOCKS: 6}


def test_refusals_are_said_ever_more_rarely(make, caplog):
    """Also where what is held goes down to nothing after each, as in an engine with too much to do."""
    half = make(options=replace(OPTIONS, max_held_blocks=3))
    said = []
    for number in range(1, 41):
        assert ended(half, Request(f"a{number}", TOKENS, WANTED))[0]
        assert ended(half, Request(f"b{number}", TOKENS, WANTED), (13, 14, 15)) == NOTHING
        if caplog.messages:
            [message] = caplog.messages
            said.append((message.split(":")[0], message.split("; ")[-1]))
            caplog.clear()
        told(half)
        half.update_connector_output(KVConnectorOutput(finished_sending={f"a{number}"}))
    assert said == [
        (f"request b{number}", f"{number} so far, and the next warning is at {2 * number}")
        for number in (1, 2, 4, 8, 16, 32)
    ]
    assert half.get_kv_connector_stats().data == {HELD_BLOCKS: 0, REFUSED_HOLDS: 40}


def test_who_has_no_hold_here_hides_none_of_those_who_have(make):
    half = make()
    assert ended(half, Request("a", TOKENS, WANTED))[0]
    told(half)
    in_this_order = dict.fromkeys(["somebody else's", "a"]).keys()
    half.update_connector_output(KVConnectorOutput(finished_sending=in_this_order))
    half.check()
    assert not half.has_pending_push_work()


def test_an_output_is_kept_with_its_prompt_so_it_counts_too(make):
    half = make(options=replace(OPTIONS, max_held_blocks=5))
    longer = Request("a", range(8), WANTED, output=[1] * 9)
    assert ended(half, longer, (1, 2, 3, 4, 5, 6)) == NOTHING
    assert ended(half, longer, (1, 2, 3, 4, 5))[0]
    assert half.get_kv_connector_stats().data == {HELD_BLOCKS: 5, REFUSED_HOLDS: 1}


# -- who gives way ---------------------------------------------------------------------------------


@pytest.fixture
def crowded(make):
    """Of 15 blocks and the null block 5 may be held, and 3 are. A request with a ticket waits for blocks."""
    half = make(options=replace(OPTIONS, max_held_blocks=5))
    assert ended(half, Request("a", TOKENS, WANTED))[0]
    half.on_new_request(Request("t", range(8), ticket_of(range(8)).to_params("there")))
    return half


def answer(half, request):
    return half.get_num_new_matched_tokens(request, 0)


GIVES_WAY = (None, False)
GOES_ON = (0, False)


@pytest.mark.parametrize(
    ("tokens", "params", "expected"),
    [
        (8, WANTED, GOES_ON),  # 3 + 2 blocks
        (9, WANTED, GIVES_WAY),  # 3 + 3
        (9, {}, GOES_ON),
        (20, WANTED, GIVES_WAY),
        (21, WANTED, GOES_ON),  # it is never held
        (44, WANTED, GOES_ON),  # 3 + 11 blocks, and one for the next token
        (45, WANTED, GIVES_WAY),
        (44, None, GOES_ON),
        (45, None, GIVES_WAY),
    ],
)
def test_who_finds_no_room_beside_what_is_held_lets_tickets_go_first(crowded, tokens, params, expected):
    assert answer(crowded, Request("b", range(tokens), params, computed=0)) == expected


@pytest.mark.parametrize("ends", ["it is pulled", "it goes away", "a reset"])
def test_nobody_gives_way_if_nobody_waits_with_a_ticket(crowded, ends):
    wanted = Request("b", TOKENS, WANTED, computed=0)
    assert answer(crowded, wanted) == GIVES_WAY
    bearer = Request("t", range(8))
    if ends == "it is pulled":
        assert answer(crowded, bearer) == (8, True)
        crowded.update_state_after_alloc(bearer, Blocks(1, 2), 8)
    elif ends == "it goes away":
        crowded.request_finished(bearer, [])
    else:
        crowded.reset_cache()
    assert answer(crowded, wanted) == GOES_ON


@pytest.mark.parametrize("is_wanted", [False, True])
def test_who_has_a_ticket_gives_way_to_nobody(crowded, is_wanted):
    """However long its prompt is, and if it is to be held itself: its pull ends a hold."""
    ticket = ticket_of(range(60)).to_params("there")
    bearer = Request("b", range(60), {**ticket, "do_remote_decode": is_wanted}, computed=0)
    crowded.on_new_request(bearer)
    assert answer(crowded, bearer) == (60, True)


def test_who_was_begun_to_be_held_counts_until_it_ends(crowded):
    first, second = (Request(name, range(8), WANTED, computed=0) for name in "bc")
    assert answer(crowded, first) == answer(crowded, second) == GOES_ON
    crowded.update_state_after_alloc(first, Blocks(1, 2), 0)
    crowded.update_state_after_alloc(first, Blocks(1, 2), 0)
    crowded.check()
    assert (answer(crowded, first), answer(crowded, second)) == (
        GOES_ON,
        GIVES_WAY,
    )  # the first: if it is preempted
    first.status.name = "FINISHED_ABORTED"
    crowded.request_finished(first, [1, 2])
    assert answer(crowded, second) == GOES_ON


def test_where_nothing_is_held_nothing_is_waited_for(make):
    half = make(options=replace(OPTIONS, max_held_blocks=5))
    half.on_new_request(Request("t", range(8), ticket_of(range(8)).to_params("there")))
    assert answer(half, Request("b", range(99), None, computed=0)) == GOES_ON


def test_who_holds_nothing_waits_for_no_holds(make):
    """A router may ask an engine that only pulls for a hold; it makes none, so it needs no room for any."""
    half = make("kv_consumer", options=replace(OPTIONS, max_held_blocks=5))
    half.on_new_request(Request("t", range(8), ticket_of(range(8)).to_params("there")))
    for name in "bc":
        wanted = Request(name, TOKENS, WANTED, computed=0)
        assert answer(half, wanted) == GOES_ON
        half.update_state_after_alloc(wanted, Blocks(1, 2, 3), 0)


def test_without_a_limit_nobody_gives_way(make):
    half = make()
    assert ended(half, Request("a", TOKENS, WANTED))[0]
    half.on_new_request(Request("t", range(8), ticket_of(range(8)).to_params("there")))
    assert answer(half, Request("b", range(99), WANTED, computed=0)) == GOES_ON


def test_of_windows_what_has_slid_out_counts_for_nothing(make):
    specs = (spec(), spec(window=5))
    for most, is_held in ((5, True), (4, False)):
        half = make(specs=specs, options=replace(OPTIONS, max_held_blocks=most))
        request = Request("a", range(12), WANTED)
        half.on_new_request(request)
        half.update_state_after_alloc(request, Blocks(7, 8, 9), 0)
        assert half.request_finished_all_groups(request, ([7, 8, 9], [0, 5, 6]))[0] is is_held


def test_what_other_connectors_workers_tell_each_other_is_let_pass(make):
    """Also that of later stages, which vLLM's MultiConnector brings to all of its children."""
    foreign = KVConnectorHandshakeMetadata()
    make("kv_producer", pp=2).set_xfer_handshake_metadata_pp_aware({(0, 0): foreign, (1, 0): foreign})


def test_only_the_blocks_of_the_prompt(make):
    half = make()
    assert ended(half, Request("a", range(8), WANTED, output=[1] * 9), (3, 4, 5, 6, 7))[0]
    assert told(half).holds[0].tables == ((3, 4),)


def test_another_engine_takes_it(make):
    request = Request("a", TOKENS, WANTED, salt="s", adapter="l")
    _, params = ended(make("kv_producer"), request)
    half = make("kv_consumer")
    same = Request("b", TOKENS, json.loads(json.dumps(params)), salt="s", adapter="l")
    half.on_new_request(same)
    assert half.get_num_new_matched_tokens(same, 0) == (10, True)
    half.update_state_after_alloc(same, Blocks(1, 2, 3), 10)
    (pull,) = told(half).pulls
    assert pull.parts == (Part(0, (1, 2, 3)),)
    assert (pull.source.hold_id, pull.source.digest) == ("a.1", digest_of(request, 10))


@pytest.mark.parametrize("params", [None, {}, {"do_remote_decode": False}, {"other": 1}])
def test_what_nobody_wants_is_not_held(make, params, caplog):
    half = make()
    assert ended(half, Request("a", TOKENS, params)) == NOTHING
    assert told(half) == P2PMetadata()
    assert not caplog.messages


def test_a_consumer_holds_nothing(make, caplog):
    half = make("kv_consumer")
    assert ended(half, Request("a", TOKENS, WANTED)) == NOTHING
    assert told(half) == P2PMetadata()
    assert caplog.messages == ["request a: its blocks are to be held, but kv_role is 'kv_consumer'"]


@pytest.mark.parametrize(
    ("status", "held"),
    [
        ("FINISHED_STOPPED", True),
        ("FINISHED_LENGTH_CAPPED", True),
        ("FINISHED_IGNORED", True),
        ("FINISHED_ABORTED", False),
        ("FINISHED_ERROR", False),
    ],
)
def test_what_ended_badly_is_not_held(make, status, held, caplog):
    half = make()
    request = Request("a", TOKENS, WANTED)
    request.status = SimpleNamespace(name=status)
    assert ended(half, request)[0] is held
    assert not caplog.messages


def test_an_engine_that_says_no_status(make):
    half = make()
    request = Request("a", TOKENS, WANTED)
    del request.status
    assert ended(half, request)[0]
    other = Request("b", TOKENS, WANTED)
    other.status = "FINISHED_ABORTED"  # no enum, so what it means is not ours to know
    assert ended(half, other)[0]


@pytest.mark.parametrize(("computed", "held"), [(0, False), (9, False), (10, True), (11, True)])
def test_only_a_whole_prompt_is_held(make, computed, held):
    half = make()
    assert ended(half, Request("a", TOKENS, WANTED, output=[1], computed=computed))[0] is held


@pytest.mark.parametrize(("blocks", "held"), [((0, 8, 9), False), ((7, 8, 0), False), ((7, 8, 9, 0), True)])
def test_a_prompt_that_slid_out_of_a_window_is_not_held(make, blocks, held, caplog):
    half = make()
    assert ended(half, Request("a", TOKENS, WANTED), blocks)[0] is held
    said = "request a: part of its prompt slid out of the window of KV cache group 0; it isn't held"
    assert caplog.messages == ([] if held else [said])


def test_embeddings_are_not_held(make, caplog):
    half = make()
    request = Request("a", TOKENS, WANTED)
    request.prompt_embeds = object()
    assert ended(half, request) == NOTHING
    assert caplog.messages == ["request a: some of its prompt is embeddings; it isn't held"]


def test_not_while_its_own_load_is_under_way(make):
    """Whichever report came first would free the blocks."""
    half = make()
    params = {**ticket_of(TOKENS).to_params("there"), "do_remote_decode": True}

    def pulls(name):
        request = Request(name, TOKENS, params)
        half.on_new_request(request)
        half.get_num_new_matched_tokens(request, 0)
        half.update_state_after_alloc(request, Blocks(1, 2, 3), 10)
        return request

    assert half.request_finished(pulls("a"), [1, 2, 3]) == NOTHING
    assert not told(half).holds
    b = pulls("b")
    half.update_connector_output(KVConnectorOutput(finished_recving={"a", "b"}))
    assert half.request_finished(b, [1, 2, 3])[0] is True
    assert [hold.request_id for hold in told(half).holds] == ["b"]


def test_one_that_declined_its_ticket_may_be_held(make):
    """It came with a ticket, computed its prompt itself, and is to be handed on."""
    half = make()
    ticket = ticket_of(TOKENS)
    request = Request("a", TOKENS, {**ticket.to_params("there"), "do_remote_decode": True})
    half.on_new_request(request)
    assert half.request_finished(request, [7, 8, 9])[0]
    meta = told(half)
    assert [source.hold_id for source in meta.declined] == [ticket.hold_id]
    assert [hold.hold_id for hold in meta.holds] == ["a.1"]


def test_an_id_that_comes_again_has_another_hold(make):
    half = make()
    ids = []
    for _ in range(3):
        assert ended(half, Request("a", TOKENS, WANTED))[0]
        ids += [hold.hold_id for hold in told(half).holds]
        half.update_connector_output(KVConnectorOutput(finished_sending={"a"}))
    assert len(set(ids)) == 3


def test_after_a_reset_nothing_is_served(make):
    half = make()
    for name in ("b", "a", "c"):
        ended(half, Request(name, TOKENS, WANTED))
    told(half)
    half.update_connector_output(KVConnectorOutput(finished_sending={"c"}))
    ended(half, Request("d", TOKENS, WANTED))
    assert half.reset_cache() is True
    half.check()
    meta = told(half)
    assert meta.revoked == ["a", "b", "d"]
    assert [hold.request_id for hold in meta.holds] == ["d"]
    assert told(half) == P2PMetadata()
    assert half.has_pending_push_work()  # until the workers say so
    half.update_connector_output(KVConnectorOutput(finished_sending={"a", "b", "d"}))
    assert not half.has_pending_push_work()


def test_what_a_reset_ends_is_told_also_if_its_blocks_are_free_by_then(make):
    half = make()
    ended(half, Request("a", TOKENS, WANTED))
    told(half)
    half.reset_cache()
    half.update_connector_output(KVConnectorOutput(finished_sending={"a"}))
    assert half.has_pending_push_work()
    assert told(half) == P2PMetadata(revoked=["a"])
    assert not half.has_pending_push_work()


def test_a_report_of_nothing(make):
    half = make()
    ended(half, Request("a", TOKENS, WANTED))
    told(half)
    half.update_connector_output(KVConnectorOutput())
    half.update_connector_output(KVConnectorOutput(finished_sending=set(), finished_recving={"a"}))
    assert half.has_pending_push_work()


@pytest.mark.parametrize(("tokens", "is_idle"), [(0, True), (1, False)])
def test_whether_a_step_computes_is_told(make, tokens, is_idle):
    half = make()
    ended(half, Request("a", TOKENS, WANTED))
    meta = half.build_connector_meta(step(tokens))
    assert meta.is_idle is is_idle
    assert len(meta.holds) == 1
    assert half.build_connector_meta(step(tokens)) == P2PMetadata(is_idle=is_idle)


def test_metadata_pickles(make):
    half = make()
    ended(half, Request("a", TOKENS, WANTED))
    meta = half.build_connector_meta(step(0))
    assert meta
    assert pickle.loads(pickle.dumps(meta)) == meta


@pytest.mark.parametrize("field", ["holds", "pulls", "declined", "revoked"])
def test_metadata_is_true_if_there_is_anything_to_do(field):
    assert not P2PMetadata(is_idle=True)
    assert P2PMetadata(**{field: [object()]})


@pytest.mark.parametrize(("role", "delivers"), [("kv_producer", True), ("kv_both", True), ("kv_consumer", False)])
def test_a_producer_must_deliver(make, role, delivers):
    assert make(role).requires_kv_delivery is delivers


def test_recounting_finds_what_cannot_be():
    for break_it, said in [
        (lambda half: half._consumer._pulling.add("a"), "ticketed [], pulled ['a'], held ['a']"),
        (lambda half: (half._producer._holding.clear(), half._producer._holds_of.clear()), "not held"),
        (lambda half: half._producer._holds_of.update([(0, 7)]), "counted again Counter({(0, 7): 1, (0, 8): 1"),
        (lambda half: half._producer._to_be_held.update(b=2), "0 blocks to come, counted again 2"),
        (lambda half: half._consumer._pulls.append(Pull("b", None, ())), "not pulled"),
    ]:
        half = scheduler()
        ended(half, Request("a", TOKENS, WANTED))
        half.check()
        break_it(half)
        with pytest.raises(AssertionError) as raised:
            half.check()
        assert said in str(raised.value)
