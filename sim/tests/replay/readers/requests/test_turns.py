"""Later turns that have only what they add become whole prompts, token by token as a slow model has them."""

import json
from random import Random

import pytest

from kv_api import ConfigError
from kv_sim.replay.readers.format import Turns
from kv_sim.replay.readers.opening import open_stream, open_trace
from kv_sim.replay.readers.options import OnError, Partial, TraceOptions, Unsorted
from kv_sim.replay.readers.record import Record
from kv_sim.replay.readers.requests.turns import look_added

BLOCK = 4
SAID = (
    "later turns of sessions don't begin as the turn before: each is taken for what it adds to that one and its "
    "answer (--turns)"
)


def turn(session, tokens, ids, output=0, **more):
    return {"session_id": session, "input_length": tokens, "output_length": output, "hash_ids": ids, **more}


def written(tmp_path, records):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read(path, turns=Turns.AUTO, **more):
    return open_trace(path, TraceOptions(block_tokens=BLOCK, turns=turns, unsorted=Unsorted.SORT, **more))


def made_up(random):
    """Some sessions, one below the other, which begin alike now and then."""
    records = []
    for session in range(random.randint(1, 5)):
        for number in range(random.randint(1, 5)):
            tokens = random.randint(0, 14)
            common = list(range(min(random.randint(0, 3), tokens // BLOCK))) if not number else []
            count = -(-tokens // BLOCK) - random.choice([0, 0, 0, 1])
            own = [1000 * session + 100 * number + place for place in range(10, 14)]
            ids = [*common, *own][: max(0, count)]
            when = {"delay": random.randint(0, 9000)} if number else {"timestamp": random.randint(0, 9000)}
            records.append(turn(f"s{session}", tokens, ids, random.randint(0, 9), **when))
    return records


def slow_prompts(records):
    """Every prompt as its tokens: of which block of the file each is, or of which answer, and where in it."""
    said, clock, prompts = {}, {}, []
    for number, record in enumerate(records):
        session = record["session_id"]
        so_far = said.setdefault(session, [])
        clock[session] = record["timestamp"] if "timestamp" in record else clock[session] + record["delay"]
        for place in range(record["input_length"]):
            block = place // BLOCK
            has_id = block < len(record["hash_ids"])
            so_far.append((record["hash_ids"][block] if has_id else f"rest {number} {block}", place % BLOCK))
        prompts.append((clock[session], number, tuple(so_far)))
        so_far.extend((f"answer {number}", place) for place in range(record["output_length"]))
    return [prompt for _, _, prompt in sorted(prompts)]


def blocks_of(prompt):
    """What each block has in it and before it."""
    ends = [*range(BLOCK, len(prompt), BLOCK), *([len(prompt)] if prompt else [])]
    return [prompt[:end] for end in ends]


def numbered(requests):
    """Blocks by the order in which they are first seen, whatever they are called."""
    names = {}
    return [[names.setdefault(block, len(names)) for block in blocks] for blocks in requests]


def of_one_block(session, *lengths):
    """Each of its later turns begins with the same block of the file, and has so many tokens of it."""
    later = [turn(session, tokens, [3], delay=1000) for tokens in lengths]
    return [turn(session, 6, [1, 2], timestamp=0), *later]


SPLIT = [*of_one_block("a", 2, 4), *of_one_block("b", 4)]
"""The third block of either has two tokens of the file's or four: the last two of it, or all."""


@pytest.mark.parametrize("seed", range(60))
def test_what_is_added_becomes_whole_prompts(tmp_path, seed):
    check_prompts(tmp_path, SPLIT if not seed else made_up(Random(seed)))


def check_prompts(tmp_path, records):
    columns = read(written(tmp_path, records), Turns.ADDED)
    prompts = slow_prompts(records)
    assert [request.input_tokens for request in columns] == list(map(len, prompts))
    assert numbered(request.blocks for request in columns) == numbered(map(blocks_of, prompts))


def test_added_turns_are_recognized_and_said(tmp_path):
    added = [turn("a", 6, [1, 2], 3, timestamp=0), turn("a", 5, [3, 4], 3, delay=1000)]
    columns = read(written(tmp_path, added))
    assert [request.input_tokens for request in columns] == [6, 14]
    assert SAID in columns.notes
    assert [request.input_tokens for request in read(written(tmp_path, added), Turns.WHOLE)] == [6, 5]


@pytest.mark.parametrize(
    ("firsts", "added"), [([1, 2, 2, 2], False), ([1, 2, 1, 2], True), ([1, 1, 2], False), ([1, 2, 2, 3, 4], True)]
)
def test_a_turn_is_compared_with_the_one_before_it(firsts, added):
    """Half of them are not most."""
    assert look_added([Record(0, 4, 1, [one], "a") for one in firsts]) is added


def test_each_answer_is_another_block(tmp_path):
    said = [turn("a", 4, [place], 4, **{"delay" if place else "timestamp": 0}) for place in range(3)]
    columns = read(written(tmp_path, said), Turns.ADDED)
    assert not any("block by itself" in note for note in columns.notes)


def test_a_block_that_is_one_of_the_file_s_keeps_its_id(tmp_path):
    """So a request without a session can use it."""
    added = [turn("a", 8, [1, 2], 4, timestamp=0), turn("a", 4, [3], timestamp=1)]
    alone = [turn(None, 4 * len(ids), ids, timestamp=2) for ids in ([1, 2], [3])]
    first, second, same, other = (
        request.blocks for request in read(written(tmp_path, added + alone), Turns.ADDED)
    )
    assert first == second[:2] == same
    assert len(second) == 4 and not {*second} & {*other}, "behind another prompt"


@pytest.mark.parametrize(
    "second",
    [
        turn("a", 9, [1, 2, 3], delay=1000),
        turn("b", 5, [3, 4], timestamp=1000),
        turn(None, 5, [3, 4], timestamp=9),
    ],
)
def test_whole_turns_stay_as_they_are(tmp_path, second):
    columns = read(written(tmp_path, [turn("a", 6, [1, 2], 3, timestamp=0), second]))
    assert [request.input_tokens for request in columns] == [6, second["input_length"]]
    assert SAID not in columns.notes


def test_a_block_that_is_not_full_is_dropped_of_the_whole_prompt(tmp_path):
    added = [turn("a", 6, [1, 2], 3, timestamp=0), turn("a", 5, [3, 4], 3, delay=1000)]
    columns = read(written(tmp_path, added), partial=Partial.DROP)
    assert [len(request.blocks) for request in columns] == [1, 3]
    assert "2 partial last blocks were dropped" in columns.notes


def test_a_stream_has_the_same_prompts(tmp_path):
    added = [turn("a", 6, [1, 2], 3, timestamp=0), turn("a", 5, [3, 4], 3, delay=1000)]
    path = written(tmp_path, added)
    streamed = open_stream(path, TraceOptions(block_tokens=BLOCK)).requests()
    assert [tuple(request[3]) for request in streamed] == [request.blocks for request in read(path)]


def test_other_formats_have_whole_prompts(tmp_path):
    path = written(tmp_path, [{"input_ids": [1, 2, 3], "sampling_params": {}}])
    with pytest.raises(ConfigError) as refused:
        open_trace(path, TraceOptions(turns=Turns.ADDED, on_error=OnError.STOP))
    assert str(refused.value) == "--turns added: a record of format sglang has a whole prompt"
