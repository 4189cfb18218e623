"""What becomes of the ids of a trace: names of prefixes, within a session or for everybody."""

import json
from pathlib import Path

import pytest

from kv_sim.replay.readers.files.folder import files_of
from kv_sim.replay.readers.files.lines import lines_of
from kv_sim.replay.readers.guess import guess_block_tokens
from kv_sim.replay.readers.opening import open_stream, open_trace
from kv_sim.replay.readers.options import TraceOptions
from kv_sim.replay.readers.record import Record
from kv_sim.replay.readers.requests.naming import Evidence, IdMeaning, IdScope, Naming, as_numbers, digest
from kv_sim.replay.readers.requests.sessions import Conversations


def test_prefix_ids_of_a_session_stay_apart_from_each_other_and_from_other_sessions():
    naming = Naming(IdMeaning.PREFIX, IdScope.SESSION)
    one, longer, other = (
        list(naming.name(ids, session, is_local=False))
        for ids, session in (([1, 2, 3], "a"), ([1, 2, 3, 4], "a"), ([1, 2, 3], "b"))
    )
    assert longer[:3] == one and len(set(longer + other)) == 7


def test_a_name_is_the_same_on_every_machine():
    assert digest("a") == 257621128519083428
    assert digest(-1) == 532714241688249078
    assert digest("\ud800") == 312943659340330139, "half a character"
    assert as_numbers(["a", "\ud800"]) == [digest("a"), digest("\ud800")], "of many at once, too"


def test_models_of_sessions_stay_apart_in_each_session():
    naming = Naming(IdMeaning.AUTO, IdScope.SESSION)
    of = [naming.name([1], session, model, is_local=False) for session in "ab" for model in "xy"]
    assert len({tuple(ids) for ids in of}) == 4


def test_half_a_character_can_be_an_id(tmp_path):
    file = tmp_path / "trace.jsonl"
    record = {"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": ["\ud800", "\udfff"]}
    file.write_text(json.dumps(record) + "\n")
    [request] = open_trace(file)
    assert len(set(request.blocks)) == 2


@pytest.mark.parametrize("kind", [str, Path])
def test_a_shipped_trace_keeps_its_ids_however_it_is_named(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    [file] = files_of("mooncake-synthetic")
    _, line = next(lines_of(file))
    opening = open_stream(kind("mooncake-synthetic"), TraceOptions(requests=1))
    assert opening.name == "mooncake-synthetic"
    _, _, _, ids, _, _ = next(opening.requests())
    assert list(ids) == json.loads(line)["hash_ids"]


def test_lmbench_s_sessions_can_have_ids_of_their_own(tmp_path):
    file = tmp_path / "trace.jsonl"
    records = [
        {"timestamp": "7", "input_length": 512, "output_length": 1, "hash_ids": [1], "session_id": name}
        for name in "aba"
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    first, second, third = (one.blocks for one in open_trace(file, TraceOptions(scope=IdScope.SESSION)))
    assert first == third != second


def test_of_several_conflicts_the_first_one_is_told():
    evidence = Evidence()
    evidence.add([1, 2, 3, 4], None, "here")
    evidence.add([9, 2, 8, 4], None, "there")
    evidence.add([7, 3], None, "later")
    assert evidence.conflict == "id 2 comes after 1 and after 9 (there)"


@pytest.mark.parametrize("more", [0, 1])
def test_conflicts_are_looked_for_in_a_quarter_of_a_million_ids(more):
    evidence = Evidence()
    for _ in range(63):
        evidence.add(range(4096), None, "here")
    evidence.add(range(4095 + more), None, "here")
    evidence.add([1], None, "there")
    assert (evidence.conflict is None) == bool(more)


def test_a_chat_without_a_name_is_of_no_conversation():
    conversations = Conversations()
    assert conversations.name(Record(0, 1, 1, [], None, parent="a")) is None
    assert conversations.name(Record(0, 1, 1, [], "b", parent="a")) == "a"


@pytest.mark.parametrize("place", [0, 40, 63])
def test_characters_that_differ_within_the_first_block_of_text_share_nothing(tmp_path, place):
    file = tmp_path / "trace.jsonl"
    texts = [place * "a" + one + (127 - place) * "a" for one in "bc"]  # two blocks, of 16 tokens of 4 characters
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    columns = open_trace(file)
    blocks = [request.blocks for request in columns]
    assert [len(one) for one in blocks] == [2, 2] and not set(blocks[0]) & set(blocks[1])
    assert not any("more ids" in note for note in columns.notes)


@pytest.mark.parametrize(
    ("prompt", "tokens", "blocks"), [("a" * 64, 16, 1), ("a" * 65, 17, 2), ([1] * 16, 16, 1), ([1] * 17, 17, 2)]
)
def test_the_last_block_of_a_prompt_may_be_short(tmp_path, prompt, tokens, blocks):
    file = tmp_path / "trace.jsonl"
    file.write_text(json.dumps({"prompt": prompt}) + "\n")
    [request] = open_trace(file)
    assert (request.input_tokens, len(request.blocks)) == (tokens, blocks)


def test_sizes_of_blocks_at_the_border():
    def records(*pairs):
        return [Record(0, tokens, 1, [0] * count) for tokens, count in pairs]

    # The usual size stands if it fits 19 of 20, even where another one fits as many.
    assert guess_block_tokens(records(*[(20, 1)] * 19, (48, 3)), 24) == 24
    # As does another usual one, even where the request with the most ids knows none.
    assert guess_block_tokens(records(*[(64 * 9, 9)] * 19, (10, 100)), 512) == 64
    # No block is smaller than a token.
    assert guess_block_tokens(records((5, 10)), 512) == 512
    # Forty blocks of 22 tokens hold 900, too; the larger size is tried first.
    assert guess_block_tokens(records((900, 40)), 512) == 23
    # Ids without a length say nothing, however many they are.
    assert guess_block_tokens(records((0, 99), (24 * 40, 40)), 512) == 24
