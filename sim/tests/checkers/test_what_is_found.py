"""HITS, rule by rule: who comes again at rest and what must be found then, asked of an engine that is made up."""

from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from kv_sim_made_up_engine import CONFIG, KEEPS, TELLS, Engine, asked, copies, judge, request
from kv_sim_notes import Notes

from kv_sim.checkers.served import Served
from kv_sim.config import Drafter, GroupConfig, WorldConfig
from kv_sim.engine.request import SimRequest, Status
from kv_sim.engine.request_spec import RequestSpec, Turn
from kv_sim.memory.copy import State
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Violation
from kv_sim.world_state import WorldState

NOT_COMPUTED = "no request with the same prefix, salt, adapter and images has computed block"

# -- no more ------------------------------------------------------------------------------------


def sampled(name: str, computed: int, hashes_per_block: int = 1) -> SimRequest:
    """A prompt of ten tokens and what follows, some of which was computed."""
    made = SimRequest(RequestSpec(name, 0, 10, 0, 8, 8), 4, 24, hashes_per_block)
    made.num_computed_tokens, made.num_output_tokens = computed, 6
    return made


@pytest.mark.parametrize("hashes_per_block", [1, 2, 4])
@pytest.mark.parametrize("computed", [0, 7, 8, 9, 10])
@pytest.mark.parametrize("is_ours", [True, False])
def test_no_more_is_found_than_was_computed(hashes_per_block: int, computed: int, is_ours: bool) -> None:
    """Each block that a hit covers, and its end within a block, where only some places have a hash."""
    notes, hashed = Notes(), 4 // hashes_per_block
    served = Served(notes, 4, is_on=True, hashes_per_block=hashes_per_block, ends_within=hashes_per_block > 1)
    served.compute(sampled("r1", computed, hashes_per_block))
    asks = sampled("r2", 0, hashes_per_block)
    asking: Any = asks if is_ours else SimpleNamespace(request_id="r2", block_hashes=asks.block_hashes)
    for local in (0, 1, 4, 8):
        for count in range(16 - local):
            end = local + count
            served.check_match(asking, local, count)
            assert served.found == {"r2": end}
            where = f"HITS  request r2: get_num_new_matched_tokens(…, {local}) found {count} tokens, but "
            not_computed = [index for index in range(local // 4, end // 4) if (index + 1) * 4 > computed]
            if not_computed:
                told = [f"{where}{NOT_COMPUTED} {not_computed[0]} of its tokens"]
            elif hashes_per_block == 1 or not count or end % 4 == 0:
                told = []
            elif end % hashed:
                told = [f"{where}no hash ends there, so no state was stored"]
            else:
                told = [f"{where}no request has computed so far"] if end > computed else []
            assert notes.take() == told, (local, count)


@pytest.mark.parametrize(("known", "proof"), [(16, 4), (15, 4), (12, 4), (16, 2), (15, 2), (14, 2), (9, 1)])
@pytest.mark.parametrize("is_ours", [True, False])
def test_with_a_draft_model_somebody_computed_what_comes_after_a_hit(
    known: int, proof: int, is_ours: bool
) -> None:
    """A block of the same request, which therefore has it; the last tokens of a prompt may be in none.

    The draft model's blocks may be smaller than others.
    """
    notes, hashed = Notes(), 4 // proof
    served = Served(notes, 4, is_on=True, hashes_per_block=hashed, proof_tokens=proof)
    served.compute(sampled("r1", known, hashed))
    asks = sampled("r2", 0, hashed)
    asking: Any = asks if is_ours else SimpleNamespace(request_id="r2", block_hashes=asks.block_hashes)
    for local in (0, 4):
        for end in range(local, known // 4 * 4 + 1):
            served.check_match(asking, local, end - local)
            fits = end == local or end // proof + 1 <= known // proof
            told = (
                f"HITS  request r2: get_num_new_matched_tokens(…, {local}) found {end - local} tokens, but no "
                "request has computed this prompt's tokens up to"
            )
            assert [text.startswith(f"{told} {end + proof}: ") for text in notes.take()] == (
                [] if fits else [True]
            ), (local, end)


@pytest.mark.parametrize("known", [8, 12, 15, 16])
def test_with_a_draft_model_a_whole_chunk_of_blocks_comes_after_a_hit(known: int) -> None:
    notes = Notes()
    served = Served(notes, 4, is_on=True, proof_tokens=8)
    served.compute(sampled("r1", known))
    served.check_match(sampled("r2", 0), 0, 8)
    assert len(notes.take()) == (0 if known == 16 else 1)


def test_a_session_comes_again_with_all_the_prompt_that_it_had_in_the_end() -> None:
    """Or with its only one, if it never went on; and it isn't a session then."""
    turns = (Turn(4, 2, 3), Turn(9, 1, 1))
    same = {"salt": "s", "adapter": "a", "image": "i", "image_at": 3}
    specs = [RequestSpec(f"r{n}", n, 5 + n, 2, 3, 4, turns=turns, **same) for n in (1, 2, 3)]
    once, twice, thrice = ended = [SimRequest(spec, 4, 40) for spec in specs]
    for session in (twice, thrice, thrice):
        session.begin_turn()
    came: list[RequestSpec] = []
    judge(Engine(ended, lambda spec: came.append(spec)))
    assert [spec.request_id for spec in came[:2]] == ["r3", "r2"]
    for spec, session, more in zip(came, (thrice, twice), (0, 1), strict=False):
        prompt = session.prompt_token_ids
        assert (list(spec.prompt[: len(prompt)]), len(spec.prompt)) == (prompt, len(prompt) + more)
        assert ({name: getattr(spec, name) for name in same}, spec.turns) == (same, None)
    came.clear()
    judge(Engine([once], lambda spec: came.append(spec)))
    assert came[0] == replace(once.spec, output_tokens=1, max_tokens=1, turns=None)


def test_whole_blocks_are_found_where_hashes_are_finer() -> None:
    """Of a connector that keeps no ends of blocks."""
    notes = Notes()
    served = Served(notes, 4, is_on=True)
    served.compute(sampled("r1", 6, 2))
    for count in (4, 6):
        served.check_match(sampled("r2", 0, 2), 0, count)
    assert notes.told == []
    served.check_match(sampled("r2", 0, 2), 4, 4)
    where = "get_num_new_matched_tokens(…, 4) found 4 tokens"
    assert notes.told == [f"HITS  request r2: {where}, but {NOT_COMPUTED} 1 of its tokens"]


def test_a_reset_forgets_all_but_what_the_living_have() -> None:
    """And of those that lived through it nobody knows what is stored."""
    notes = Notes()
    served = Served(notes, 4, is_on=True)
    ended, lives, later = sampled("r1", 12), sampled("r2", 8), sampled("r3", 8)
    lives.status = Status.PREEMPTED
    for one in (ended, lives):
        served.compute(one)
    for one in (ended, later):
        one.status = Status.FINISHED_STOPPED
    assert served.is_fair(ended)
    for number in (1, 2):
        served.reset([ended, lives])
        served.check_match(ended, 0, 8)
        assert notes.take() == []
        served.check_match(ended, 8, 4)
        since = f"{NOT_COMPUTED} 2 of its tokens since reset {number}"
        assert notes.take() == [f"HITS  request r1: get_num_new_matched_tokens(…, 8) found 4 tokens, but {since}"]
    lives.status = Status.FINISHED_STOPPED
    assert [served.is_fair(one) for one in (ended, lives, later)] == [False, False, True]
    served.reset([ended, lives])
    served.check_match(ended, 0, 4)
    assert len(notes.told) == 1, "now nobody lives"


def test_a_reset_without_anybody_is_one_as_well() -> None:
    notes = Notes()
    served = Served(notes, 4, is_on=True)
    served.reset([])
    served.check_match(sampled("r1", 0), 0, 4)
    where = "get_num_new_matched_tokens(…, 0) found 4 tokens"
    assert notes.told == [f"HITS  request r1: {where}, but {NOT_COMPUTED} 0 of its tokens since reset 1"]


def test_of_whom_nothing_is_claimed_nothing_is_known() -> None:
    notes = Notes()
    served = Served(notes, 4, is_on=False)
    served.check_match(sampled("r1", 0), 0, 8)
    assert (notes.told, served.found) == ([], {})


def test_who_says_that_a_reset_works_finds_nothing_that_it_forgot() -> None:
    """What else there is, isn't known of it: it may be somebody else's."""
    notes = Notes()
    served = Served(notes, 4, is_on=False, forgets=True, hashes_per_block=2, ends_within=True, proof_tokens=4)
    ended, foreign = sampled("r1", 8, 2), SimRequest(RequestSpec("r2", 1, 10, 0, 8, 8), 4, 24, 2)
    served.compute(ended)
    ended.status = Status.FINISHED_STOPPED
    for one in (ended, foreign):
        served.check_match(one, 0, 8)
        served.check_match(one, 0, 6)
    assert notes.take() == []
    served.reset([ended])
    served.check_match(foreign, 0, 8)
    assert notes.take() == []
    served.check_match(ended, 0, 8)
    where, since = (
        "get_num_new_matched_tokens(…, 0) found 8 tokens",
        f"{NOT_COMPUTED} 0 of its tokens since reset 1",
    )
    assert notes.take() == [f"HITS  request r1: {where}, but {since}"]
    served.reset([])  # what one reset forgot, another doesn't bring back
    served.check_match(ended, 0, 8)
    assert notes.take() == [f"HITS  request r1: {where}, but {since[:-1]}2"]
    served.compute(ended)
    served.check_match(ended, 0, 8)
    assert notes.take() == []


@pytest.mark.parametrize(
    ("traits", "of_peers", "is_told"),
    [
        ({Trait.RESET}, False, True),
        (set(), False, False),
        ({Trait.RESET}, True, False),
        ({Trait.KEEPS}, False, True),
    ],
)
def test_the_engine_watches_for_what_a_claim_says(traits: set[Trait], of_peers: bool, is_told: bool) -> None:
    subject = Subject("MemoryConnector", "kv_sim.examples.memory", {}, frozenset(traits), serves_peers=of_peers)
    site = WorldState(WorldConfig(groups=(GroupConfig(),)), subject).sites[0]
    served, request = site.engine.served, sampled("r1", 8)
    served.compute(request)
    request.status = Status.FINISHED_STOPPED
    served.reset([request])
    if is_told:
        with pytest.raises(Violation, match=f"{NOT_COMPUTED} 0 of its tokens since reset 1"):
            served.check_match(request, 0, 4)
    else:
        served.check_match(request, 0, 4)


# -- no less ------------------------------------------------------------------------------------


def nothing(spec: RequestSpec) -> None:
    """Nobody even asked for it."""


def missing(name: str, found: int, tokens: int, first: int, room: int = 2, of: int = 64) -> str:
    """``room``: how many slots all that was computed takes, of so many."""
    return (
        f"HITS  request {name} is repeated at rest: {found} of its {tokens} tokens are found, but earlier "
        f"requests computed the first {first} and ended well, no copy failed, and there was room for all: at most "
        f"{room} of {of} host slots were needed"
    )


def test_who_comes_again_comes_to_an_engine_whose_own_cache_is_empty() -> None:
    engine = Engine([request()], nothing)
    engine.served.found["r1"] = 8  # when it came first
    assert judge(engine) == [missing("r1", 0, 9, 8)]
    assert engine.did == ["events", "pool", ("r1", 9), "settle"]


@pytest.mark.parametrize(
    ("ended", "subject", "found", "must"),
    [
        ([request()], KEEPS, 8, 0),
        ([request()], KEEPS, 4, 8),
        ([request(tokens=8)], KEEPS, 0, 4),  # a hit ends before the last token
        ([request(tokens=13)], replace(KEEPS, blocks_per_chunk=2), 4, 8),
        ([request(tokens=13)], replace(KEEPS, blocks_per_chunk=2), 8, 0),
        ([request(tokens=13)], replace(KEEPS, blocks_per_chunk=4), 0, 0),
        ([request()], replace(KEEPS, keeps_from=2), 0, 0),
        ([request(), request("r2")], replace(KEEPS, keeps_from=2), 0, 8),
        ([request(), request("r2", 6)], replace(KEEPS, keeps_from=2), 0, 4),
        ([request(num_preemptions=1)], KEEPS, 0, 0),
        ([request(status=Status.FINISHED_ABORTED)], KEEPS, 0, 0),
        ([request("r2", 5), request(status=Status.FINISHED_ERROR)], KEEPS, 0, 4),
    ],
)
def test_what_was_stored_and_not_evicted_is_found(
    ended: list[SimRequest], subject: Subject, found: int, must: int
) -> None:
    """Whole chunks, of who ran to the end with nothing in between, as often as it takes to be kept."""
    engine = Engine(ended, lambda spec: found)
    (tokens,) = (one.num_tokens for one in ended if one.request_id == "r1")
    assert judge(engine, subject) == ([missing("r1", found, tokens, must)] if must else [])
    assert len(asked(engine)) == 1


@pytest.mark.parametrize(("tokens", "found", "must"), [(13, 8, 0), (13, 4, 8), (9, 4, 0), (9, 0, 4), (5, 0, 0)])
@pytest.mark.parametrize("drafter", ["eagle", "mtp"])
def test_with_a_draft_model_a_block_less_is_found(drafter: Drafter, tokens: int, found: int, must: int) -> None:
    """What follows it may have been another's; who isn't told of a draft model may do as the engine does."""
    engine, config = (
        Engine([request(tokens=tokens)], lambda spec: found),
        replace(CONFIG, drafter=drafter, spec_tokens=1),
    )
    told = [text for text in judge(engine, KEEPS, config) if "earlier requests" in text]
    assert told == ([missing("r1", found, tokens, must, tokens // 4)] if must else [])


def four(tokens: int = 9) -> list[SimRequest]:
    """Of four blocks in all that nobody shares. Each other one comes again with a token more."""
    return [request(f"r{number}", 5, number) for number in range(4)]


@pytest.mark.parametrize(("own", "again"), [(2, 7), (3, 7)])
def test_who_comes_again(own: int, again: int) -> None:
    """The longest first, and none whose prompt is the beginning of another's.

    Every other one with a token more, and there is room for one to be sampled: the engine takes eight.
    """
    ended = [
        request("prefix", 5),
        sampled("long", 0),  # of ten tokens
        request("short", 3, 1),  # fills no block
        request("other", 8, 2),
        request("branch", 4),  # of the conversation of the first, and then its own
        request("own", 4, 4),
        request("fifth", 4, 5),
    ]
    ended[1].spec = replace(ended[1].spec, skip_reading_prefix_cache=True)
    ended[4] = SimRequest(replace(ended[4].spec, own_tokens=5), 4, 0)
    ended[5] = SimRequest(replace(ended[5].spec, own_tokens=own), 4, 0)
    engine = Engine(ended, nothing)
    judge(engine, config=replace(CONFIG, num_blocks=3))
    assert asked(engine) == [("long", 10), ("branch", 9), ("other", 8), ("own", again)]


@pytest.mark.parametrize(
    ("config", "devices", "is_known"),
    [
        ({}, (), True),
        ({"host_slots": 4}, (), True),
        ({"host_slots": 3}, (), False),
        ({"role": "kv_consumer"}, (), False),
        ({"role": "kv_producer"}, (), False),
        ({}, (copies(), copies(State.DONE, State.FAILED)), False),
        ({}, (copies(State.LOST), copies()), False),
        ({}, (copies(), copies(State.DONE, was_lost=True)), False),
        ({}, (copies(running=1), copies()), False),
        ({}, (copies(), copies(restarts=1)), False),
    ],
)
def test_what_must_be_found_is_known_if_nothing_was_left_out(
    config: dict[str, Any], devices: tuple[Any, ...], is_known: bool
) -> None:
    """If something was, two come again nevertheless, for the other checkers to look at."""
    engine = Engine(four(), nothing, *devices)
    told = judge(engine, config=replace(CONFIG, **config))
    names = [("r0", 5), ("r1", 6), ("r2", 5), ("r3", 6)]
    assert asked(engine) == (names if is_known else names[:2])
    slots = config.get("host_slots", 64)
    assert told == ([missing(name, 0, tokens, 4, 4, slots) for name, tokens in names] if is_known else [])


@pytest.mark.parametrize(("host_slots", "resets", "is_known"), [(8, 1, True), (7, 1, False), (8, 2, False)])
def test_after_a_reset_there_must_have_been_room_for_what_it_forgot(
    host_slots: int, resets: int, is_known: bool
) -> None:
    engine = Engine(four(), nothing)
    for _ in range(resets):
        engine.served.reset([])
    told = judge(engine, config=replace(CONFIG, host_slots=host_slots))
    names = [("r0", 5), ("r1", 6), ("r2", 5), ("r3", 6)]
    assert told == ([missing(name, 0, tokens, 4, 8, 8) for name, tokens in names] if is_known else [])


def test_what_was_computed_in_the_end_takes_room_as_well() -> None:
    """Seven tokens of a prompt and two that were sampled: two blocks, though only one is asked for."""
    ended = request(tokens=7)
    ended = SimRequest(replace(ended.spec, output_tokens=2, max_tokens=2), 4, 16)
    ended.status, ended.num_output_tokens = Status.FINISHED_STOPPED, 2
    for host_slots, told in ((2, [missing("r1", 0, 7, 4, 2, 2)]), (1, [])):
        assert judge(Engine([ended], nothing), config=replace(CONFIG, host_slots=host_slots)) == told


@pytest.mark.parametrize("parts", [1, 2])
def test_what_a_session_dropped_takes_room_as_well(parts: int) -> None:
    """The second block of its first turn ends with a token that the one of its second turn has not."""
    spec = replace(request(tokens=7).spec, turns=(Turn(2, 1, 1),))
    ended = SimRequest(spec, 4, 16, hashes_per_block=parts)
    ended.begin_turn()
    ended.status, ended.num_output_tokens = Status.FINISHED_STOPPED, 1
    assert len({*chain.from_iterable(ended.known_hashes())}) == 3
    for host_slots, told in ((3, [missing("r1", 0, 9, 8, 3, 3)]), (2, [])):
        assert judge(Engine([ended], nothing), config=replace(CONFIG, host_slots=host_slots)) == told


@pytest.mark.parametrize(
    ("subject", "config"),
    [
        (replace(KEEPS, traits=frozenset(Trait) - {Trait.KEEPS}), CONFIG),
        (KEEPS, replace(CONFIG, groups=(GroupConfig(), GroupConfig("sliding", 4)))),
    ],
)
def test_of_whom_nothing_is_known_nobody_comes_again(subject: Subject, config: WorldConfig) -> None:
    engine = Engine([request()], nothing)
    assert judge(engine, subject, config) == []
    assert engine.did == []


# -- events -------------------------------------------------------------------------------------

ODD = (
    "ACCOUNTING  request r1 is repeated at rest: block {} of its prompt {}, but according to the events so "
    "far it {}"
)


@pytest.mark.parametrize(
    ("told", "chunk", "found", "odd"),
    [
        ((0, 1, 2), 1, 12, []),
        ((0, 1, 2), 1, 8, [(2, "is not found", "is stored")]),
        ((0, 1, 2), 1, 0, [(0, "is not found", "is stored")]),  # what lies behind it can't be found
        ((0, 2), 1, 12, [(1, "is found", "is not stored")]),
        ((), 1, 8, [(0, "is found", "is not stored"), (1, "is found", "is not stored")]),
        ((0, 1), 1, 8, []),
        ((1,), 2, 8, []),  # a chunk is told by its last block
        ((0,), 2, 8, [(1, "is found", "is not stored")]),
        ((0, 1), 2, 0, [(1, "is not found", "is stored")]),
        ((1,), 2, 12, []),  # the last chunk is not full
        ((0, 1, 2, 3), 1, 12, []),  # a hit ends before the last token
    ],
)
def test_events_tell_what_is_found(
    told: tuple[int, ...], chunk: int, found: int, odd: list[tuple[int, str, str]]
) -> None:
    """Of a prompt of three blocks and some tokens, when not all was kept."""
    ended = request(tokens=16 if 3 in told else 13)
    subject, config = replace(TELLS, blocks_per_chunk=chunk), replace(CONFIG, host_slots=1)
    engine = Engine([ended], lambda spec: found)
    engine.mirror.blocks.update(("CPU", None, ended.prompt_hashes[index]) for index in told)
    assert judge(engine, subject, config) == [ODD.format(*each) for each in odd]
    assert judge(engine, KEEPS, config) == []
    assert judge(engine, subject, replace(config, role="kv_producer")) == []
    consumer = judge(engine, subject, replace(config, role="kv_consumer"))
    assert consumer == [ODD.format(*each) for each in odd]
    too_much = [ODD.format(*each) for each in odd if each[1] == "is found"]
    for drafter, beside in (("eagle", too_much), ("mtp", too_much), ("model", consumer)):
        assert judge(engine, subject, replace(config, drafter=drafter, spec_tokens=1)) == beside


def test_what_a_failed_copy_dropped_meanwhile_is_not_missed() -> None:
    def fails(spec: RequestSpec) -> int:
        engine.devices[1].copies.ended.append(copies(State.FAILED).copies.ended[0])
        return 8

    engine = Engine([request()], fails, copies(State.FAILED), copies())
    assert judge(engine, TELLS) == []
    engine.finds = lambda spec: 8
    assert len(judge(engine, TELLS)) == 2, "those that failed before are no reason"


@pytest.mark.parametrize("is_empty", [True, False])
def test_what_failed_is_asked_for_again(is_empty: bool) -> None:
    """It is told if it is the host slot that makes each load fail, and not a copy."""

    def fails(spec: RequestSpec) -> int:
        of_rank = engine.devices[1].copies
        of_rank.ended.append(copies(State.FAILED).copies.ended[0])
        of_rank.failed_slots[2] += is_empty
        return 8

    engine = Engine([request()], fails, copies(), copies())
    told = judge(engine, KEEPS)
    assert [text.rpartition(": ")[2] for text in told if "slot 2" in text] == [
        "a chunk that can't be loaded must not be found for ever"
    ] * is_empty


# -- the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("traits", "ended", "works", "forgets", "then"),
    [
        ((), 1, False, True, []),
        ((Trait.RESET,), 1, False, True, [("reset", False, True), ("r0", 5)]),
        ((Trait.RESET,), 2, False, True, [("reset", False, True), ("r0", 5)]),
        ((Trait.RESET,), 1, False, False, [("reset", False, True)]),
        ((Trait.RESET,), 1, False, None, [("reset", False, True)]),
        ((Trait.RESET,), 1, True, True, []),
        ((Trait.RESET,), 0, False, True, []),
        ((Trait.RESET,), -1, False, True, []),
    ],
)
def test_after_a_reset_the_first_comes_once_more(
    traits: tuple[Trait, ...], ended: int, works: bool, forgets: bool | None, then: list[Any]
) -> None:
    who = four()[:ended] if ended >= 0 else [request("short", 3)]  # fills no block
    engine = Engine(who, lambda spec: 4)
    engine.works, engine.forgets = lambda: works, forgets
    assert judge(engine, replace(KEEPS, traits=KEEPS.traits.union(traits))) == []
    assert asked(engine) == [("r0", 5), ("r1", 6)][: max(0, ended)] + then


RECENT = replace(KEEPS, evicts_oldest=True)


@pytest.mark.parametrize(
    ("of", "slots", "tokens", "blocks", "sizes"),
    [
        # The prompt has two chunks: there is room for three of others, one of them in a request of its own.
        ({}, 5, 9, 24, {"r1": 9, "unseen": 8, "short": 4}),
        ({}, 4, 9, 24, {"r1": 9, "unseen": 4, "short": 4}),
        ({}, 3, 9, 24, {"r1": 9, "short": 4}),
        ({}, 2, 9, 24, {}),
        ({}, 5, 8, 24, {"r1": 8, "unseen": 8, "short": 4}),
        ({}, 64, 9, 8, {"r1": 9, "unseen": 20, "short": 4}),  # the engine takes none longer than 28 tokens
        ({"blocks_per_chunk": 2}, 7, 13, 24, {"r1": 13, "unseen": 8, "short": 8}),
        ({"blocks_per_chunk": 2}, 5, 13, 24, {"r1": 13, "short": 8}),
        ({"keeps_from": 2}, 4, 9, 24, {"r1": 9, "unseen": 4, "short": 4}),
    ],
)
def test_what_was_used_last_is_kept(
    of: dict[str, Any], slots: int, tokens: int, blocks: int, sizes: dict[str, int]
) -> None:
    """A request, new ones for which there is room beside it, and all again, the new ones with a token more."""
    subject, config = replace(RECENT, **of), replace(CONFIG, host_slots=slots, num_blocks=blocks)
    chunk = 4 * subject.blocks_per_chunk
    first = [("r1", tokens)]
    comes = [each for each in sizes.items() for _ in range(subject.keeps_from)]
    again = [(name, size + (name != "r1")) for name, size in sizes.items()]
    least = [(size - 1) // chunk * chunk for _, size in again]
    beginning = least[0] - chunk if sizes else 0
    more = [("one-more", chunk)] * subject.keeps_from + [("r1", tokens)] if beginning else []

    def all_of(spec: RequestSpec) -> int:
        return (spec.shared_tokens + spec.own_tokens - 1) // chunk * chunk

    engine = Engine([request(tokens=tokens)], all_of)
    assert judge(engine, subject, config) == []
    assert asked(engine) == first + comes + again + more
    engine.finds = lambda spec: all_of(spec) - 1
    room = sum(size for name, size in sizes.items() if name != "r1") // chunk
    assert judge(engine, replace(subject, keeps_from=9), config)[-len(sizes) :] == [
        f"HITS  request {name} is repeated at rest: {end - 1} of its first {end} tokens are found, but r1 and "
        f"new requests of {room} chunks were the last to be computed, and all of them fit in {slots} host slots"
        for (name, _), end in zip(again, least, strict=True)
    ]


@pytest.mark.parametrize(
    ("of", "config", "tokens", "least"),
    [
        ({}, {}, 9, 4),
        ({}, {}, 13, 8),
        ({}, {}, 12, 4),  # a hit ends before the last token
        ({"blocks_per_chunk": 2}, {"host_slots": 9}, 17, 8),
        ({"keeps_from": 2}, {}, 9, 4),
        ({}, {"drafter": "eagle", "spec_tokens": 1}, 13, 4),
    ],
)
def test_for_a_chunk_more_a_prompt_loses_its_end(
    of: dict[str, Any], config: dict[str, Any], tokens: int, least: int
) -> None:
    """And not its beginning, unless a copy failed meanwhile."""
    subject, world = replace(RECENT, **of), replace(CONFIG, **{"host_slots": 5, **config})
    more = [("one-more", 4 * subject.blocks_per_chunk)] * subject.keeps_from
    for found, failed, is_wrong in ((least, 0, False), (least - 1, 0, True), (least - 1, 1, False)):
        ended = [copies(State.FAILED).copies.ended[0]] * failed
        engine = Engine([request(tokens=tokens)], lambda spec: 64, copies(), copies(State.FAILED))

        def finds(spec: RequestSpec, made: Engine = engine, then: tuple[int, list[Any]] = (found, ended)) -> int:
            if more[0] not in asked(made):
                return 64
            made.devices[0].copies.ended = then[1]
            return then[0]

        engine.finds = finds
        told = judge(engine, subject, world)
        assert asked(engine)[-1 - len(more) :] == [*more, ("r1", tokens)]
        beginning = f"request r1 is repeated at rest: {found} of its first {least} tokens are found"
        assert [text.split("; ")[0] for text in told] == [f"HITS  {beginning}"] * is_wrong
        assert all(
            "one more chunk was stored, for which the prompt's end should be evicted, not its" in text
            for text in told
        )


def test_a_prompt_takes_room_with_all_its_tokens() -> None:
    """Those that it shares with its conversation, and its own."""
    ended = SimRequest(replace(request().spec, shared_tokens=5, own_tokens=4), 4, 0)
    ended.status = Status.FINISHED_STOPPED
    engine = Engine([ended], lambda spec: 8)
    judge(engine, RECENT, replace(CONFIG, host_slots=4))
    assert asked(engine)[1:4] == [("r1", 9), ("unseen", 4), ("short", 4)]


def test_new_ones_may_be_as_long_as_the_engine_lets_them_come_again() -> None:
    """With a token more, and one that is sampled: of ten tokens that leaves four chunks, in two requests."""
    ended = SimRequest(request().spec, 2, 0)
    ended.status = Status.FINISHED_STOPPED
    engine, config = Engine([ended], lambda spec: 8), replace(CONFIG, block_size=2, num_blocks=6)
    assert config.longest_request == 10
    judge(engine, RECENT, config)
    assert asked(engine)[1:4] == [("r1", 9), ("unseen", 6), ("short", 2)]


def test_it_is_not_asked_where_it_can_not_be_known() -> None:
    """A copy is lost, which keeps its room; who may not do both; who drops something else; who never rests."""
    plain = [("r1", 9)]
    for subject, config, devices, ended in (
        (KEEPS, {}, (), [request()]),
        (RECENT, {"role": "kv_consumer"}, (), [request()]),
        (RECENT, {"role": "kv_producer"}, (), [request()]),
        (RECENT, {}, (copies(), copies(running=1)), [request()]),
        (RECENT, {}, (copies(running=1), copies()), [request()]),
        (RECENT, {}, (), []),
        (RECENT, {}, (), [request("short", 3)]),
    ):
        engine = Engine(ended, lambda spec: 8, *devices)
        assert judge(engine, subject, replace(CONFIG, **config)) == []
        assert asked(engine) == [each for each in plain if any(one.request_id == "r1" for one in ended)]
    engine = Engine([request()], lambda spec: 8)
    engine.works = lambda: True
    judge(engine, RECENT)
    assert asked(engine) == plain


@pytest.mark.parametrize("never", [*range(2, 8)])
def test_one_that_never_ends_is_the_last(never: int) -> None:
    """Which is LIVENESS, and told already."""
    engine = Engine([request()], lambda spec: 8 if len(asked(engine)) == 1 else 0)
    engine.works = lambda: len(asked(engine)) >= never
    told = judge(engine, RECENT, replace(CONFIG, host_slots=4))
    assert len(asked(engine)) == min(never, 7)
    assert len(told) == max(0, never - 5)


def test_what_a_failed_copy_dropped_of_them_is_not_missed() -> None:
    def fails(spec: RequestSpec) -> int:
        if len(asked(engine)) == 5:
            engine.devices[0].copies.ended.append(copies(State.FAILED).copies.ended[0])
        return 8 if len(asked(engine)) == 1 else 0

    engine = Engine([request()], fails, copies(), copies(State.FAILED))
    assert judge(engine, RECENT, replace(CONFIG, host_slots=4)) == []
    assert len(asked(engine)) == 7
