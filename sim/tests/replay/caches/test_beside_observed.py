"""A replay beside what the trace's own server counted: the same requests, counted alike, however they are read."""

import json
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_sim_slow_replay import prefix_trace

from kv_sim.cli.main import main
from kv_sim.replay import open_trace, replay, size
from kv_sim.replay.caches.beside import BesideObserved, BesideSums, ObservedRatios, ObservedSums
from kv_sim.replay.caches.cache import replay_cache
from kv_sim.replay.caches.outcome import Setup
from kv_sim.replay.columns import ColumnsBuilder
from kv_sim.replay.hit_rates import stream
from kv_sim.replay.hit_rates.results import results_of
from kv_sim.replay.hit_rates.setups import replay_all
from kv_sim.replay.hit_rates.stream import replay_stream
from kv_sim.replay.observed import NOT_SAID, NOTHING_SAID, Observation, Observations
from kv_sim.replay.readers.opening import open_stream
from kv_sim.replay.readers.options import TraceOptions, Unsorted
from kv_sim.replay.servers.fleet import Fleet, RoutedTrace
from kv_sim.replay.units import Footprint

BLOCK = 4
PROMPTS = ([1, 2, 3], [4, 5], [1, 2, 6], [1, 2, 3])
"""An LRU of five blocks has none of the first two, and of each of the others two blocks."""
SAID = ((0, 0), None, (8, 4), (4, 0))
"""What the server had of each, and loaded; of the second one it isn't known."""


def records_of(prompts, said):
    """As TraceConnector writes them. Each prompt has a token more than its blocks."""
    for index, (ids, one) in enumerate(zip(prompts, said, strict=True)):
        record = {"timestamp": 1000 * index, "input_length": BLOCK * len(ids) + 1, "output_length": 1}
        record |= {"hash_ids": ids, "block_size": BLOCK}
        yield record if one is None else record | dict(zip(("cached_tokens", "loaded_tokens"), one, strict=True))


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def trace(tmp_path):
    return write(tmp_path / "traffic.jsonl", records_of(PROMPTS, SAID))


def test_both_are_counted_of_those_requests_that_say_it(trace):
    """Of 13 prompt tokens each. Two hits of the third and the fourth are on the GPU or in host memory."""
    columns = open_trace(trace)
    columns.check()
    assert [*columns.observed] == [(0, 0), NOTHING_SAID, (8, 4), (4, 0)]
    assert ObservedSums.of(columns).ratios() == ObservedRatios(3, 39, 12 / 39, 8 / 39, 4 / 39)
    assert replay(columns, capacity=5).beside == BesideObserved(16 / 39, 0.0, 16 / 39, 4 / 39)
    assert replay(columns, gpu_capacity=5).beside == BesideObserved(16 / 39, 16 / 39, 0.0, 4 / 39)
    one = replay(columns, capacity=5, gpu_capacity=1)
    assert one.beside.token == pytest.approx(one.beside.gpu_token + one.beside.loaded_token)


def test_too_much_of_one_and_too_little_of_another_are_apart(tmp_path):
    """The sums are equal: a replay that is wrong about each request isn't right."""
    said = ((0, 0), (0, 0), (4, 0), (12, 0))
    columns = open_trace(write(tmp_path / "traffic.jsonl", records_of(PROMPTS, said)))
    found = replay(columns, capacity=5).beside
    assert found.token == ObservedSums.of(columns).ratios().token
    assert found.apart == 8 / 48


def test_who_loaded_what_is_known_where_all_say_it(tmp_path):
    records = [*records_of(PROMPTS, SAID)]
    del records[3]["loaded_tokens"]
    columns = open_trace(write(tmp_path / "traffic.jsonl", records))
    found = ObservedSums.of(columns).ratios()
    assert (found.token, found.gpu_token, found.loaded_token) == (12 / 39, None, None)
    assert str(found) == "its own server had 0.308 of the tokens of 3 requests"


def test_a_trace_that_says_nothing_has_nothing_beside(tmp_path):
    columns = open_trace(write(tmp_path / "traffic.jsonl", records_of(PROMPTS, [None] * 4)))
    assert columns.observed is None
    assert replay(columns, capacity=5).beside is None
    assert size(columns, "lru", [5]).observed is None


def test_a_server_that_had_nothing_said_so(tmp_path):
    columns = open_trace(write(tmp_path / "traffic.jsonl", records_of(PROMPTS, [(0, 0)] * 4)))
    assert ObservedSums.of(columns).ratios() == ObservedRatios(4, 48, 0.0, 0.0, 0.0)
    assert replay(columns, capacity=1).beside == BesideObserved(4 / 48, 0.0, 4 / 48, 4 / 48)


def test_a_server_that_loaded_all_it_had_says_that_the_gpu_had_nothing():
    said = "its own server had 0.500 of the tokens of 1 request (0.000 in the GPU's cache, 0.500 loaded)"
    assert str(ObservedRatios(1, 48, 0.5, 0.0, 0.5)) == said


def test_of_prompts_without_tokens_there_is_nothing_to_hold_apart(tmp_path):
    record = {"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": [], "block_size": BLOCK}
    columns = open_trace(write(tmp_path / "traffic.jsonl", [record | {"cached_tokens": 0, "loaded_tokens": 0}]))
    assert ObservedSums.of(columns).ratios() == ObservedRatios(1, 0, 0.0, 0.0, 0.0)
    assert replay(columns, capacity=5).beside is None


@pytest.mark.parametrize("said", [(14, 0), (4, 5)])
def test_what_can_not_be_is_not_believed(tmp_path, said):
    """More than the prompt, and more loaded than there was."""
    columns = open_trace(write(tmp_path / "traffic.jsonl", records_of(PROMPTS, [said, *SAID[1:]])))
    columns.check()
    assert next(iter(columns.observed)) == NOTHING_SAID
    assert columns.notes[1:] == (
        "1 request says that more tokens were cached than the prompt has: these counts are ignored",
    )


def test_all_that_is_not_believed_is_counted(tmp_path):
    columns = open_trace(
        write(tmp_path / "traffic.jsonl", records_of(PROMPTS, [(14, 0), (0, 0), (14, 0), (0, 0)]))
    )
    assert columns.notes[1].startswith("2 requests say that more tokens were cached than the prompt has")


@pytest.mark.parametrize(
    ("cached", "loaded", "told"),
    [
        ([13, 10], [0, 0], "a server had more of a prompt than there is"),
        ([4, 9], [5, 0], "more was loaded than a server had"),
        ([4], [0], "some requests have nothing observed"),
    ],
)
def test_a_recount_sees_what_can_not_have_been_observed(tmp_path, cached, loaded, told):
    columns = open_trace(write(tmp_path / "traffic.jsonl", records_of(PROMPTS[:2], SAID[:2])))
    columns.observed = Observations(np.array(cached), np.array(loaded))
    with pytest.raises(AssertionError, match=told):
        columns.check()


def test_all_of_a_prompt_may_have_been_there(tmp_path):
    said = [(BLOCK * len(ids) + 1,) * 2 for ids in PROMPTS]
    columns = open_trace(write(tmp_path / "traffic.jsonl", records_of(PROMPTS, said)))
    assert ObservedSums.of(columns).ratios().token == 1.0
    assert len(columns.notes) == 1


def test_columns_of_ones_own_may_say_it(tmp_path):
    records = [{"n": 9, "b": [1, 2], "usage": {"had": 0}}, {"n": 9, "b": [1, 2], "usage": {"had": 8}}]
    options = TraceOptions(columns={"input": "n", "ids": "b", "cached": "usage.had"}, block_tokens=BLOCK)
    columns = open_trace(write(tmp_path / "mine.jsonl", records), options)
    assert [*columns.observed] == [Observation(0), Observation(8)]
    assert ObservedSums.of(columns).ratios() == ObservedRatios(2, 18, 8 / 18, None, None)


def test_of_text_that_is_cut_here_the_same_share_was_there(tmp_path):
    """The server counted 10 tokens and had 5; four characters a token make 20 of it."""
    records = [{"p": "abcd" * 20, "n": 10, "had": 5}]
    options = TraceOptions(columns={"prompt": "p", "input": "n", "cached": "had"}, block_tokens=BLOCK)
    columns = open_trace(write(tmp_path / "mine.jsonl", records), options)
    [request] = columns
    assert [*columns.observed] == [Observation(request.input_tokens // 2)]


def test_it_goes_along_where_requests_are_put_in_order(tmp_path):
    records = [*records_of(PROMPTS, SAID)]
    file = write(tmp_path / "traffic.jsonl", [records[3], *records[:3]])
    columns = open_trace(file, TraceOptions(unsorted=Unsorted.SORT))
    assert [*columns.observed] == [(0, 0), NOTHING_SAID, (8, 4), (4, 0)]


def test_nothing_is_kept_of_requests_that_say_nothing():
    builder = ColumnsBuilder()
    for index in range(3):
        builder.add(index, 8, 1, [index], observed=Observation(4) if index == 1 else NOTHING_SAID)
    columns = builder.finish("made", BLOCK)
    assert columns.observed.cached.tolist() == [NOT_SAID, 4, NOT_SAID]
    assert columns.observed.loaded.tolist() == [NOT_SAID] * 3


SETUPS = [Setup("lru", 6), Setup("lru", 4, 3), Setup("arc", 3, 2, disk=7)]


@pytest.mark.once
@given(
    seed=st.integers(0, 10**9),
    count=st.integers(1, 40),
    part=st.sampled_from([1, 3, 1024]),
    servers=st.integers(1, 3),
)
def test_streams_and_servers_count_it_as_one_goes_through_it(tmp_path_factory, seed, count, part, servers):
    source = Random(seed)
    prompts = [*prefix_trace(source, count), [1]]
    said = [_draw(source, BLOCK * len(ids) + 1) for ids in prompts]
    file = write(tmp_path_factory.mktemp("observed") / "traffic.jsonl", records_of(prompts, said))
    columns, footprint, fleet = open_trace(file), Footprint(BLOCK, 10), Fleet(servers)
    trace = RoutedTrace(columns, fleet)
    trace.check()
    for share in trace.shares:
        if columns.observed is not None:
            assert [*share.columns.observed] == [[*columns.observed][index] for index in share.requests]
    outcomes = replay_all(trace, SETUPS)
    whole = results_of(trace, outcomes, footprint)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "PART_REQUESTS", part)
        found = replay_stream(open_stream(file), SETUPS, footprint, fleet=fleet)
    assert found.observed == whole.observed
    assert [run.beside for run in found.runs] == [run.beside for run in whole.runs]
    for outcome, run in zip(outcomes, whole.runs, strict=True):
        assert run.beside == _counted_slowly(columns, outcome)


def _draw(source, prompt):
    if source.random() < 0.3:
        return None
    cached = source.randrange(prompt + 1)
    return cached, source.randrange(cached + 1)


def _counted_slowly(columns, outcome):
    """Request by request."""
    prompt = gpu = loaded = apart = 0
    for index, (request, one) in enumerate(zip(columns, columns.observed or (), strict=False)):
        if one.cached != NOT_SAID:
            most = BLOCK * len(request.blocks)
            on_gpu = min(most, BLOCK * int(outcome.gpu_hits[index]))
            hits = min(most, on_gpu + BLOCK * int(outcome.loaded[index]))
            prompt, gpu, loaded = prompt + request.input_tokens, gpu + on_gpu, loaded + hits - on_gpu
            apart += abs(hits - one.cached)
    return (
        BesideObserved((gpu + loaded) / prompt, gpu / prompt, loaded / prompt, apart / prompt) if prompt else None
    )


def test_a_last_block_has_no_more_tokens_than_its_prompt(tmp_path):
    """Its id is in the trace, though it isn't full."""
    record = {"timestamp": 0, "input_length": 6, "output_length": 1, "hash_ids": [1, 2], "block_size": BLOCK}
    record |= {"cached_tokens": 6, "loaded_tokens": 6}
    columns = open_trace(write(tmp_path / "traffic.jsonl", [record, record]))
    outcome = replay_cache(columns, Setup("lru", 5))
    assert BesideSums.of(columns, outcome) == BesideSums(12, 0, 6, 6)
    assert BesideSums.of(columns, replay_cache(columns, Setup("lru", 0, 5))) == BesideSums(12, 6, 0, 6)
    assert np.array_equal(outcome.cpu_hits, [0, 2])


# -- what is shown ---------------------------------------------------------------------------------


def printed(capsys, *arguments):
    assert main([*map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()


HAD = "  its own server had 0.308 of the tokens of 3 requests (0.205 in the GPU's cache, 0.103 loaded)"


def test_a_replay_has_a_table_of_it(trace, capsys):
    lines = printed(capsys, "replay", trace, "--capacity", "5blocks,9blocks", "--gpu-capacity", "1block")
    assert lines[2] == HAD
    at, had = lines.index("compared with the hits that the trace's own server counted:"), ("it", "had")
    assert [line.split() for line in lines[at + 1 : at + 4]] == [
        ["policy", "memory", "token", *had, "GPU", "token", *had, "loaded", "token", *had, "apart"],
        ["lru", "5", "blocks", "0.410", "0.308", "0.103", "0.205", "0.308", "0.103", "0.103"],
        ["lru", "9", "blocks", "0.513", "0.308", "0.103", "0.205", "0.410", "0.103", "0.205"],
    ]
    assert (
        "It had: what that server counted, for the same prompts. Apart: tokens that only one of the two had."
        in lines
    )


def test_a_disk_behind_it_has_a_column(trace, capsys):
    lines = printed(capsys, "replay", trace, "--capacity", "1block", "--disk-capacity", "5blocks")
    at = lines.index("compared with the hits that the trace's own server counted:")
    assert lines[at + 1].split()[:4] == ["policy", "memory", "disk", "token"]
    assert lines[at + 2].split()[:6] == ["lru", "1", "block", "5", "blocks", "0.410"]


def test_where_nothing_was_loaded_one_number_is_enough(tmp_path, capsys):
    file = write(tmp_path / "traffic.jsonl", records_of(PROMPTS, ((0, 0), (0, 0), (8, 0), (8, 0))))
    lines = printed(capsys, "replay", file, "--capacity", "none", "--gpu-capacity", "5blocks")
    assert lines[2] == "  its own server had 0.333 of the tokens of 4 requests"
    at = lines.index("compared with the hits that the trace's own server counted:")
    assert [line.split() for line in lines[at + 1 : at + 3]] == [
        ["policy", "memory", "token", "it", "had", "apart"],
        ["lru", "0", "blocks", "0.333", "0.333", "0.000"],
    ]


def test_sizes_and_replays_with_time_say_it_too(trace, capsys):
    assert HAD in printed(capsys, "size", trace, "--capacity", "5blocks")
    engine = ("--fidelity", "engine", "--capacity", "1GiB")
    assert HAD in printed(capsys, "replay", trace, *engine)


def test_it_is_in_json_and_on_the_page(trace, tmp_path, capsys):
    place = tmp_path / "found.json"
    more = ("--json", place, "--html", tmp_path / "page.html")
    printed(capsys, "replay", trace, "--capacity", "5blocks", "--gpu-capacity", "none", *more)
    found = json.loads(place.read_text())
    assert found["observed"] == {
        "requests": 3,
        "prompt_tokens": 39,
        "token": pytest.approx(12 / 39),
        "gpu_token": pytest.approx(8 / 39),
        "loaded_token": pytest.approx(4 / 39),
    }
    [run] = found["runs"]
    assert run["beside"] == {"token": 16 / 39, "gpu_token": 0.0, "loaded_token": 16 / 39, "apart": 4 / 39}
    page = (tmp_path / "page.html").read_text()
    assert "<dt>its own server had</dt><dd>30.8%</dd>" in page
    assert f"<li>{HAD.strip().replace(chr(39), '&#x27;')}</li>" in page
    assert "<th>apart from its own server</th>" in page and "<td>10.3%</td>" in page
