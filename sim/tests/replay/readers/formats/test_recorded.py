"""What a trace says of the engine that it was recorded on, and who may say otherwise."""

import json
import shlex
from pathlib import Path

import pytest

from kv_api import ConfigError
from kv_sim.cli.main import main
from kv_sim.replay.api import replay, size
from kv_sim.replay.readers.opening import open_trace
from kv_sim.replay.readers.options import TraceOptions
from kv_sim.replay.trace import EngineMemory

BLOCK = 16
PROMPTS = ([1, 2, 3], [4, 5], [1, 2, 6], [4, 5, 7, 8], [1, 2, 3])


def line(time, ids, **more):
    about = {"block_size": BLOCK, "block_bytes": 64 * BLOCK, "gpu_blocks": 3}
    lengths = {"timestamp": time, "input_length": BLOCK * len(ids) + 1, "output_length": 1}
    return {**lengths, "hash_ids": ids, **about, **more}


@pytest.fixture
def write(tmp_path):
    def write(**more):
        file = tmp_path / "traffic.jsonl"
        records = [line(1000 * number, ids, **more) for number, ids in enumerate(PROMPTS)]
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        return str(file)

    return write


def printed(capsys, *arguments):
    assert main([*arguments, "--jobs", "1"]) == 0
    return capsys.readouterr().out.splitlines()


def config_of(lines):
    return json.loads(shlex.split(lines[-1])[1])["kv_connector_extra_config"]["cpu_bytes_to_use"]


RECORDED = "  recorded: 64 bytes a token, room for 48 tokens on the GPU"


def test_a_trace_that_says_it_is_sized_without_options(write, capsys):
    lines = printed(capsys, "size", write(), "--points", "2")
    assert lines[2] == RECORDED
    assert any("the GPU's prefix cache alone (3 blocks)" in text for text in lines)
    assert config_of(lines) % (64 * BLOCK) == 0
    told = ("--bytes-per-token", "64", "--gpu-capacity", "3blocks")
    assert lines[3:] == printed(capsys, "size", write(), "--points", "2", *told)[3:]


def test_whoever_says_otherwise_is_believed(write, capsys):
    usual = config_of(printed(capsys, "size", write(), "--capacity", "4blocks"))
    lines = printed(capsys, "size", write(), "--capacity", "4blocks", "--bytes-per-token", "128")
    assert config_of(lines) == 2 * usual and RECORDED not in lines
    lines = printed(capsys, "size", write(), "--capacity", "4blocks", "--gpu-capacity", "none")
    assert RECORDED in lines and not any("alone" in text for text in lines)
    lines = printed(capsys, "size", write(), "--capacity", "4blocks", "--gpu-capacity", "2blocks")
    assert any("alone (2 blocks)" in text for text in lines)


@pytest.mark.parametrize("stream", [(), ("--stream",)])
def test_a_replay_knows_it_too(write, capsys, stream):
    told = ("--bytes-per-token", "64", "--gpu-capacity", "48tokens")
    asked = ("replay", write(), "--capacity", "4KiB", *stream)
    lines = printed(capsys, *asked)
    assert RECORDED in lines
    assert lines[lines.index(RECORDED) + 1 :] == printed(capsys, *asked, *told)[lines.index(RECORDED) + 1 :]


def test_a_notebook_knows_it_too(write):
    told = {"bytes_per_token": 64, "gpu_capacity": 3}
    assert replay(write(), capacity="4KiB") == replay(write(), capacity="4KiB", **told)
    assert size(write(), points=2) == size(write(), points=2, **told)
    assert replay(write(), gpu_capacity=0).setup.gpu_blocks == 0
    assert size(write(), points=2, model="qwen3-8b").footprint.bytes_per_token != 64


def test_of_other_blocks_there_are_as_many_tokens(write):
    columns = open_trace(write(), TraceOptions(block_tokens=8))
    assert columns.engine == EngineMemory(64, 48)
    assert columns.duration_seconds == len(PROMPTS) - 1
    assert replay(columns, capacity=4).setup.gpu_blocks == 6


@pytest.mark.parametrize("without", [False, True])
def test_a_trace_need_not_say_it(write, capsys, without):
    file = Path(write(block_bytes=None, gpu_blocks=None))
    if without:
        file.write_text(file.read_text().replace(', "block_bytes": null, "gpu_blocks": null', ""))
        assert "gpu_blocks" not in file.read_text()
    assert open_trace(file).engine is None
    lines = printed(capsys, "size", str(file), "--points", "2")
    assert not any("recorded:" in text or "alone" in text or "transfer-config" in text for text in lines)


ANOTHER = {
    "block_bytes": (
        {"block_bytes": 32 * BLOCK},
        "block_bytes: 32 bytes a token after 64; one trace has requests of one engine; cut it before this line, "
        "or say --model or --bytes-per-token",
    ),
    "gpu_blocks": (
        {"gpu_blocks": 5},
        "gpu_blocks: room for 80 tokens on the GPU after 48; one trace has requests of one engine; cut it before "
        "this line, or say --gpu-capacity",
    ),
}
"""of a server that was started anew: what its records say, what is said of that"""


def restarted(file, **more):
    """Add to the file what another server records."""
    lines = [json.dumps(line(10_000 + 1000 * number, ids, **more)) for number, ids in enumerate(PROMPTS)]
    with Path(file).open("a") as opened:
        opened.write("".join(text + "\n" for text in lines))
    return file


@pytest.mark.parametrize("what", ANOTHER)
@pytest.mark.parametrize(
    "command", [("size",), ("replay",), ("replay", "--stream", "--capacity", "5blocks")], ids=" ".join
)
def test_requests_of_another_engine_are_refused(write, capsys, what, command):
    """What is said by the first one would be taken of all of them."""
    more, message = ANOTHER[what]
    file = restarted(write(), **more)
    name, *options = command
    assert main([name, file, *options]) == 2
    assert capsys.readouterr().err == f"kv-sim {name}: {file}:6: {message}\n"
    call = size if name == "size" else replay
    with pytest.raises(ConfigError) as refused:
        call(file)
    assert str(refused.value) == f"{file}:6: {message}"


OVERRULED = {
    "block_bytes": {"bytes_per_token": 64},
    "gpu_blocks": {"gpu_capacity": "3blocks"},
}


@pytest.mark.parametrize("what", ANOTHER)
def test_but_where_somebody_says_in_their_place_what_they_differ_in(write, capsys, what):
    more, _ = ANOTHER[what]
    file, said = restarted(write(), **more), OVERRULED[what]
    options = [text for name, value in said.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    as_if = size(restarted(write()), points=2, **said)
    assert size(restarted(write(), **more), points=2, **said) == as_if
    assert printed(capsys, "size", file, "--points", "2", *options)[-1].startswith("--kv-transfer-config")
    with pytest.raises(ConfigError, match=f"{file}:6: "):
        size(file, **{**OVERRULED["block_bytes"], **OVERRULED["gpu_blocks"], next(iter(said)): None})
    assert main(["replay", file, "--fidelity", "engine"]) == 0, "an engine has memory of its own"
    capsys.readouterr()
    assert size(restarted(write(), **more), points=2, model="qwen3-8b", gpu_capacity=0).gpu_blocks == 0


def test_a_request_that_says_nothing_of_its_engine_says_nothing_else(write):
    file = restarted(write(), block_bytes=None, gpu_blocks=None)
    assert open_trace(file).engine == EngineMemory(64, 48)
    file = restarted(write(block_bytes=None, gpu_blocks=None))
    assert open_trace(file).engine is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gpu_blocks": None}, "gpu_blocks: expected a whole number of 0 to 9007199254740991, got None"),
        ({"gpu_blocks": True}, "gpu_blocks: expected a whole number of 0 to 9007199254740991, got True"),
        ({"gpu_blocks": -1}, "gpu_blocks: expected a whole number of 0 to 9007199254740991, got -1"),
        ({"block_bytes": None}, "block_bytes: expected a whole number of 0 to 9007199254740991, got None"),
        (
            {"block_bytes": 2**53},
            "block_bytes: expected a whole number of 0 to 9007199254740991, got 9007199254740992",
        ),
        (
            {"gpu_blocks": 99 * "7"},
            f"gpu_blocks: expected a whole number of 0 to 9007199254740991, got '{59 * '7'}",
        ),
        ({"block_bytes": "64"}, "block_bytes: expected a whole number of 0 to 9007199254740991, got '64'"),
        (
            {"block_bytes": 100},
            "block_bytes: expected a multiple of block_size, 16, of 1 to 1099511627776 bytes a token, got 100",
        ),
        (
            {"block_bytes": 0},
            "block_bytes: expected a multiple of block_size, 16, of 1 to 1099511627776 bytes a token, got 0",
        ),
        (
            {"block_size": 1, "block_bytes": 2**41},
            "block_bytes: expected a multiple of block_size, 1, of 1 to 1099511627776 bytes a token, "
            "got 2199023255552",
        ),
    ],
)
def test_what_it_says_wrongly_is_refused(write, wrong, message):
    file = write(**wrong)
    with pytest.raises(ConfigError) as refused:
        open_trace(file)
    assert str(refused.value) == f"{file}:1: {message} (--on-error skip goes on)"


HAD = {"host_bytes": 6 * 64 * BLOCK, "policy": "arc"}
"""Room for six blocks."""


def rows(lines):
    """Policy and memory of each row beside what the server had."""
    begin = lines.index("policy  blocks  tokens  memory", 0) if "policy  blocks  tokens  memory" in lines else None
    table = lines[begin:] if begin is not None else lines
    return [tuple(line.split()[:2]) for line in table if line.split()[:1] in (["lru"], ["arc"])]


def test_the_server_of_a_trace_is_replayed_beside_others(write, capsys):
    lines = printed(capsys, "replay", write(**HAD, cached_tokens=0, loaded_tokens=0))
    assert f"{RECORDED}, 6 KiB of host memory (arc)" in lines
    assert rows(lines)[0] == ("arc", "6"), "before the usual ones, which are of lru"
    assert {policy for policy, _ in rows(lines)[1:-1]} >= {"lru"}
    asked = rows(printed(capsys, "replay", write(**HAD), "--capacity", "2blocks,none"))
    assert {policy for policy, _ in asked} == {"lru"}, "who says what is to be replayed gets that"
    assert not any(policy == "arc" for policy, _ in rows(printed(capsys, "replay", write())))
    unknown = write(**{**HAD, "policy": "theirs"})
    assert not any(policy == "theirs" for policy, _ in rows(printed(capsys, "replay", unknown)))


def test_files_of_the_server_are_replayed_too(write, capsys):
    room = {"disk_bytes": 5 * (4096 + 256), "policy": "lru"}
    lines = printed(capsys, "replay", write(**room, **{"host_bytes": None}))
    assert f"{RECORDED}, 21.2 KiB of files (lru)" in lines
    assert next(line.split()[:5] for line in lines if line.startswith("lru ")) == ["lru", "0", "0", "0", "B"]
    assert any(line.split()[:6] == ["lru", "0", "B", "5", "80", "5"] for line in lines)


def test_what_a_server_kept_blocks_in_has_to_be_one_thing_where_it_is_replayed(write, capsys):
    file = restarted(write(**HAD), host_bytes=1 << 20, policy="lru")
    assert main(["replay", file]) == 2
    assert capsys.readouterr().err == (
        f"kv-sim replay: {file}:6: host_bytes, disk_bytes, policy: 1048576, 0, lru after 6144, 0, arc; "
        "one trace has requests of one engine; cut it before this line, or say --capacity\n"
    )
    assert main(["replay", file, "--capacity", "3blocks"]) == main(["size", file, "--points", "2"]) == 0
    assert replay(file, capacity=3).setup.capacity == 3 and size(file, points=2).recommended


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"host_bytes": 64}, "policy: expected the name of one, got None"),
        ({"host_bytes": 64, "policy": ""}, "policy: expected the name of one, got ''"),
        (
            {"disk_bytes": -1, "policy": "lru"},
            "disk_bytes: expected a whole number of 0 to 9007199254740991, got -1",
        ),
    ],
)
def test_what_a_server_kept_blocks_in_may_be_said_wrong(write, more, message):
    with pytest.raises(ConfigError) as caught:
        open_trace(write(**more))
    assert message in str(caught.value)
