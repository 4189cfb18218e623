"""Several KV cache groups: what an engine says of them, what is held and pulled of each, and when."""

import json
from math import lcm
from random import Random
from types import SimpleNamespace

import pytest
from kv_p2p_engine import Blocks, Request, kv_cache_config, scheduler, spec, step, ticket_of, vllm_config
from kv_p2p_fake_wire import World, pull, received

from kv_api import AttentionKind, ConfigError
from kv_api.groups import GroupDescription
from kv_p2p.pulling.groups import Group, groups_of
from kv_p2p.pulling.metadata import Hold, Part
from kv_p2p.pulling.ticket import digest_of, read_ticket

WANTED = {"do_remote_decode": True}
WHERE = "kv_cache_config.kv_cache_groups"
CHOICES = "which P2PConnector can't hand over; choices: full_attention, sliding_window"
TWO = (spec(4), spec(4, window=6))


# -- what an engine says -----------------------------------------------------------------------


def test_groups_as_they_are_configured():
    config = kv_cache_config(specs=(spec(4), spec(8, window=6), spec(16)))
    assert groups_of(vllm_config(), config) == (Group(4), Group(8, 6), Group(16))
    assert groups_of(vllm_config(), None) == (Group(4),)


def test_another_engine_says_it_in_other_words():
    def describe(kv_cache_spec):
        return GroupDescription(AttentionKind.SLIDING_WINDOW, kv_cache_spec.tokens, 9)

    config = kv_cache_config(specs=(SimpleNamespace(tokens=2),))
    assert groups_of(vllm_config(), config, describe) == (Group(2, 9),)


def restarting(kv_cache_spec):
    return GroupDescription(AttentionKind.SLIDING_WINDOW, 4, 8, restart_tokens=8)


@pytest.mark.parametrize(
    ("specs", "describe", "said"),
    [
        ((), None, f"{WHERE}: there is none, so P2PConnector has nothing to pull"),
        ((spec(), SimpleNamespace(kind="state_space", block_size=4)), None,
         f"{WHERE}[1]: it is of kind state_space, {CHOICES}"),
        ((spec(), SimpleNamespace(kind="linear", block_size=4)), None,
         f"{WHERE}[1]: kv_cache_spec.kind: got 'linear'; choices: full_attention, sliding_window, state_space"),
        ((spec(),), restarting, f"{WHERE}[0]: it is a window that begins anew every 8 tokens, {CHOICES}"),
    ],
)  # fmt: skip
def test_groups_that_cannot_be_handed_over_are_refused_in_these_words(specs, describe, said):
    more = (describe,) if describe else ()
    with pytest.raises(ConfigError) as raised:
        groups_of(vllm_config(), kv_cache_config(specs=specs), *more)
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("group", "tokens", "first"),
    [
        (Group(4), 99, 0),
        (Group(4, 6), 0, 0),
        (Group(4, 6), 8, 0),  # the ninth reads from the fourth on
        (Group(4, 6), 9, 1),
        (Group(4, 6), 12, 1),
        (Group(4, 6), 13, 2),
        (Group(4, 1), 7, 1),
        (Group(4, 1), 8, 2),
        (Group(1, 6), 3, 0),
        (Group(1, 6), 6, 1),
    ],
)
def test_what_the_next_token_reads(group, tokens, first):
    assert group.first_needed(tokens) == first


# -- holding -----------------------------------------------------------------------------------


def test_what_is_held_of_each_group(make):
    half = make(specs=TWO)
    request = Request("a", range(11), WANTED)
    hold, params = half.request_finished_all_groups(request, ([3, 4, 5, 9], [0, 7, 8]))
    assert hold is True
    ticket = read_ticket(json.loads(json.dumps(params)))
    assert (ticket.shape.groups, ticket.first_places) == ((Group(4), Group(4, 6)), (0, 1))
    assert half.build_connector_meta(step()).holds == [
        Hold("a", "a.1", digest_of(request, 11), ((3, 4, 5), (0, 7, 8)))
    ]
    assert half.get_kv_connector_stats().data == {"vllm:kv_p2p_held_blocks": 6}
    half.check()


@pytest.mark.parametrize(
    ("tokens", "tables", "lost"),
    [
        (11, ((3, 4, 5), (0, 7, 8)), None),  # its last token reads from token 5 on
        (11, ((3, 4, 5), (0, 0, 8)), 1),
        (9, ((3, 4, 5), (6, 7, 8)), None),  # and that of this one from token 3 on
        (9, ((3, 4, 5), (0, 7, 8)), 1),
        (10, ((3, 4, 5), (0, 7, 8)), None),
        (11, ((0, 4, 5), (0, 7, 8)), 0),
        (11, ((3, 4, 0), (0, 7, 8)), 0),
    ],
)
def test_a_window_that_slid_too_far_is_not_held(make, caplog, tokens, tables, lost):
    half = make(specs=TWO)
    hold, _ = half.request_finished_all_groups(Request("a", range(tokens), WANTED), tuple(map(list, tables)))
    assert hold is (lost is None)
    said = f"request a: part of its prompt slid out of the window of KV cache group {lost}; it isn't held"
    assert caplog.messages == ([] if lost is None else [said])


def test_one_group_is_asked_in_either_way(make):
    half = make()
    request = Request("a", range(6), WANTED)
    assert half.request_finished(request, [1, 2])[0]
    assert half.request_finished_all_groups(Request("b", range(6), WANTED), ([3, 4],))[0]
    assert [hold.tables for hold in half.build_connector_meta(step()).holds] == [((1, 2),), ((3, 4),)]


# -- taking ------------------------------------------------------------------------------------


def test_not_of_another_window(make, caplog):
    half, other = make(specs=TWO), make(specs=(spec(4), spec(4, window=7)))
    _, params = other.request_finished_all_groups(Request("a", range(11), WANTED), ([3, 4, 5], [0, 7, 8]))
    request = Request("b", range(11), params, computed=0)
    half.on_new_request(request)
    assert half.get_num_new_matched_tokens(request, 0) == (0, False)
    (said,) = caplog.messages
    assert "groups=(Group(block_size=4, window=0), Group(block_size=4, window=7))), this engine is" in said


def test_blocks_of_groups_of_other_sizes(make):
    """A longer prompt begins with it: whole blocks of both groups are used, and of the window what is needed."""
    specs = (spec(4), spec(8, window=9))
    there, here = make(specs=specs), make(specs=specs)
    tables = ([1, 2, 3, 4, 5], [0, 7, 8])
    _, params = there.request_finished_all_groups(Request("a", range(19), WANTED), tables)
    request = Request("b", range(30), params, computed=0)
    here.on_new_request(request)
    assert here.get_num_new_matched_tokens(request, 0) == (16, True)
    here.update_state_after_alloc(request, Blocks((11, 12, 13, 14), (0, 16)), 16)
    (told,) = here.build_connector_meta(step()).pulls
    assert told.parts == (Part(0, (11, 12, 13, 14)), Part(1, (16,)))
    assert told.block_ids == (11, 12, 13, 14, 16)


@pytest.mark.parametrize("specs", [(spec(4, window=6),), (spec(4, window=6), spec(4))])
@pytest.mark.parametrize(("first", "answer"), [(1, (10, True)), (2, (0, False))])
def test_the_first_group_may_have_the_window(make, specs, first, answer):
    """The last token reads from token 5 on."""
    half = make(specs=specs)
    ticket = ticket_of(range(11), shape=half._shape, first_places=(first,) + (0,) * (len(specs) - 1))
    request = Request("b", range(11), ticket.to_params("there"), computed=0)
    half.on_new_request(request)
    assert half.get_num_new_matched_tokens(request, 0) == answer


@pytest.mark.parametrize(("local", "more"), [(0, 0), (8, 8)])
def test_what_slid_out_of_a_window_may_be_here_already(make, local, more):
    """Whoever goes on after 16 tokens reads from token 4 on, and the producer has some from token 8 on."""
    half = make(specs=(spec(8), spec(4, window=13)))
    ticket = ticket_of(range(23), shape=half._shape, first_places=(0, 2))
    request = Request("b", range(30), ticket.to_params("there"), computed=0)
    half.on_new_request(request)
    assert half.get_num_new_matched_tokens(request, local) == (more, more > 0)


@pytest.mark.parametrize(("first", "answer"), [(1, (4, True)), (2, (0, False))])
def test_a_block_that_is_here_in_part_is_needed_whole(make, first, answer):
    """The block at place 1 has tokens 4 to 7, of which two are here; the last token reads from token 5 on."""
    half = make(specs=(spec(4, window=6),))
    ticket = ticket_of(range(11), shape=half._shape, first_places=(first,))
    request = Request("b", range(11), ticket.to_params("there"), computed=0)
    half.on_new_request(request)
    assert half.get_num_new_matched_tokens(request, 6) == answer


def test_a_null_block_between_others_is_no_table(make):
    half = make(specs=TWO)
    ticket = ticket_of(range(12), shape=half._shape, first_places=(0, 0))
    request = Request("b", range(12), ticket.to_params("there"), computed=0)
    half.on_new_request(request)
    half.get_num_new_matched_tokens(request, 0)
    with pytest.raises(AssertionError) as raised:
        half.update_state_after_alloc(request, Blocks((1, 2, 3), (4, 0, 5)), 11)
    assert str(raised.value) == "a null block between others: [4, 0, 5] of [4, 0, 5], tokens 0 to 11"


class Model:
    """An engine's rules for a group, token by token."""

    def __init__(self, group):
        self.size, self.window = group.block_size, group.window

    def read(self, token):
        """Tokens before it that are read to compute it."""
        return range(max(0, token - self.window + 1) if self.window else 0, token)

    def table(self, computed, tokens, ids):
        """Blocks of so many tokens, when the first of them are computed: none whose tokens are read no more."""
        needed = {token // self.size for token in self.read(computed)}
        first = min(needed, default=computed // self.size)
        return [0 if place < first else next(ids) for place in range(-(-tokens // self.size))]


@pytest.mark.parametrize("seed", range(300))
def test_what_is_read_is_there_and_what_is_promised_is_held(seed):
    """Any prompt, output, windows and hits of the consumer's own."""
    random = Random(seed)
    sizes = random.choice([(4, 4), (4, 8), (2, 4), (8, 4), (4, 6)])
    specs = (spec(sizes[0]), *(spec(sizes[1], window=random.randint(2, 13)) for _ in range(random.randint(1, 2))))
    there, here = scheduler(specs=specs), scheduler(specs=specs)
    groups = groups_of(vllm_config(), kv_cache_config(specs=specs))
    models, ids = [Model(group) for group in groups], iter(range(1, 10_000))
    prompt, output, more = random.randint(1, 40), random.randint(1, 3), random.choice([0, 0, random.randint(1, 9)])
    computed = prompt + output - 1
    tables = tuple(model.table(computed, computed, ids) for model in models)
    asked = Request("a", range(prompt), WANTED, output=[7] * output, computed=computed)
    hold, params = there.request_finished_all_groups(asked, tables)
    needed = [{token // model.size for token in model.read(prompt - 1)} for model in models]
    is_there = all(table[place] for table, places in zip(tables, needed, strict=True) for place in places)
    assert hold is is_there
    if not hold:
        return
    request = Request("b", range(prompt + more), params, computed=0)
    grain = lcm(*sizes)
    local = random.randint(0, (prompt + more - 1) // grain) * grain
    here.on_new_request(request)
    count, _ = here.get_num_new_matched_tokens(request, local)
    end = prompt - 1 if not more else prompt // grain * grain
    reached = [{token // model.size for token in model.read(end)} for model in models]
    missing = [
        place
        for table, model, places in zip(tables, models, reached, strict=True)
        for place in places
        if place * model.size >= local and not table[place]
    ]
    assert count == (0 if missing else max(0, end - local))
    if not count:
        return
    mine = tuple(model.table(end, end, ids) for model in models)
    here.update_state_after_alloc(request, Blocks(*map(tuple, mine)), count)
    (told,) = here.build_connector_meta(step()).pulls
    for part, model, table, held, places in zip(told.parts, models, mine, tables, reached, strict=True):
        filled = dict(enumerate(part.block_ids, part.first))
        assert 0 not in filled.values()
        assert set(filled) == {place for place, block in enumerate(table) if block and place * model.size >= local}
        assert all(table[place] == block and held[place] for place, block in filled.items())
        assert {place for place in places if place * model.size >= local} <= set(filled)


# -- failing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("groups", "blocks"), [(1, {3, 4}), (2, set())])
def test_failed_pulls_of_several_groups_are_told_by_request_alone(groups, blocks):
    world = World(groups)
    world.half.register_kv_caches({"layer": None})
    world.step(pulls=[pull("a", 3, 4)])
    assert world.step(ended={"failed": [("a", "x")]})[0] == received(failed=["a"])
    assert world.half.get_block_ids_with_load_errors() == blocks
