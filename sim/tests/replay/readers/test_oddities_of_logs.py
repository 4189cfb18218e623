"""What logs write in two ways, leave out, or put in the place of what was said."""

import gzip

import pytest
from kv_sim_foreign_traces import SAID, lengths, shared, user
from kv_sim_records import lines, mooncake

from kv_api import ConfigError
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import TraceOptions
from kv_sim.replay.readers.requests.sharing import parse_sharing
from kv_sim.replay.readers.unknown.own_columns import parse_columns

NONE = parse_sharing("none")


def test_an_id_is_the_same_as_a_number_and_as_text(read):
    (first, second, third), _ = read(
        mooncake(0, 1024, [1, 0]), mooncake(1, 1024, ["1", "0"]), mooncake(2, 1024, ["1", "00"])
    )
    assert (shared(first, second), shared(first, third)) == (2, 1)
    odd = [*("", "-1", "²", "٣", "1.0", "9" * 5000), "a"]
    requests, _ = read(mooncake(0, 512 * len(odd), odd), mooncake(1, 512 * len(odd), odd))
    assert shared(*requests) == len(odd)


def test_a_prompt_of_null_beside_messages_is_none(read):
    requests, notes = read(*({"prompt": None, "messages": [user(SAID)], "timestamp": n} for n in (1, 4)))
    assert (notes[0], lengths(requests)) == ("format: openai", [(0, 32, 0), (3, 32, 0)])


def test_what_stands_for_messages_is_no_prompt(read):
    with pytest.raises(
        ConfigError, match=r":1: messages\[0\].content: expected what was said, got 'redacted-by-l"
    ):
        read({"messages": [user("redacted-by-litellm")]})


# -- conversations with one time -----------------------------------------------------------------

TALK = [user(SAID), {"role": "assistant", "content": "ja"}, user("y" * 43), {"role": "assistant", "content": "so"}]


@pytest.mark.parametrize(
    ("field", "times"),
    [
        ("timestamp", ["2023-04-09T00:02:53+00:00", "2023-04-09T00:03:03+00:00"]),
        ("tstamp", [1690000000.25, 1690000010.25]),
        ("datetime_utc", ["2026-01-31T10:00:00.25+00:00", "2026-01-31T10:00:10.25+00:00"]),
        ("created_at", [1690000000250, 1690000010250]),
    ],
)
def test_a_conversation_begins_when_it_says(read, field, times):
    requests, notes = read(*({"conversation": TALK, field: time} for time in times))
    assert notes[0] == "format: conversations-dated"
    assert [one.arrival_seconds for one in requests] == [0, 10, 60, 70]


def test_what_is_called_like_a_time_and_is_none_is_left_alone(read):
    requests, notes = read({"conversation": TALK, "time": "soon"})
    assert (notes[0], len(requests)) == ("format: conversations", 2)


def test_a_conversation_without_a_time_among_such_is_malformed(read):
    with pytest.raises(ConfigError, match=r":2: timestamp: expected when it began, or when a message was sent"):
        read({"conversation": TALK, "timestamp": 1690000000}, {"conversation": TALK})


# -- columns that are named ----------------------------------------------------------------------

USED = {
    "input_tokens": 10,
    "cache_read_input_tokens": 1000,
    "cache_creation_input_tokens": None,
    "output_tokens": 5,
}
APART = "u.input_tokens+u.cache_read_input_tokens+u.cache_creation_input_tokens"


def test_a_length_may_be_a_sum(read):
    columns = parse_columns(f"time=ts,input={APART},output=u.output_tokens")
    requests, _ = read(
        {"ts": 0, "u": USED},
        {"ts": 3, "u": {**USED, "cache_creation_input_tokens": 7}},
        columns=columns,
        sharing=NONE,
    )
    assert lengths(requests) == [(0, 1010, 5), (3, 1017, 5)]
    with pytest.raises(ConfigError, match=r":1: a\+b: there is none"):
        read({"b": 5}, columns=parse_columns("input=a+b"), sharing=NONE)
    requests, _ = read({"a+b": 5, "a": 1}, columns=parse_columns("input=a+b"), sharing=NONE)
    assert lengths(requests) == [(0, 5, 0)]


def test_tokens_beside_what_a_cache_had_are_no_prompt(read):
    columns = parse_columns("input=u.input_tokens")
    with pytest.raises(ConfigError) as caught:
        read({"u": USED}, columns=columns, sharing=NONE)
    assert f":1: u.input_tokens: what a cache had of a prompt is counted apart: say input={APART}" in str(
        caught.value
    )
    requests, _ = read({"u": {**USED, "cache_read_input_tokens": 0}}, columns=columns, sharing=NONE)
    assert lengths(requests) == [(0, 10, 0)]


# -- images --------------------------------------------------------------------------------------

SEEN = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 2000}}]


def test_images_are_said_where_nobody_counted_them(read):
    asked = [{"messages": [{"role": "user", "content": one}]} for one in (SEEN, SEEN, "<image>")]
    said = "2 requests have images, sounds or files, each of which counts as some characters, and no usage tells"
    _, notes = read(*asked)
    assert any(note.startswith(said) for note in notes)
    _, notes = read(*({**one, "usage": {"prompt_tokens": 11}} for one in asked))
    assert not any("images" in note for note in notes)


# -- tables and logs for people ------------------------------------------------------------------


def test_bars_may_stand_between_columns(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text(
        "Timestamp|Model|Request tokens|Response tokens|Log Type\n5|m|472|18|API log\n9|m|40|1|API log\n"
    )
    requests = open_trace(file, TraceOptions(sharing=NONE))
    assert lengths(requests) == [(0, 472, 18), (4, 40, 1)]


def test_columns_in_other_letters_are_near(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("timestamp,model,request tokens,response tokens\n5,m,472,18\n")
    with pytest.raises(
        ConfigError, match=r"expected those of burstgpt \(Timestamp, Request tokens, Response tokens\) or"
    ):
        open_trace(file)


PEOPLE = r"is it a server's log for people\? what is in that is no whole prompt"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[2026-01-31 10:00:00] Receive: obj=GenerateReqInput(rid='a', text='so, it is')", PEOPLE),
        ('[2026-01-31 10:00:00] {"messages": []}', "remove what is before the JSON of a line"),
        ('[GIN] 2026/01/31 - 10:00:00 | 200 | 1.2s | 127.0.0.1 | POST "/api/chat"', PEOPLE),
        ('[INFO] {"messages": []}', "remove what is before the JSON of a line"),
        (
            '(APIServer pid=7) DEBUG 01-31 [logger.py:74] Request a JSON body: {"messages": [], "model": "m"}',
            "remove what is before the JSON of a line",
        ),
        (
            "INFO 01-31 [logger.py:43] Received request a: prompt: 'so', params: SamplingParams(n=1), lora: None",
            PEOPLE,
        ),
        (
            "Once upon a time there was a king.\nHe had a horse, and a castle.",
            "of a text with a prompt a line jq -Rc",
        ),
    ],
)
def test_a_log_for_people_is_called_one(tmp_path, line, said):
    file = tmp_path / "server.log"
    file.write_text(line + "\nand so on\n" + lines(mooncake(0, 512, [1])))
    with pytest.raises(ConfigError, match=said):
        open_trace(file)


# -- what would be hits that nobody had ----------------------------------------------------------


@pytest.mark.parametrize("nothing", [{"content": None}, {"content": ""}, {}, {"content": []}])
def test_messages_without_a_word_are_said(read, nothing):
    silent, said = (
        [{"role": "system", **nothing}, {"role": "user", **nothing}],
        [{"role": "a", **nothing}, user(SAID)],
    )
    _, notes = read(*({"messages": one} for one in (silent, said, silent)), {"prompt": "so"})
    assert "2 requests say nothing, or nothing but roles: did the log leave out the text?" in notes
    _, notes = read({"messages": said})
    assert not any("nothing beside" in note for note in notes)


def test_parts_and_images_of_a_message_count(read):
    requests, _ = read({"messages": [{"role": "user", "parts": [{"type": "text", "text": SAID}]}]})
    assert lengths(requests) == [(0, 32, 0)]
    seen = [{"messages": [{**user(SAID), "images": [letter * 3000]}]} for letter in "AAB"]
    (first, second, third), notes = read(*seen)
    assert (first.blocks == second.blocks, first.blocks == third.blocks) == (True, False)
    assert any(note.startswith("3 requests have images") for note in notes)


def test_a_request_that_is_there_twice_is_said(read):
    records = [{"request_id": name, "messages": [user(SAID)]} for name in "abab"]
    _, notes = read(*records)
    said = "2 requests have the request_id of one before them, and count like any other"
    assert f"{said}: is it one that was tried again, or has the log two lines of each?" in notes
    _, notes = read({"request_id": "a", "prompt": [SAID, SAID]})
    assert not any("request_id" in note for note in notes)


def test_a_file_that_is_there_packed_too_is_said(tmp_path):
    text = lines(mooncake(0, 512, [1]))
    (tmp_path / "a.jsonl").write_text(text)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    assert (
        "files of the folder that were read packed and unpacked, so twice: 1 (a.jsonl)"
        in open_trace(tmp_path).notes
    )


@pytest.mark.parametrize("beside", [{}, {"prompt": "so"}, {"prompt": None}])
def test_token_ids_of_a_prompt_are_exact(read, beside):
    requests, notes = read({"prompt_token_ids": [*range(40)], **beside})
    assert (notes[0], lengths(requests)) == ("format: vllm", [(0, 40, 0)])
