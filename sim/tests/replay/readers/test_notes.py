"""What a reader notes of a trace: how much doesn't fit, what was left out, what was assumed."""

import json

import pytest

from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import OnError, TraceOptions
from kv_sim.replay.readers.requests.naming import IdScope
from kv_sim.replay.readers.requests.sharing import parse_sharing


def request(time, tokens, ids):
    return {"timestamp": time, "input_length": tokens, "output_length": 1, "hash_ids": ids}


@pytest.fixture
def notes(tmp_path):
    """Writes records, and reads what is noted of them beside their format."""

    def notes(records, options=None):
        file = tmp_path / "trace.jsonl"
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        return [note.replace(f"{file}:", "line ") for note in open_trace(file, options).notes[1:]]

    return notes


def test_of_many_malformed_records_the_first_three_are_shown(notes):
    records = [request(0, 512, [1]), *({"hash_ids": []} for _ in range(5))]
    why = "input_length: no such field, and it isn't of format mooncake without"
    assert notes(records, TraceOptions(on_error=OnError.SKIP)) == [
        f"5 malformed records were skipped, first: line 2: {why}; line 3: {why}; line 4: {why}"
    ]


def test_times_since_1970_in_the_usual_unit_are_nothing_to_say(notes):
    assert notes([request(1_790_000_000_000, 512, [1])]) == []


def test_units_are_told_from_a_thousand_records(notes):
    usual, others = request(0, 512, [1]), request(0, 64, [2, 3, 4, 5])
    said = "blocks look like 16 tokens, not 512: lengths and ids of 96% of requests agree (--block-size)"
    assert said in notes([usual] * 40 + [others] * 960)
    assert not any("blocks look like" in note for note in notes([usual] * 51 + [others] * 969))


def test_prompts_without_blocks_say_nothing_about_their_size(notes):
    assert notes([request(0, 0, []), request(0, 0, [])]) == []


def test_requests_that_all_come_at_once_have_no_rate(notes):
    assert notes([request(5, 100_000, [])] * 100, TraceOptions(block_tokens=100_001)) == []


@pytest.mark.parametrize(
    ("fitting", "said"),
    [(3, []), (2, []), (1, ["lengths and ids of only 33% of requests fit blocks of 512 tokens"])],
)
def test_a_usual_block_that_fits_few_requests_is_said(notes, fitting, said):
    records = [request(0, 512, [1])] * fitting + [request(0, 100_000, [1])] * 2
    shown = [note for note in notes(records) if "of requests fit" in note]
    assert shown == said


def test_a_request_that_lacks_the_id_of_its_last_full_block_is_said(notes):
    short = "1 request has fewer ids than full blocks: the rest is never a hit"
    options = TraceOptions(block_tokens=512)
    fits, lacks = request(0, 1535, [1, 2]), request(0, 1536, [1, 2])
    assert notes([fits], options) == []
    assert notes([fits, lacks], options) == [short]


def test_if_most_requests_lack_ids_their_blocks_are_asked_about(notes):
    fits, lacks = request(0, 15, []), request(0, 1536, [1, 2, 3])
    short = "{} requests have fewer ids than full blocks: the rest is never a hit{}"
    asked = " (is the block size right? --block-size)"
    options = TraceOptions(block_tokens=16)
    assert notes([fits] * 2 + [lacks] * 2, options) == [short.format(2, "")]
    assert notes([fits] * 2 + [lacks] * 3, options) == [short.format(3, asked)]
    assert notes([lacks] * 2, options) == [short.format(2, asked)]


def test_an_assumption_that_nothing_is_shared_is_said(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,100,5\n")
    assert open_trace(file, TraceOptions(sharing=parse_sharing("none"))).notes == (
        "format: vidur",
        "the trace has no ids; assumed: nothing is shared (--assume-sharing none)",
    )


@pytest.mark.parametrize(
    ("setting", "said"),
    [("tokens=128", "100 prefixes of 128 tokens"), ("share=0.5,prefixes=7", "7 prefixes of 1024 tokens")],
)
def test_counts_of_an_assumption_are_whole(setting, said):
    assert f"one of {said}, " in str(parse_sharing(f"zipf:{setting}"))


TEXT = "four characters are taken for a token"
EMPTY = "1 request says nothing, or nothing but roles: did the log leave out the text?"


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ([[*range(40)], [*range(16), 7]], []),
        ([[]], [EMPTY]),
        ([""], [TEXT, EMPTY]),
        ([[*range(40)], "Tell me."], [TEXT]),
        (["Tell me.", [*range(40)]], [TEXT]),
    ],
)
def test_of_token_ids_it_is_not_said_what_text_is_taken_for(tmp_path, prompts, said):
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    no_times = "the trace has no times: one request a second is assumed"
    assert open_trace(file).notes == ("format: vllm", *said, no_times)


def test_a_date_that_is_a_number_is_said(notes):
    requests = [request(time, 512, [1]) for time in (20260131235959, 20260201000001)]
    assert "times look like dates, as 20260131235959, and are taken for ms (--time-unit)" in notes(requests)
    told = TraceOptions(time_unit="s")
    assert not any("look like dates" in note for note in notes(requests, told))


@pytest.mark.parametrize("prompt", ["[hidden]", [*range(9)]])
def test_that_all_prompts_are_the_same_is_said(read, prompt):
    same = "all 10 prompts are the same: did the log leave out what they say?"
    for count, other, is_said in ((10, [], True), (9, [], False), (9, ["b"], False), (10, ["b"], False)):
        _, notes = read(*({"prompt": one} for one in [*[prompt] * count, *other]))
        assert (same in notes) is is_said


@pytest.mark.parametrize(
    ("prompts", "count"),
    [
        ([[*range(40), *[0] * 8], [*range(40)]], 1),
        ([[*[7] * 8, *range(40)], [*[7] * 9, *range(39)]], 2),
        ([[*range(40), -1]], 1),
        ([[-100, *range(40)]], 1),
        ([[*range(40), *[0] * 7]], 0),
        ([[5] * 40], 0),
        ([[0] * 8, [*range(40)]], 0),
        ([[*range(40), *[0] * 8], [*range(40)], [*range(41)]], 0),
    ],
)
def test_what_fills_prompts_up_is_said(read, prompts, count):
    _, notes = read(*({"prompt": prompt} for prompt in prompts))
    said = [note.partition(" ")[0] for note in notes if "is that padding?" in note]
    assert said == [str(count)] * bool(count)


def test_without_a_session_nothing_is_kept_apart_and_that_is_said(notes):
    said = "no request has a session: nothing is kept apart (--id-scope)"
    plain, of_one = request(0, 512, [1]), {**request(0, 512, [1]), "session_id": "a"}
    assert notes([plain, plain], TraceOptions(scope=IdScope.SESSION)) == [said]
    for scope in (IdScope.AUTO, IdScope.GLOBAL):
        assert notes([plain, plain], TraceOptions(scope=scope)) == []
    for records in ([plain, of_one], [of_one, plain]):
        assert notes(records, TraceOptions(scope=IdScope.SESSION)) == []
