"""Chats as text: what counts as a prompt, what prompts share, and what is refused."""

import pytest

from kv_api import ConfigError
from kv_sim.replay.readers.formats.conversations import CONVERSATIONS
from kv_sim.replay.readers.formats.dated import DATED
from kv_sim.replay.readers.formats.openai import OPENAI
from kv_sim.replay.readers.options import Unsorted
from kv_sim.replay.readers.requests.naming import IdScope

LONG = "0123456789" * 40
"""400 characters: 6 whole blocks and more."""


def shares(one, other):
    """How many blocks two prompts begin with."""
    same = [a == b for a, b in zip(one.blocks, other.blocks, strict=False)]
    return same.index(False) if False in same else len(same)


def user(content=LONG, role="user", **more):
    return {"role": role, "content": content, **more}


def asked(*messages, **more):
    return {"messages": [*messages], **more}


def test_the_next_turn_begins_with_all_of_the_last_one_and_its_answer(read):
    turns = [asked(user()), asked(user(), user("Yes. " * 40, "assistant"), user("And?"))]
    (first, second), _ = read(*turns)
    assert first.input_tokens == -(-(8 + 400 + 13) // 4)
    assert second.input_tokens == -(-(8 + 400 + 13 + 200 + 8 + 4 + 13) // 4)
    assert shares(first, second) == first.input_tokens // 16 == 6


@pytest.mark.parametrize(
    "before", [{"system": LONG}, {"tools": [{"type": "function", "function": {"name": LONG}}]}]
)
def test_what_is_said_beside_the_messages_comes_first(read, before):
    (first, second, third), _ = read(asked(user("a"), **before), asked(user("b"), **before), asked(user("b")))
    assert shares(first, second) >= 6
    assert shares(second, third) == 0


def test_tools_come_first_of_all_and_instructions_last(read):
    """So what differs in a later one leaves what is before it to be shared."""
    fields = {"tools": LONG, "system": LONG, "instructions": LONG}
    whole, *others = read(
        asked(user("a"), **fields), *(asked(user("a"), **{**fields, one: "b"}) for one in fields)
    )[0]
    assert [shares(whole, other) for other in others] == [0, 6, 13]


def test_content_may_be_parts(read):
    text = {"type": "text", "text": LONG}
    image = {"type": "image_url", "image_url": {"url": "data:" + "A" * 10_000}}
    other = {"type": "image_url", "image_url": {"url": "data:" + "B" * 10_000}}
    plain, parts, seen, elsewhere, nothing = read(
        *(asked(user(content)) for content in (LONG, [text], [text, image], [text, other], None))
    )[0]
    assert plain.blocks == parts.blocks
    assert seen.input_tokens == -(-(8 + 400 + len("<image_url >") + 16 + 13) // 4), "16 letters stand for it"
    assert shares(seen, elsewhere) == 6 < len(seen.blocks)
    assert nothing.input_tokens == -(-(8 + 13) // 4)


def test_in_which_order_the_fields_of_a_call_or_a_part_stand_is_no_matter(read):
    call, part = {"id": "1", "type": "function", "name": LONG}, {"type": "tool_result", "of": "1", "content": LONG}
    records = [
        asked(user([dict(fields(part))]), user(None, "assistant", tool_calls=[dict(fields(call))]), user("a"))
        for fields in (dict.items, lambda value: reversed(value.items()))
    ]
    (first, second), _ = read(*records)
    assert first.blocks == second.blocks


def test_calls_of_tools_and_their_results_are_text(read):
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": LONG}}
    messages = [user("a"), user(None, "assistant", tool_calls=[call]), user(LONG, "tool")]
    (whole, without, other), _ = read(
        asked(*messages), asked(messages[0], messages[2]), asked(*messages[:2], user("b", "tool"))
    )
    assert whole.input_tokens - without.input_tokens > 100
    assert shares(whole, other) >= 6 > shares(whole, without)


def test_an_old_call_of_a_function_is_text_too(read):
    call = {"name": "look"}
    answers = user(None, "assistant", function_call=call), user('{"name": "look"}', "assistant")
    (old, new), _ = read(*(asked(user("a"), answer, user("b")) for answer in answers))
    assert old.blocks == new.blocks


@pytest.mark.parametrize("field", ["value", "text"])
def test_other_words_for_what_is_said(read, field):
    (first, second), _ = read(asked(user()), asked({"role": "user", "content": None, field: LONG}))
    assert first.blocks == second.blocks


@pytest.mark.parametrize("word", ["gpt", "chatgpt", "bing", "bard", "model", "bot"])
def test_other_words_for_who_answers(read, word):
    records = [asked(user(), user(LONG, role), user("b")) for role in (word, "assistant", "user")]
    records.append(asked(user(), {**user(LONG, "assistant"), "from": "user"}, user("b")))
    (first, second, other, named), _ = read(*records)
    assert first.blocks == second.blocks == named.blocks != other.blocks
    assert read(asked(user("a", "human"), user("b", word)))[0][0].blocks == read(asked(user("a")))[0][0].blocks


@pytest.mark.parametrize(
    ("record", "tokens"),
    [
        ({}, 0),
        ({"output_tokens": 5}, 5),
        ({"completion_tokens": 5}, 5),
        ({"usage": {"prompt_tokens": 9, "completion_tokens": 6}}, 6),
        ({"response": {"usage": {"output_tokens": 7}}}, 7),
        ({"response": {"status_code": 200, "body": {"usage": {"completion_tokens": 8}}}}, 8),
        ({"response": "123456789"}, 3),
        ({"response": "123456789", "request": {"max_tokens": 5}}, 3),
        ({"response": ["what"], "usage": None}, 0),
    ],
)
def test_how_long_an_answer_was(read, record, tokens):
    ((request,), _) = read(asked(user(), **record))
    assert request.output_tokens == tokens


@pytest.mark.parametrize("field", ["timestamp", "created", "created_at", "time"])
@pytest.mark.parametrize(
    ("first", "second", "seconds"),
    [
        (5, 8.5, 3.5),
        (1790000000000, 1790000003000, 3),
        ("2026-11-25T08:00:00Z", "2026-11-25T09:00:01+01:00", 1),
        ("2026-11-25 08:00:00.250", "2026-11-25T08:00:01", 0.75),
    ],
)
def test_times_are_numbers_or_dates(read, field, first, second, seconds):
    requests, _ = read(asked(user(), **{field: first}), asked(user(), **{field: second}))
    assert [request.arrival_seconds for request in requests] == [0, seconds]


def test_a_file_for_batches(read):
    records = [
        {"custom_id": f"{n}", "method": "POST", "url": "/v1/chat/completions", "body": asked(user(), model=model)}
        for n, model in enumerate("aab")
    ]
    (first, second, third), notes = read(*records)
    assert (shares(first, second), shares(second, third)) == (7, 0)
    assert notes[:2] == ("format: openai", "four characters are taken for a token")
    assert "2 models" in notes[-1]


def test_sessions_of_requests_may_be_kept_apart(read):
    records = [asked(user(), session_id="a"), asked(user(), conversation_id="b"), asked(user(), session_id="a")]
    assert [shares(one, other) for one, other in zip(*[read(*records)[0]] * 2, strict=True)] == [7, 7, 7]
    (first, second, third), _ = read(*records, scope=IdScope.SESSION)
    assert (shares(first, second), shares(first, third)) == (0, 7)


def test_who_logs_requests_when_they_end_has_them_sorted(read):
    records = [asked(user("a"), timestamp=9), asked(user("b"), timestamp=5)]
    with pytest.raises(ConfigError, match=r"trace.jsonl:2: it arrives 4 s before the request above it"):
        read(*records)
    assert [request.arrival_seconds for request in read(*records, unsorted=Unsorted.SORT)[0]] == [0, 4]


# -- conversations -------------------------------------------------------------------------------

TALK = [user("Hello? " * 40), user("Hello! " * 40, "assistant"), user("Why?"), user("So.", "assistant")]


def test_every_answer_of_a_conversation_is_a_request(read):
    for record in (asked(*TALK), {"conversations": [{"from": m["role"], "value": m["content"]} for m in TALK]}):
        (first, second), notes = read(record)
        assert (first.output_tokens, second.output_tokens) == (70, 1)
        assert second.input_tokens == -(-(8 + 280 + 13 + 280 + 8 + 4 + 13) // 4)
        assert shares(first, second) == first.input_tokens // 16
        assert second.arrival_seconds - first.arrival_seconds == 60
        assert notes == (
            "format: conversations",
            "four characters are taken for a token, a minute for the time between two turns",
        )


def test_conversations_begin_together_or_one_after_another_and_share_what_they_say(read):
    requests, notes = read(asked(*TALK), asked(*TALK[:2]))
    assert [request.arrival_seconds for request in requests] == [0, 0, 60]
    assert requests[0].blocks == requests[1].blocks
    assert notes[-1] == "2 sessions count their own time, so all begin at once (--stagger)"
    requests, _ = read(asked(*TALK), asked(*TALK[:2]), stagger_seconds=7)
    assert [request.arrival_seconds for request in requests] == [0, 7, 60]


def test_nobody_asks_for_the_first_words_of_who_answers(read):
    requests, _ = read(
        asked(user(role="assistant"), *TALK), asked(user("x"), user("y", "system")), format="conversations"
    )
    assert len(requests) == 2


def test_what_is_a_conversation_and_what_a_request():
    answered = asked(user(), user("Yes", "assistant"))
    assert CONVERSATIONS.is_of(answered) and CONVERSATIONS.is_of({"conversations": []})
    for record in (asked(user()), {**answered, "timestamp": 5}, asked(), asked("what"), {"messages": 3}, {}):
        assert not CONVERSATIONS.is_of(record) and not DATED.is_of(record)
    dated = asked(user(created=5), user("Yes", "assistant"))
    assert DATED.is_of(dated) and DATED.is_of({"conversation": [3, user(time="x")]})
    odd = {"conversation": [], "conversations": 3}
    for record in (answered, {**dated, "timestamp": 5}, asked(user(created=5)), odd):
        assert not DATED.is_of(record)
    assert OPENAI.is_of(asked()) and OPENAI.is_of({"body": asked()})
    assert not OPENAI.is_of({"messages": 3}) and not OPENAI.is_of({"body": [], "messages": None})


# -- conversations with times --------------------------------------------------------------------


def at(minute, message):
    return {**message, "timestamp": f"2024-05-06T07:{minute:02}:00+00:00"}


def test_a_request_arrives_with_the_message_before_its_answer(read):
    """In WildChat only answers have a time, and there theirs counts."""
    hello, hi, why, so = TALK
    for talk in (
        [at(1, hello), at(3, hi), at(20, why), so],
        [at(1, hello), hi, why, at(20, so)],
        [{**hello, "timestamp": None}, at(1, hi), why, at(20, so)],
        [{**message, "timestamp": 1715000000 + 1140 * (place > 1)} for place, message in enumerate(TALK)],
    ):
        requests, notes = read({"conversation": talk, "timestamp": "2024-05-06T07:59:00Z"})
        assert [request.arrival_seconds for request in requests] == [0, 1140]
        assert shares(*requests) == requests[0].input_tokens // 16
        assert notes[:2] == (
            "format: conversations-dated",
            "four characters are taken for a token, "
            "a request without a time of its own arrived when its answer was whole, or, of a conversation that "
            "only has a time as a whole, a minute after the one before",
        )


def test_a_time_of_a_whole_conversation_is_its_begin_or_wildchat_s_its_end(read):
    whole = {"conversation": TALK, "timestamp": "2024-05-06T07:10:00Z"}
    other = {"conversation": TALK[:2], "timestamp": "2024-05-06T07:09:30Z"}
    assert [one.arrival_seconds for one in read(whole, other)[0]] == [0, 30, 90]
    requests, _ = read({**whole, "conversation_hash": "a"}, {**other, "conversation_hash": "b"})
    assert [one.arrival_seconds for one in requests] == [0, 30, 60]


def test_conversations_with_times_go_on_beside_each_other(read):
    """By one clock, and so they aren't staggered."""
    first = [at(5, TALK[0]), TALK[1], at(9, TALK[2]), TALK[3]]
    second = [at(2, TALK[0]), TALK[1], at(7, TALK[2]), TALK[3]]
    requests, notes = read(asked(*first), asked(*second), stagger_seconds=7)
    assert [request.arrival_seconds for request in requests] == [0, 180, 300, 420]
    assert notes[2:] == (
        "requests of format conversations-dated have their own times: nothing is staggered (--stagger)",
    )


@pytest.mark.parametrize(
    ("talk", "reason"),
    [
        ([at(1, TALK[0]), *TALK[1:]], "messages[3].timestamp: expected when it was sent, as of others, got none"),
        (
            [*TALK[:2], at(1, TALK[2]), TALK[3]],
            "messages[1].timestamp: expected when it was sent, as of others, got",
        ),
        (
            [{**TALK[0], "timestamp": "now"}, TALK[1]],
            "messages[0].timestamp: expected a number or a date, got 'now'",
        ),
        ([TALK[0], {**TALK[1], "created": [1]}], "messages[1].created: expected a number, got [1]"),
        ([{**TALK[0], "time": 5}, "what"], "messages[1]: expected an object, got str"),
    ],
)
def test_what_says_of_some_messages_when(read, talk, reason):
    with pytest.raises(ConfigError) as refused:
        read(asked(*talk), format="conversations-dated")
    assert f"trace.jsonl:1: {reason}" in str(refused.value)


def test_an_answer_to_nobody_needs_no_time(read):
    """One to what came before the messages has its own."""
    opened = (user(role="assistant"), at(1, TALK[0]), TALK[1])
    requests, _ = read(asked(*opened))
    assert len(requests) == 1
    requests, _ = read(asked(at(0, opened[0]), opened[1], at(7, opened[2]), system="Say hello."))
    assert [request.arrival_seconds for request in requests] == [0, 60]


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"messages": 3}, "messages: expected a list of messages, got int"),
        ({"body": {}}, "messages: expected a list of messages, got no such field"),
        (asked(user(), "what"), "messages[1]: expected an object, got str"),
        (asked({"type": "function_call"}), "messages[0]: expected a role (or from) that is text, got none"),
        (asked({"content": "a"}), "messages[0]: expected a role (or from) that is text, got none"),
        (asked(user(role=3)), "messages[0]: expected a role (or from) that is text, got none"),
        (asked(user(7)), "messages[0].content: expected text or a list of parts, got int"),
        (asked(user(), tools=7), "tools: expected text or a list of parts, got int"),
        (asked(user(), timestamp="soon"), "timestamp: expected a number or a date, got 'soon'"),
        (asked(user(), timestamp=[1]), "timestamp: expected a number, got [1]"),
        (
            asked(user(), usage={"completion_tokens": -1}),
            "usage.completion_tokens: expected a whole number of at least 0, got -1",
        ),
        (
            asked(user(), response='{"usage": {"completion_tokens": "x"}}'),
            "response.usage.completion_tokens: expected a whole number of at least 0, got 'x'",
        ),
    ],
)
def test_what_is_no_request(read, record, reason):
    with pytest.raises(ConfigError) as refused:
        read(asked(user()), record, format="openai")
    assert str(refused.value).endswith(f"trace.jsonl:2: {reason} (--on-error skip goes on)")


@pytest.mark.parametrize("name", ["conversations", "conversations-dated"])
@pytest.mark.parametrize(("record", "got"), [({"conversations": 3}, "int"), ({"id": 3}, "no such field")])
def test_what_is_no_conversation(read, name, record, got):
    with pytest.raises(ConfigError, match=rf":1: conversations: expected a list of messages, got {got}"):
        read(record, format=name)
