"""What had to be decided of a trace when it was read; and that is said."""

import errno
import gc
import json
import os
import shutil
from pathlib import Path

import pytest
from kv_sim_records import call, lines, mooncake, seen, weka
from kv_sim_slow_replay import same

from kv_api import ConfigError
from kv_sim.replay import columns as columns_module
from kv_sim.replay.caches.bounds import infinite_hits
from kv_sim.replay.caches.shape import shape_of
from kv_sim.replay.columns import ColumnsBuilder
from kv_sim.replay.readers.files.folder import files_of
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import OnError, Partial, TraceOptions, Unsorted
from kv_sim.replay.readers.requests.naming import IdMeaning, IdScope, digest
from kv_sim.replay.readers.requests.sharing import parse_sharing
from kv_sim.replay.trace import TraceRequest


def test_ids_that_name_a_block_by_itself_are_chained_and_that_is_said(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text(lines(mooncake(0, 1536, [1, 2, 3]), mooncake(1, 1536, [4, 2, 3]), mooncake(2, 1024, [1, 2])))
    columns = open_trace(file)
    assert seen(columns)[2] == [0, 0, 2]
    where = f"{file}:2"
    assert columns.notes[1] == (
        f"ids name a block by itself, so they were chained: id 2 comes after 1 and after 4 ({where})"
    )


def test_chaining_changes_nothing_of_prefix_ids(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text(lines(mooncake(0, 1536, [1, 2, 3]), mooncake(1, 1536, [1, 2, 4]), mooncake(2, 1024, [5, 6])))
    chained = shape_of(open_trace(file))
    plain = shape_of(open_trace(file, TraceOptions(ids=IdMeaning.PREFIX)))
    assert chained.user.tolist() == plain.user.tolist()
    assert next(iter(open_trace(file, TraceOptions(ids=IdMeaning.PREFIX)))).blocks == (1, 2, 3)


def test_an_id_may_be_anything(tmp_path):
    huge = [2**64 - 1, -1, 2**70, "a", "01", 1, 2**61 - 1, 0]
    file = tmp_path / "trace.jsonl"
    file.write_text(lines(mooncake(0, 512 * len(huge), huge), mooncake(1, 512 * len(huge), huge)))
    for meaning in (IdMeaning.AUTO, IdMeaning.PREFIX):
        columns = open_trace(file, TraceOptions(ids=meaning))
        first, second = (request.blocks for request in columns)
        assert first == second
        assert len(set(first)) == len(huge)
    assert digest("1") != digest(1)
    file.write_text(lines(mooncake(0, 1024, [5, 2**61 - 2])))
    assert next(iter(open_trace(file, TraceOptions(ids=IdMeaning.PREFIX)))).blocks == (5, 2**61 - 2)
    alike = [0, 2**61 - 1, 2 * (2**61 - 1)]
    assert len({hash(one) for one in alike}) == 1
    file.write_text(lines(*(mooncake(n, 512, [one]) for n, one in enumerate(alike))))
    assert seen(open_trace(file))[2] == [0, 0, 0]


def test_sessions_have_their_own_ids_subagents_nest_and_files_make_one_trace(tmp_path):
    nested = {"type": "subagent", "t": 1, "agent_id": "x", "requests": [call(1.5, [1, 2, 9])]}
    deeper = {"type": "subagent", "id": "x", "requests": [nested]}
    (tmp_path / "one.json").write_text(json.dumps(weka("one", call(0, [1, 2]), deeper, call(9, [1, 2, 3]))))
    (tmp_path / "two.json").write_text(json.dumps(weka("two", call(0.5, [1, 2]), call(8, [1, 2, 3]))))
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "readme.md").write_text("no trace")
    columns = open_trace(tmp_path)
    columns.check()
    assert seen(columns)[0] == [0, 0.5, 1.5, 8, 9]
    assert seen(columns)[2] == [0, 0, 2, 2, 2]
    assert columns.notes[1] == "files of the folder that were left out for their names: 1 (readme.md)"
    assert "ids are a session's own" in columns.notes[2]
    staggered = open_trace(tmp_path, TraceOptions(stagger_seconds=100))
    assert seen(staggered)[0] == [0, 1.5, 9, 100.5, 108]
    assert staggered.notes == columns.notes
    together = open_trace(tmp_path, TraceOptions(scope=IdScope.GLOBAL))
    assert seen(together)[2] == [0, 2, 2, 2, 3]
    both = [weka(name, call(0, [1])) for name in ("one", "two")]
    del both[0]["hash_id_scope"], both[1]["hash_id_scope"]
    (tmp_path / "both.jsonl").write_text(lines(*both))
    assert seen(open_trace(tmp_path / "both.jsonl"))[2] == [0, 0]


@pytest.mark.parametrize("order", [iter, reversed])
def test_the_files_of_a_folder_come_by_their_names(tmp_path, monkeypatch, order):
    names = ("9/0.json", "10/0.json", "a.JSONL", "b.json.XZ", "c.csv", "d-2.txt.gz", "d-02.txt.gz", "d-10.txt.gz")
    files = [tmp_path / name for name in names]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.touch()
    (tmp_path / "a.json").symlink_to("nowhere")
    walk = os.walk

    def walked(*args, **options):
        return order(
            [(folder, inner, list(order(sorted(found)))) for folder, inner, found in walk(*args, **options)]
        )

    monkeypatch.setattr(os, "walk", walked)
    assert files_of(tmp_path) == [files[0], files[1], *files[2:5], files[6], files[5], files[7]]


def test_a_folder_that_cannot_be_listed_is_no_empty_one(tmp_path, monkeypatch):
    (tmp_path / "hours" / "secret").mkdir(parents=True)
    (tmp_path / "hours" / "a.json").touch()
    scandir = os.scandir

    def guarded(folder):
        if Path(folder).name == "secret":
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", guarded)
    for folder in (tmp_path / "hours", tmp_path / "hours" / "secret"):
        with pytest.raises(ConfigError) as found:
            open_trace(folder)
        assert str(found.value) == f"{tmp_path / 'hours' / 'secret'}: Permission denied"


def test_mooncake_s_ids_can_be_a_session_s_and_a_turn_can_have_a_delay(tmp_path):
    file = tmp_path / "trace.jsonl"
    turns = [
        mooncake(0, 512, [1], session_id="a"),
        mooncake(100, 512, [1], session_id="b"),
        {"session_id": "a", "delay": 2000, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]},
        {"session_id": "b", "delay": 2000, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]},
    ]
    file.write_text(lines(*turns))
    assert seen(open_trace(file))[2] == [0, 1, 1, 2]
    columns = open_trace(file, TraceOptions(scope=IdScope.SESSION))
    assert (seen(columns)[0], seen(columns)[2]) == ([0, 0.1, 2, 2.1], [0, 0, 1, 1])
    assert columns.notes[1:] == ("2 later turns have a delay: taken from the arrival of the turn before",)


def test_a_clock_of_nanoseconds_and_blocks_of_64_tokens_are_noticed(tmp_path):
    file = tmp_path / "trace.jsonl"
    begin = 1_753_780_607_550_317_897
    file.write_text(lines(mooncake(begin, 640, [*range(10)]), mooncake(begin + 1_500_000_000, 100, [0, 1])))
    columns = open_trace(file)
    assert columns.block_tokens == 64
    assert seen(columns)[0] == [0, 1.5]
    assert columns.notes[1:] == (
        "times look like ns since 1970 (--time-unit)",
        "blocks look like 64 tokens, not 512: lengths and ids of 100% of requests agree (--block-size)",
    )
    assert seen(open_trace(file, TraceOptions(time_unit="us")))[0] == [0, 1500]
    # As text they are no less exact.
    file.write_text(lines(mooncake(str(begin), 512, [1]), mooncake(str(begin + 100), 512, [1])))
    assert open_trace(file).arrivals.tolist() == pytest.approx([0, 1e-7])
    file.write_text(lines(mooncake(f" {begin}", 512, [1]), mooncake(f" +{begin + 100} ", 512, [1])))
    assert open_trace(file).arrivals.tolist() == pytest.approx([0, 1e-7])


def test_a_clock_of_seconds_is_noticed_where_the_format_has_milliseconds(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text(lines(mooncake(1_700_000_000.25, 512, [1]), mooncake(1_700_000_002, 512, [1])))
    columns = open_trace(file)
    assert seen(columns)[0] == [0, 1.75]
    assert columns.notes[1:] == ("times look like s since 1970 (--time-unit)",)
    file.write_text(lines(mooncake(1_700_000_000, 512, [1]), mooncake(10, 512, [1])))
    assert seen(open_trace(file, TraceOptions(unsorted=Unsorted.SORT)))[0] == [0, 1_699_999.99]


@pytest.mark.parametrize(
    ("count", "tokens", "seconds", "said"),
    [
        (100, 512, 0.0495, "2,020 requests a second"),
        (100, 512, 0.05, None),
        (99, 512, 1e-6, None),
        (100, 512, 1e-6, "100,000,000 requests a second"),
        (100, 100_000, 4.9, "2,040,816 prompt tokens a second"),
        (100, 100_000, 5, None),
        (99, 100_000, 4.9, None),
        (2, 512, 365 * 86_400 * 3, "2 requests in 3.0 years"),
        (2, 512, 366 * 86_400, None),
        (2, 512, 366 * 86_400 + 1, "2 requests in 1.0 years"),
        (100, 512, 0.04998, "2,001 requests a second"),
        (100, 100_000, 4.9999999, "2,000,000 prompt tokens a second"),
    ],
)
def test_times_that_no_server_has_are_said(tmp_path, count, tokens, seconds, said):
    file = tmp_path / "trace.jsonl"
    times = [0] * (count - 1) + [seconds * 1000]
    question = ": is the unit of its times the right one? (--time-unit)"
    for order in (times, times[::-1]):
        file.write_text(lines(*(mooncake(time, tokens, [number]) for number, time in enumerate(order))))
        notes = open_trace(file, TraceOptions(block_tokens=512, unsorted=Unsorted.SORT)).notes
        assert [note.removesuffix(question) for note in notes if question in note] == ([said] if said else [])


def test_ids_and_length_need_not_agree_but_it_is_said(tmp_path):
    file = tmp_path / "trace.jsonl"
    requests = [mooncake(0, 1024, [1, 2, 3, 4]), mooncake(1, 2048, [1]), mooncake(2, 100, []), mooncake(3, 0, [])]
    file.write_text(lines(*requests))
    columns = open_trace(file, TraceOptions(block_tokens=512))
    columns.check()
    assert [len(request.blocks) for request in columns] == [2, 1, 0, 0]
    assert columns.notes[1:] == (
        "1 request has more ids than its length has blocks: 2 ids dropped (is the block size right? --block-size)",
        "1 request has fewer ids than full blocks: the rest is never a hit",
    )


def test_a_partial_last_block_is_kept_or_dropped(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text(lines(mooncake(0, 600, [1, 2]), mooncake(1, 1024, [1, 3])))
    columns = open_trace(file, TraceOptions(partial=Partial.DROP))
    assert [len(request.blocks) for request in columns] == [1, 2]
    assert columns.notes[-1] == "1 partial last block was dropped"


def test_who_says_nothing_of_outputs_has_none_and_tokens_can_be_ids(tmp_path):
    file = tmp_path / "trace.jsonl"
    for records, lengths in [
        ([{"timestamp": 0, "input_length": 512, "hash_ids": [1]}], [(512, 0)]),
        ([{"timestamp": "0", "input_length": 512.0, "hash_ids": [1]}], [(512, 0)]),
        ([weka("a", {"t": 0, "in": 64, "hash_ids": [1]})], [(64, 0)]),
        ([{"prompt": [*range(40)]}, {"prompt": [*range(16), 7]}, {"prompt": ""}], [(40, 0), (17, 0), (0, 0)]),
    ]:
        file.write_text(lines(*records))
        columns = open_trace(file)
        assert seen(columns)[1] == lengths
    assert seen(columns)[2] == [0, 1, 0]
    assert columns.notes == (
        "format: vllm",
        "four characters are taken for a token",
        "1 request says nothing, or nothing but roles: did the log leave out the text?",
        "the trace has no times: one request a second is assumed",
    )


def test_what_a_record_says_of_itself_comes_first(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text(lines(*(mooncake(0, 512, [1], session_id=name, hash_id_scope="local") for name in "aba")))
    own = "ids are a session's own: what sessions share can't be seen, so hit ratios are a lower bound"
    columns = open_trace(file)
    assert (seen(columns)[2], columns.notes[1:]) == ([0, 0, 1], (own,))
    file.write_text(
        lines(*(weka(name, call(0, [1]), hash_id_scope="global", block_size=32) for name in ("a", "b", "c")))
    )
    columns = open_trace(file)
    assert (columns.block_tokens, seen(columns)[2]) == (32, [0, 1, 1])
    assert own not in columns.notes
    file.write_text(lines(*({"timestamp": f"{n}500000000", "input_length": 512, "hash_ids": [1]} for n in (1, 4))))
    assert seen(open_trace(file))[0] == [0, 3], "LMBench's are nanoseconds, however few"


def test_ids_are_compared_where_equal_ones_mean_the_same(tmp_path):
    file = tmp_path / "trace.jsonl"
    note = f"ids name a block by itself, so they were chained: id 2 comes after 1 and after 3 ({file}:2)"
    file.write_text(lines(mooncake(0, 1024, [1, 2], session_id="a"), mooncake(0, 1024, [3, 2], session_id="b")))
    for scope, notes in [(IdScope.AUTO, [note]), (IdScope.GLOBAL, [note]), (IdScope.SESSION, [])]:
        assert open_trace(file, TraceOptions(scope=scope)).notes == ("format: mooncake", *notes)
    file.write_text(lines(weka("a", call(0, [1, 2])), weka("b", call(0, [3, 2]))))
    own = "ids are a session's own: what sessions share can't be seen, so hit ratios are a lower bound"
    together = "2 sessions count their own time, so all begin at once (--stagger)"
    for scope, notes in [(IdScope.AUTO, [own]), (IdScope.GLOBAL, [note]), (IdScope.SESSION, [])]:
        assert open_trace(file, TraceOptions(scope=scope)).notes == ("format: weka", *notes, together)


@pytest.mark.parametrize(("wanted", "read"), [(None, 3), (1, 1), (2, 2), (3, 3), (4, 3), (2**70, 3)])
def test_only_the_first_requests_are_read(tmp_path, wanted, read):
    file = tmp_path / "trace.jsonl"
    file.write_text(lines(*(mooncake(n, 512 + n, [n]) for n in range(3))))
    columns = open_trace(file, TraceOptions(requests=wanted))
    assert [request.input_tokens for request in columns] == [512, 513, 514][:read]


def test_a_shipped_trace_keeps_its_ids_unless_they_are_to_be_chained():
    prefix, auto, block = (
        next(iter(open_trace("mooncake-synthetic", TraceOptions(ids=meaning, requests=1)))).blocks
        for meaning in (IdMeaning.PREFIX, IdMeaning.AUTO, IdMeaning.BLOCK)
    )
    assert auto == prefix and len(block) == len(prefix) and not {*block} & {*prefix}


@pytest.mark.parametrize("meaning", [IdMeaning.AUTO, IdMeaning.BLOCK])
def test_ids_that_are_no_prefix_ids_are_refused_only_where_somebody_says_that_they_are(tmp_path, meaning):
    file = tmp_path / "trace.jsonl"
    file.write_text(lines(mooncake(0, 1024, [1, 2]), mooncake(1, 1024, [3, 2])))
    columns = open_trace(file, TraceOptions(ids=meaning))
    note = f"ids name a block by itself, so they were chained: id 2 comes after 1 and after 3 ({file}:2)"
    assert note in columns.notes and seen(columns)[2] == [0, 0]


def test_a_file_that_is_called_like_a_shipped_trace_is_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mooncake-synthetic").write_text(lines(mooncake(0, 1024, [1, 2]), mooncake(1, 1024, [3, 2])))
    columns = open_trace("mooncake-synthetic")
    assert (columns.name, len(columns), seen(columns)[2]) == ("mooncake-synthetic", 2, [0, 0])


@pytest.mark.parametrize(("name", "block_tokens"), [("mooncake", 512), ("lmbench", 512), ("bailian", 16)])
def test_one_token_says_nothing_against_the_usual_block(tmp_path, name, block_tokens):
    record = {
        "timestamp": 0,
        "input_length": 1,
        "output_length": 1,
        "hash_ids": [1],
        "chat_id": 1,
        "parent_chat_id": 1,
    }
    file = tmp_path / "trace.jsonl"
    file.write_text(lines(record))
    columns = open_trace(file, TraceOptions(format=name))
    said = ["times are taken for ns, as LMBench's are (--time-unit)"] if name == "lmbench" else []
    assert (columns.block_tokens, columns.notes) == (block_tokens, (f"format: {name}", *said))


def test_a_session_may_begin_with_a_delay_and_delays_add_up(tmp_path):
    file = tmp_path / "trace.jsonl"
    turn = {"session_id": "a", "input_length": 512, "output_length": 1, "hash_ids": [1]}
    turns = ({**turn, "delay": delay} for delay in (500, 0, 250))
    file.write_text(lines(mooncake(0, 512, [1]), mooncake(100, 512, [1]), *turns))
    assert seen(open_trace(file))[0] == [0, 0.1, 0.5, 0.5, 0.75]


def test_malformed_records_are_skipped_counted_and_named(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text("{nope}\n" + lines(mooncake(0, 512, [1]), mooncake(1, -5, [1])))
    columns = open_trace(file, TraceOptions(on_error=OnError.SKIP))
    assert len(columns) == 1
    assert columns.notes[1].startswith(
        f"2 malformed records were skipped, first: {file}:1: not JSON from column 2 on"
    )
    assert columns.notes[1].endswith(f"; {file}:3: input_length: expected a whole number of at least 0, got -5")


def test_times_that_go_back_are_sorted_on_request(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text(lines(mooncake(2000, 512, [1]), mooncake(1000, 1024, [2, 3]), mooncake(2000, 512, [4])))
    columns = open_trace(file, TraceOptions(unsorted=Unsorted.SORT))
    columns.check()
    assert [request.input_tokens for request in columns] == [1024, 512, 512]
    assert seen(columns)[0] == [0, 1, 1]
    assert columns.notes[1:] == ("1 request arrives before one above it: sorted (--unsorted sort)",)


def test_every_request_that_arrives_before_one_above_it_is_counted(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text(lines(*(mooncake(time, 512, [time]) for time in (9000, 1000, 2000, 9000, 8000, 9500))))
    sort = TraceOptions(unsorted=Unsorted.SORT)
    assert "3 requests arrive before one above them: sorted (--unsorted sort)" in open_trace(file, sort).notes
    file.write_text(lines(*(mooncake(time, 512, [time]) for time in (1000, 1000, 2000))))
    assert len(open_trace(file, sort).notes) == 1
    file.write_text(lines(weka("one", call(9, [1]), call(8, [1])), weka("two", call(0, [1]))))
    assert not any("sorted" in note for note in open_trace(file, sort).notes), "sessions overlap in any order"


def test_what_has_no_effect_on_a_trace_is_said(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text(lines(mooncake(0, 512, [1]), mooncake(1000, 512, [1])))
    options = TraceOptions(sharing=parse_sharing("none"), stagger_seconds=5)
    columns = open_trace(file, options)
    assert same(columns, open_trace(file))
    assert columns.notes[1:] == (
        "requests of format mooncake have their own times: nothing is staggered (--stagger)",
        "the trace has block ids: no sharing is assumed (--assume-sharing)",
    )
    file.write_text(lines(weka("one", call(0, [1]), call(8, [1]))))
    one = "there is one session, and nothing is staggered (--stagger)"
    staggered = open_trace(file, TraceOptions(stagger_seconds=5))
    assert staggered.notes == (*open_trace(file).notes, one)


def test_of_the_files_of_a_folder_that_are_no_trace_the_first_are_named(tmp_path):
    (tmp_path / "trace.jsonl").write_text(lines(mooncake(0, 512, [1])))
    (tmp_path / "a").mkdir()
    said = "files of the folder that were left out for their names:"
    for name, names in (
        ("d.orc", "1 (d.orc)"),
        ("a/e", "2 (a/e, d.orc)"),
        ("c.md", "3 (a/e, c.md, d.orc)"),
        ("b.jsonl.lz4", "4 (a/e, b.jsonl.lz4, c.md, …)"),
    ):
        assert f"{said} {names}" not in open_trace(tmp_path).notes
        (tmp_path / name).touch()
        assert open_trace(tmp_path).notes == ("format: mooncake", f"{said} {names}")
    assert open_trace(tmp_path / "trace.jsonl").notes == ("format: mooncake",)


def test_an_assumption_is_seeded_and_said(tmp_path):
    file = tmp_path / "azure.csv"
    rows = [f"2023-11-16 18:00:{second:02d},{200 + second},5" for second in range(50)]
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    sharing = parse_sharing("zipf:prefixes=5,tokens=128,skew=1,share=0.5")
    columns, again, other = (open_trace(file, TraceOptions(sharing=sharing, seed=seed)) for seed in (1, 1, 2))
    assert same(columns, again) and not same(columns, other)
    assert columns.notes[1] == (
        "the trace has no ids; assumed, seed 1: 50% of requests begin with one of 5 prefixes of 128 tokens, "
        "the n-th with weight 1/n^1"
    )
    usual = open_trace(file, TraceOptions(sharing=sharing))
    assert usual.notes[1].startswith("the trace has no ids; assumed, seed 0: 50% of requests ")
    assert 0 < infinite_hits(columns, shape_of(columns)).blocks <= 2 * 50
    alone = open_trace(file, TraceOptions(sharing=parse_sharing("none")))
    assert infinite_hits(alone, shape_of(alone)).blocks == 0


ARRIVALS = [5.0, 1.0, 3.0, 3.0, 0.0, 9.0]


def built(spool_ids):
    builder = ColumnsBuilder(spool_ids)
    for index, arrival in enumerate(ARRIVALS):
        assert len(builder) == index
        builder.add(arrival, 10, 1, range(index, 2 * index))
    assert builder.went_back
    return builder.finish("made", 1)


@pytest.mark.parametrize("part", [1, 2, 5, 6, 1 << 16])
def test_many_ids_lie_in_a_file_and_make_the_same_trace(monkeypatch, part):
    monkeypatch.setattr(columns_module, "_PART", part)
    one, *others = (built(spool_ids) for spool_ids in (100, *range(1, 16)))
    one.check()
    for other in others:
        assert same(one, other)
    order = [4, 1, 2, 3, 0, 5]
    assert list(one) == list(other) == [TraceRequest(ARRIVALS[n], 10, 1, tuple(range(n, 2 * n))) for n in order]
    loaded = other.load(other.save(), "made", 1)
    assert same(loaded, one) and (loaded.name, loaded.block_tokens) == (one.name, one.block_tokens)


def test_who_makes_a_trace_knows_whether_it_has_to_be_sorted():
    builder, said = ColumnsBuilder(), []
    for arrival in (-5.0, -5.0, 2.0, 1.0, 3.0):
        builder.add(arrival, 10, 1, [1])
        said.append(bool(builder.went_back))
    assert said == [False, False, False, True, True]


def test_files_go_with_their_trace():
    trace, again = built(15), built(16)  # of 15 ids
    folders = [trace._folder.path, trace.save(), again.save()]
    assert again._folder is None and again.save() == folders[2]
    assert all(folder.is_dir() for folder in folders)
    shutil.rmtree(folders[2])  # somebody else tidies up, too
    del trace, again
    gc.collect()
    assert not any(folder.exists() for folder in folders)
