"""The trace of an engine's requests: what a line says, in which order, and what becomes of a file that fails."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_vllm_full_disk import Full

from kv_api import ConfigError
from kv_sim.replay.readers.opening import open_trace
from kv_vllm.recording import traffic as module
from kv_vllm.recording.traffic import Blocks, Traffic, id_of, path_of_replica

BLOCK = 4
TOLD = Blocks(BLOCK)


def request_of(name, prompt=9, hashes=("a", "b")):
    return SimpleNamespace(
        request_id=name,
        num_prompt_tokens=prompt,
        num_output_tokens=0,
        block_hashes=[text.encode().ljust(32, b".") for text in hashes],
    )


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def warned():
    return []


@pytest.fixture
def make(tmp_path, clock, warned):
    made = []

    def make(name="a trace.jsonl", blocks=TOLD):
        traffic = Traffic(tmp_path / name, blocks, clock, lambda text, *args: warned.append(text % args))
        made.append(traffic)
        return traffic

    yield make
    for traffic in made:
        traffic.check()
        traffic.close()


def written(tmp_path):
    return [json.loads(line) for line in (tmp_path / "a trace.jsonl").read_text().splitlines()]


def ended(traffic, request, output_tokens=0):
    request.num_output_tokens = output_tokens
    traffic.end(request)


def test_a_line_has_the_full_blocks_of_a_prompt(make, tmp_path, clock):
    traffic = make()
    longer = request_of("x", prompt=11, hashes=("a", "b", "c of the output"))
    traffic.arrive(longer)
    clock.now = 1002.5
    short = request_of("y", prompt=3, hashes=())
    traffic.arrive(short)
    ended(traffic, longer, 7)
    ended(traffic, short, 1)
    ids = [id_of(block_hash) for block_hash in longer.block_hashes[:2]]
    assert written(tmp_path) == [
        {"timestamp": 1_000_000, "input_length": 11, "output_length": 7, "hash_ids": ids, "block_size": 4},
        {"timestamp": 1_002_500, "input_length": 3, "output_length": 1, "hash_ids": [], "block_size": 4},
    ]


def test_a_request_that_vllm_makes_up_when_a_client_has_gone_is_no_traffic(make, tmp_path):
    traffic = make()
    made_up = request_of("made up", prompt=1, hashes=())
    made_up.abort_immediately = True
    traffic.arrive(made_up)
    ended(traffic, made_up)
    traffic.close()
    assert written(tmp_path) == []


def test_what_is_known_of_the_engine_is_in_each_line(make, tmp_path):
    traffic = make(blocks=Blocks(BLOCK, 4096, 77))
    traffic.arrive(request_of("x", hashes=("aaaaaaa", "b")))
    traffic.close()
    one, two = id_of(b"aaaaaaa."), id_of(b"b.......")
    assert (tmp_path / "a trace.jsonl").read_text() == (
        f'{{"timestamp":1000000,"input_length":9,"output_length":0,"hash_ids":[{one},{two}],"block_size":4,'
        '"block_bytes":4096,"gpu_blocks":77}\n'
    )


def test_an_id_is_the_beginning_of_a_hash_and_any_json_reader_keeps_it():
    assert id_of(bytes([0x80, 0, 0, 0, 0, 0, 0b00001000, 0]) + b"more") == (1 << 52) + 1
    assert id_of(b"\xff" * 32) == 2**53 - 1 == float(id_of(b"\xff" * 32))


def test_lines_are_in_the_order_of_arrival_and_come_as_soon_as_they_can(make, tmp_path):
    traffic = make()
    first, second, third = (request_of(name, prompt) for name, prompt in (("x", 5), ("y", 6), ("z", 7)))
    for request in (first, second, third):
        traffic.arrive(request)
    ended(traffic, second)
    assert written(tmp_path) == []
    ended(traffic, first)
    assert [line["input_length"] for line in written(tmp_path)] == [5, 6]
    traffic.check()
    ended(traffic, third)
    assert [line["input_length"] for line in written(tmp_path)] == [5, 6, 7]


def observed(tmp_path):
    return [(line.get("cached_tokens"), line.get("loaded_tokens")) for line in written(tmp_path)]


def test_a_line_has_what_the_engine_had_when_it_began(make, tmp_path):
    """The engine may ask several times before, as when there are no blocks; later it begins anew."""
    traffic, asked = make(), request_of("x")
    traffic.arrive(asked)
    traffic.look_up(asked, 8)
    traffic.look_up(asked, 4)
    traffic.begin(asked, 4)
    traffic.begin(asked, 0)
    traffic.look_up(asked, 0)
    traffic.begin(asked, 8)
    ended(traffic, asked)
    assert observed(tmp_path) == [(8, 4)]


def test_what_never_began_says_nothing_of_it(make, tmp_path):
    traffic, asked, other = make(), request_of("x"), request_of("y")
    for one in (asked, other):
        traffic.arrive(one)
        traffic.look_up(one, 8)
    traffic.begin(other, 0)
    ended(traffic, asked)
    traffic.close()
    assert observed(tmp_path) == [(None, None), (8, 0)]
    traffic.look_up(request_of("nobody"), 8)
    traffic.begin(request_of("nobody"), 8)


def test_times_never_go_back(make, tmp_path, clock):
    traffic = make()
    for now in (1000.0, 999.0, 1001.0):
        clock.now = now
        request = request_of("x")
        traffic.arrive(request)
        ended(traffic, request)
    assert [line["timestamp"] for line in written(tmp_path)] == [1_000_000, 1_000_000, 1_001_000]


@pytest.mark.parametrize(("limit", "most"), [("MOST_IDS_WAITING", 4), ("MOST_REQUESTS_WAITING", 2)])
def test_who_runs_for_too_long_is_written_with_what_it_has(make, tmp_path, monkeypatch, limit, most):
    monkeypatch.setattr(module, limit, most)
    traffic = make()
    running, *others = [request_of(name, prompt) for name, prompt in (("x", 8), ("y", 9), ("z", 10))]
    traffic.arrive(running)
    traffic.arrive(others[0])
    running.num_output_tokens = 5
    ended(traffic, others[0], 1)
    assert written(tmp_path) == []
    traffic.arrive(others[1])  # one too many
    assert [(line["input_length"], line["output_length"]) for line in written(tmp_path)] == [(8, 5), (9, 1)]
    traffic.check()
    ended(traffic, running, 6)
    ended(traffic, others[1], 2)
    assert [(line["input_length"], line["output_length"]) for line in written(tmp_path)] == [
        (8, 5),
        (9, 1),
        (10, 2),
    ]


def test_who_has_not_ended_is_written_when_it_closes(make, tmp_path):
    traffic = make()
    request = request_of("x")
    traffic.arrive(request)
    request.num_output_tokens = 3
    traffic.close()
    assert [line["output_length"] for line in written(tmp_path)] == [3]
    traffic.arrive(request_of("late"))
    assert not traffic._rows, "of an engine that goes on without its trace nothing is kept"
    traffic.end(request)
    traffic.close()
    assert len(written(tmp_path)) == 1


def test_nobody_ends_who_did_not_arrive(make, tmp_path):
    make().end(request_of("x"))
    assert written(tmp_path) == []


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=40))
def test_whatever_happens_each_request_has_its_line(tmp_path_factory, events):
    """Compared with a list: (which one, what it has sampled), the first time it arrives, then it ends."""
    file = tmp_path_factory.mktemp("any") / "a trace.jsonl"
    traffic = Traffic(file, TOLD, Clock(), print)
    running, expected = {}, []
    for number, (name, output) in enumerate(events):
        if name in running:
            request, line = running.pop(name)
            ended(traffic, request, output)
            line[1] = output
        else:
            request, line = request_of(name, prompt=number), [number, 0]
            running[name] = request, line
            expected.append(line)
            traffic.arrive(request)
        traffic.check()
        complete = next(
            (place for place, line in enumerate(expected) if line in [r[1] for r in running.values()]), None
        )
        seen = [json.loads(text) for text in file.read_text().splitlines()]
        assert [[line["input_length"], line["output_length"]] for line in seen] == expected[:complete]
    traffic.close()


def test_it_goes_on_where_the_file_ends(make, tmp_path):
    for name in ("x", "y"):
        traffic, request = make(), request_of(name)
        traffic.arrive(request)
        ended(traffic, request)
        traffic.close()
    assert len(written(tmp_path)) == 2
    torn = tmp_path / "a trace.jsonl"
    torn.write_text(torn.read_text() + '{"timestamp":1,"inp')  # the engine was killed as it wrote
    traffic, request = make(), request_of("z")
    traffic.arrive(request)
    ended(traffic, request)
    lines = torn.read_text().splitlines()
    assert lines[2] == '{"timestamp":1,"inp' and json.loads(lines[3])["input_length"] == 9


@pytest.mark.parametrize("text", ["some notes\n", '{"call": "arrive"}\n', "{"])
def test_a_file_of_something_else_is_refused_and_stays_as_it_is(make, tmp_path, text):
    file = tmp_path / "a trace.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        make()
    assert str(refused.value) == (
        f"kv_connector_extra_config.trace_path: {file} exists and is not a trace of requests; choose another file"
    )
    assert file.read_text() == text


def test_a_path_that_cannot_be_written_to_is_refused(make, tmp_path):
    (tmp_path / "a file").write_text("")
    with pytest.raises(ConfigError, match=r"^kv_connector_extra_config.trace_path: .*a file"):
        make("a file/a trace.jsonl")
    assert make("new/er/a trace.jsonl")


def test_a_full_disk_ends_the_trace_and_not_the_engine(make, tmp_path, warned):
    traffic, kept = make(), request_of("kept")
    traffic.arrive(kept)
    ended(traffic, kept)
    traffic._file = Full(traffic._file, 10)
    lost = [request_of(name) for name in ("x", "y")]
    for request in lost:
        traffic.arrive(request)
    for request in lost:
        ended(traffic, request)
    traffic.arrive(request_of("z"))
    assert warned == [f"{tmp_path / 'a trace.jsonl'}: the trace of requests ends here: [Errno 28] disk full"]
    assert len([*open_trace(tmp_path / "a trace.jsonl")]) == 1
    traffic.check()


def test_what_takes_part_of_a_line_is_given_the_rest(make, tmp_path):
    traffic = make()
    file = traffic._file
    traffic._file = SimpleNamespace(write=lambda data: file.write(data[:7]), closed=False, close=file.close)
    request = request_of("x")
    traffic.arrive(request)
    ended(traffic, request)
    assert len(written(tmp_path)) == 1


def test_the_first_replica_has_the_path_itself(tmp_path):
    path = tmp_path / "traffic.of.today.jsonl"
    names = [path_of_replica(path, replica).name for replica in (0, 1, 12)]
    assert names == ["traffic.of.today.jsonl", "traffic.of.today.1.jsonl", "traffic.of.today.12.jsonl"]


def test_the_testbed_reads_it(make, tmp_path, clock):
    """What two prompts share, of which the second one shares a block; as they came, and what they sampled."""
    traffic = make()
    clock.now = 1.79e9
    for name, hashes, prompt, seconds in (("x", "abc", 13, 0), ("y", "abd", 12, 1.5), ("z", "e", 7, 2)):
        clock.now = 1.79e9 + seconds
        request = request_of(name, prompt, hashes)
        traffic.arrive(request)
        ended(traffic, request, 5)
    columns = open_trace(tmp_path / "a trace.jsonl")
    one, two, three = columns
    assert columns.notes == ("format: recorded",) and columns.block_tokens == BLOCK
    assert [request.arrival_seconds for request in columns] == [0, 1.5, 2]
    assert [(request.input_tokens, request.output_tokens) for request in columns] == [(13, 5), (12, 5), (7, 5)]
    assert one.blocks[:2] == two.blocks[:2] and one.blocks[2] != two.blocks[2]
    assert not {*three.blocks} & {*one.blocks, *two.blocks} and [len(r.blocks) for r in columns] == [3, 3, 1]


def test_what_could_not_be_loaded_was_not_there(make, tmp_path):
    """Prompts of 17 tokens on blocks of 4: one is on the GPU, or none, and others are to be loaded behind it."""
    traffic = make()
    first, second, third, fourth = (request_of(name, 17, "abcd") for name in "wxyz")
    for asked in (first, second, third, fourth):
        traffic.arrive(asked)
    traffic.look_up(first, 4)
    traffic.begin(first, 8, [50, 51, 52, 53, 54])
    traffic.begin(second, 16, [60, 61, 62, 63, 64])
    traffic.begin(third, 8, [70, 71, 72, 73])
    traffic.begin(fourth, 8, [80, 81, 82, 83])
    traffic.fail({52, 53, 60, 73})
    traffic.loaded(["x", "y", "nobody"])
    traffic.fail([])
    traffic.fail({70, 61})
    traffic.begin(fourth, 0, [70, 71])  # it was preempted, and its blocks are others' now
    traffic.fail({80})
    for asked in (first, second, third, fourth):
        traffic.end(asked)
    assert observed(tmp_path) == [(8, 4), (0, 0), (8, 8), (8, 8)]


def test_a_load_that_fails_within_a_block(make, tmp_path):
    """What is loaded may begin and end within one; of a load that fails twice the first failure counts."""
    traffic = make()
    begun, later, ended, twice = (request_of(name, 17, "abcd") for name in "wvxy")
    for asked in (begun, later, ended, twice):
        traffic.arrive(asked)
    for asked, first in ((begun, 50), (later, 80)):
        traffic.look_up(asked, 6)
        traffic.begin(asked, 6, [*range(first, first + 5)])
    traffic.begin(ended, 15, [60, 61, 62, 63, 64])
    traffic.begin(twice, 16, [70, 71, 72, 73, 74])
    traffic.fail({51, 63, 71, 82})
    traffic.fail({72})
    for asked in (begun, later, ended, twice):
        traffic.end(asked)
    assert observed(tmp_path) == [(6, 0), (8, 2), (12, 12), (4, 4)]


def test_what_a_connector_keeps_stands_in_each_line(make, tmp_path):
    traffic = make(blocks=Blocks(BLOCK, 4096, 9, 1 << 20, None, "arc"))
    traffic.arrive(asked := request_of("x"))
    traffic.end(asked)
    [line] = written(tmp_path)
    assert [*line.items()][-4:] == [
        ("block_bytes", 4096),
        ("gpu_blocks", 9),
        ("host_bytes", 1 << 20),
        ("policy", "arc"),
    ]
    memory = open_trace(tmp_path / "a trace.jsonl").engine
    assert memory is not None and (memory.host_bytes, memory.disk_bytes, memory.policy) == (1 << 20, 0, "arc")
