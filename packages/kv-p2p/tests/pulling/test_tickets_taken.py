"""The scheduler's side, of an engine to which requests come with tickets."""

from types import SimpleNamespace

import pytest
from kv_p2p_engine import THERE, Blocks, Request, scheduler, shape, step, ticket_of

from kv_api import CacheHitSource, KVConnectorOutput
from kv_p2p.pulling.metadata import P2PMetadata, Part, Pull, Source
from kv_p2p.pulling.ticket import digest_of

TOKENS = range(10)
"""Two blocks and a half."""


def asking(tokens=TOKENS, *, prompt=None, name="a", **changes):
    """A request without salt and adapter, and the ticket that came with it."""
    ticket = ticket_of(tokens, **changes)
    return Request(name, prompt if prompt is not None else tokens, ticket.to_params("there")), ticket


def source(ticket):
    return Source(ticket.address, ticket.hold_id, ticket.digest)


def told(half):
    return half.build_connector_meta(step())


def declined(ticket):
    return P2PMetadata(declined=[source(ticket)])


class TestWhichAreTaken:
    @pytest.mark.parametrize("params", [None, {}, {"do_remote_prefill": False}, {"do_remote_decode": True}])
    def test_without_a_ticket_there_is_nothing(self, make, params):
        half = make()
        request = Request("a", TOKENS, params)
        half.on_new_request(request)
        assert half.get_num_new_matched_tokens(request, 0) == (0, False)
        half.update_state_after_alloc(request, Blocks(1, 2, 3), 0)
        assert told(half) == P2PMetadata()
        assert not half.has_pending_push_work()

    def test_who_was_never_new_has_none(self, make):
        half = make()
        request, _ = asking()
        assert half.get_num_new_matched_tokens(request, 0) == (0, False)
        half.update_state_after_alloc(request, Blocks(1, 2, 3), 0)
        assert told(half) == P2PMetadata()

    def test_what_is_no_ticket_is_said_and_computed(self, make, caplog):
        half = make()
        request, _ = asking()
        request.kv_transfer_params["remote_port"] = "x"
        half.on_new_request(request)
        assert half.get_num_new_matched_tokens(request, 0) == (0, False)
        assert told(half) == P2PMetadata()
        assert caplog.messages == [
            "request a: kv_transfer_params.remote_port: expected a whole number of at least 1, got 'x'; its "
            "prompt is computed here"
        ]
        (record,) = caplog.records
        assert (record.name, record.levelname, record.funcName) == ("kv_p2p", "WARNING", "begin_request")

    @pytest.mark.parametrize("params", ["x", [1], 7, 1.5])
    def test_what_is_no_object_is_said_and_computed(self, params, make, caplog):
        """A client can send it in ``vllm_xargs``; whether it comes so far is up to the engine."""
        half = make("kv_both")
        request, _ = asking()
        request.kv_transfer_params = params
        half.on_new_request(request)
        assert half.get_num_new_matched_tokens(request, 0) == (0, False)
        assert half.request_finished(request, [1, 2, 3]) == (False, None)
        said = f"request a: kv_transfer_params: expected an object, got {params!r}; its prompt is computed here"
        assert caplog.messages == [said]

    @pytest.mark.parametrize(
        "key", [None, "remote_host", "remote_digest", "remote_port", "remote_groups", "shape"]
    )
    def test_of_much_that_a_client_sends_little_is_logged(self, key, make, caplog):
        half = make("kv_both")
        request, _ = asking()
        much = ["x" * 10] * 10_000
        if key is None:
            request.kv_transfer_params = much
        elif key == "shape":
            request.kv_transfer_params["remote_groups"] *= 10_000
        else:
            request.kv_transfer_params[key] = "x" * 100_000 if key == "remote_host" else much
        half.on_new_request(request)
        assert half.get_num_new_matched_tokens(request, 0) == (0, False)
        [message] = caplog.messages
        assert len(message) < 1000
        assert message.endswith("; its prompt is computed here")

    @pytest.mark.parametrize("is_readable", [True, False])
    def test_who_stands_for_a_client_that_went_has_its_ticket_declined_and_is_no_refusal(
        self, is_readable, make, caplog
    ):
        """As vLLM's front end makes it up: with a prompt of one token, and ended at once."""
        half = make()
        request, ticket = asking(prompt=[0])
        request.abort_immediately = True
        if not is_readable:
            request.kv_transfer_params["remote_port"] = "x"
        half.on_new_request(request)
        assert half.request_finished(request, []) == (False, None)
        assert told(half) == (declined(ticket) if is_readable else P2PMetadata())
        assert half.get_kv_connector_stats() is None
        assert caplog.messages == []

    def refused(self, half, request, ticket, caplog):
        half.on_new_request(request)
        assert half.get_num_new_matched_tokens(request, 0) == (0, False)
        assert half.has_pending_push_work()
        assert told(half) == declined(ticket)
        assert not half.has_pending_push_work()
        (message,) = caplog.messages
        start, end = "request a: ", "; its prompt is computed here"
        assert message.startswith(start)
        assert message.endswith(end)
        return message[len(start) : -len(end)]

    def test_not_by_a_producer(self, make, caplog):
        said = self.refused(make("kv_producer"), *asking(), caplog)
        assert said == "it came with a ticket, but kv_role is 'kv_producer'"

    @pytest.mark.parametrize("role", ["kv_consumer", "kv_both"])
    def test_by_a_consumer(self, make, role):
        half = make(role)
        request, _ = asking()
        half.on_new_request(request)
        assert half.get_num_new_matched_tokens(request, 0) == (10, True)

    @pytest.mark.parametrize("other", [shape(8), shape(tp=2), shape(pp=2)])
    def test_not_of_another_shape(self, make, caplog, other):
        request, ticket = asking(shape=other)
        said = self.refused(make(), request, ticket, caplog)
        ours = "Shape(block_size=4, tp_size=1, pp_size=1, groups=(Group(block_size=4, window=0),))"
        assert said == f"the ticket is of {other}, this engine is {ours}"

    def test_the_shape_is_that_of_the_engine(self, make):
        half = make(tp=2, pp=3)
        request, _ = asking(shape=shape(tp=2, pp=3))
        half.on_new_request(request)
        assert half.get_num_new_matched_tokens(request, 0) == (10, True)

    def test_not_of_more_than_the_prompt(self, make, caplog):
        request, ticket = asking(prompt=range(9))
        request.all_token_ids.append(9)  # what the request has made itself is none of its prompt
        assert self.refused(make(), request, ticket, caplog) == "the ticket is of 10 tokens, the prompt has 9"

    @pytest.mark.parametrize(
        "changes",
        [{"tokens": [*range(9), 8]}, {"salt": "s"}, {"adapter": "l"}, {"digest": "d"}],
        ids=lambda changes: next(iter(changes)),
    )
    def test_not_of_other_kv(self, make, caplog, changes):
        request, ticket = asking(**{"prompt": TOKENS, **changes})
        said = self.refused(make(), request, ticket, caplog)
        assert said == "the ticket is of other tokens or images, another salt or another adapter"

    def test_not_of_another_image(self, make, caplog):
        request, ticket = asking()
        where = SimpleNamespace(offset=2, length=1)
        request.mm_features = [SimpleNamespace(identifier="i", mm_position=where)]
        said = self.refused(make(), request, ticket, caplog)
        assert said == "the ticket is of other tokens or images, another salt or another adapter"

    def test_not_for_embeddings(self, make, caplog):
        request, ticket = asking()
        request.prompt_embeds = object()
        assert self.refused(make(), request, ticket, caplog) == "some of its prompt is embeddings"

    def test_of_the_same_salt_and_adapter(self, make):
        half = make()
        ticket = ticket_of(TOKENS, salt="s", adapter="l")
        request = Request("a", TOKENS, ticket.to_params("there"), salt="s", adapter="l")
        half.on_new_request(request)
        assert half.get_num_new_matched_tokens(request, 0) == (10, True)


class TestHowMuch:
    @pytest.mark.parametrize(
        ("ticketed", "prompt", "local", "more"),
        [
            (10, 10, 0, 10),
            (10, 10, 4, 6),
            (10, 10, 8, 2),
            (8, 8, 0, 8),
            (8, 8, 4, 4),
            (8, 8, 8, 0),
            (9, 9, 8, 1),
            (10, 11, 0, 8),  # the last block would be half of somebody else's
            (10, 16, 4, 4),
            (10, 16, 8, 0),
            (10, 16, 12, 0),
            (3, 4, 0, 0),
            (3, 3, 0, 3),
        ],
    )
    def test_all_of_the_same_prompt_and_whole_blocks_of_a_longer_one(self, make, ticketed, prompt, local, more):
        half = make()
        request, _ = asking(range(ticketed), prompt=range(prompt))
        half.on_new_request(request)
        for _ in range(2):
            assert half.get_num_new_matched_tokens(request, local) == (more, more > 0)
            half.check()
        assert told(half) == P2PMetadata()
        assert not half.has_pending_push_work()

    def test_a_prompt_of_the_same_length_that_has_output_already(self, make):
        """Then it is no longer exactly what the ticket is of."""
        half = make()
        request, _ = asking()
        half.on_new_request(request)
        request.all_token_ids.append(99)
        assert half.get_num_new_matched_tokens(request, 0) == (8, True)


class TestTaking:
    @pytest.mark.parametrize(
        ("local", "given", "first", "blocks"),
        [
            (0, 10, 0, (3, 1, 2)),
            (4, 6, 1, (1, 2)),
            (8, 2, 2, (2,)),
            (6, 4, 1, (1, 2)),  # nobody has half a block, but if somebody had it would be filled anew
            (0, 8, 0, (3, 1)),  # the engine may shorten it
            (0, 5, 0, (3, 1)),
            (0, 4, 0, (3,)),
            (4, 1, 1, (1,)),
            (4, 4, 1, (1,)),
        ],
    )
    def test_blocks_are_filled_from_their_places_in_the_prompt(self, make, local, given, first, blocks):
        half = make()
        request, ticket = asking()
        half.on_new_request(request)
        half.get_num_new_matched_tokens(request, local)
        half.update_state_after_alloc(request, Blocks(3, 1, 2, 4), given)
        assert half.get_external_cache_hit_sources(request, given) == {CacheHitSource.P2P: given}
        assert half.has_pending_push_work()
        assert told(half) == P2PMetadata(pulls=[Pull("a", source(ticket), (Part(first, blocks),))])
        assert half.has_pending_push_work()
        assert told(half) == P2PMetadata()
        half.update_connector_output(KVConnectorOutput(finished_recving={"a"}))
        assert not half.has_pending_push_work()

    def test_one_pull_ends_and_another_goes_on(self, make):
        half = make()
        for name in ("a", "b"):
            request, _ = asking(name=name, hold_id=f"{name}.1")
            half.on_new_request(request)
            half.get_num_new_matched_tokens(request, 0)
            half.update_state_after_alloc(request, Blocks(1, 2, 3), 10)
        told(half)
        half.update_connector_output(KVConnectorOutput(finished_recving={"a"}))
        assert half.has_pending_push_work()
        half.update_connector_output(KVConnectorOutput(finished_recving={"b"}))
        assert not half.has_pending_push_work()

    def test_the_last_question_counts(self, make):
        half = make()
        request, ticket = asking()
        half.on_new_request(request)
        half.get_num_new_matched_tokens(request, 8)
        half.get_num_new_matched_tokens(request, 4)
        half.update_state_after_alloc(request, Blocks(1, 2, 3), 6)
        assert told(half).pulls == [Pull("a", source(ticket), (Part(1, (2, 3)),))]

    def test_the_engine_wants_nothing_of_it(self, make):
        half = make()
        request, ticket = asking()
        half.on_new_request(request)
        half.get_num_new_matched_tokens(request, 0)
        half.update_state_after_alloc(request, Blocks(1, 2, 3), 0)
        half.check()
        assert told(half) == declined(ticket)
        assert half.get_num_new_matched_tokens(request, 0) == (0, False)

    def test_the_second_call_after_a_pull_is_no_refusal(self, make):
        half = make()
        request, _ = asking()
        half.on_new_request(request)
        half.get_num_new_matched_tokens(request, 0)
        half.update_state_after_alloc(request, Blocks(1, 2, 3), 10)
        told(half)
        half.update_connector_output(KVConnectorOutput(finished_recving={"a"}))
        half.update_state_after_alloc(request, Blocks(1, 2, 3, 4), 0)
        assert told(half) == P2PMetadata()

    def test_a_ticket_is_taken_once(self, make):
        """Who is preempted, or whose pull failed, computes."""
        half = make()
        request, _ = asking()
        half.on_new_request(request)
        half.get_num_new_matched_tokens(request, 0)
        half.update_state_after_alloc(request, Blocks(1, 2, 3), 10)
        assert half.get_num_new_matched_tokens(request, 0) == (0, False)

    def test_an_id_that_comes_again_has_the_ticket_that_it_came_with(self, make):
        half = make()
        for hold_id, table in (("there.1", (1, 2, 3)), ("there.2", (4, 5, 6))):
            request, ticket = asking(hold_id=hold_id)
            half.on_new_request(request)
            assert half.get_num_new_matched_tokens(request, 0) == (10, True)
            half.update_state_after_alloc(request, Blocks(*table), 10)
            assert told(half).pulls == [Pull("a", source(ticket), (Part(0, table),))]
            half.update_connector_output(KVConnectorOutput(finished_recving={"a"}))
            assert half.request_finished(request, list(table)) == (False, None)
        assert told(half) == P2PMetadata()


class TestNotTaking:
    @pytest.mark.parametrize("local", [None, 0])
    def test_a_request_that_ends_before_declines(self, make, local):
        half = make()
        request, ticket = asking()
        half.on_new_request(request)
        if local is not None:
            half.get_num_new_matched_tokens(request, local)
        assert half.request_finished(request, []) == (False, None)
        half.check()
        assert told(half) == declined(ticket)

    def test_after_a_reset_no_ticket_from_before_is_taken(self, make):
        half = make()
        a, first = asking(name="a", hold_id="there.1")
        b, second = asking(name="b", hold_id="there.2")
        c, third = asking(name="c", hold_id="there.3")
        for request in (a, b, c):
            half.on_new_request(request)
            half.get_num_new_matched_tokens(request, 0)
        half.update_state_after_alloc(c, Blocks(1, 2, 3), 10)
        assert half.reset_cache() is True
        half.check()
        assert half.get_num_new_matched_tokens(a, 0) == (0, False)
        assert told(half) == P2PMetadata(
            pulls=[Pull("c", source(third), (Part(0, (1, 2, 3)),))], declined=[source(first), source(second)]
        )
        half.reset_cache()
        assert told(half) == P2PMetadata()


def test_recounting_finds_what_cannot_be():
    for break_it, said in [
        (lambda half: half._consumer._pulling.add("a"), "ticketed ['a'], pulled ['a'], held []"),
        (lambda half: half._producer._holding.update(a=()), "ticketed ['a'], pulled [], held ['a']"),
        (lambda half: half._consumer._asked_from.update(b=1), "asked from {'b': 1}, ticketed ['a']"),
        (lambda half: half._consumer._pulls.append(Pull("b", Source(THERE, "h", "d"), ())), "not pulled"),
    ]:
        half = scheduler()
        request, ticket = asking()
        assert ticket.digest == digest_of(request, 10)
        half.on_new_request(request)
        half.check()
        break_it(half)
        with pytest.raises(AssertionError) as raised:
            half.check()
        assert said in str(raised.value)
