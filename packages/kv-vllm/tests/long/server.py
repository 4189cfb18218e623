"""`vllm serve` with our connector: outputs, metrics and KV events of a server. Run by the session `vllm-long`."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path

import pytest
from kv_vllm_runs import OURS, made_up, model, with_extra

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]
READY_SECONDS = 3600
"""Each of three processes imports vLLM, which can take minutes where the cores are busy."""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def get(url, body=None, headers=None):
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return answer.read().decode()


@contextmanager
def server(tmp_path, *options):
    """A server; gives its address. It is ended with its whole group of processes."""
    with running_server(tmp_path, *options) as (_, address):
        yield address


@contextmanager
def running_server(tmp_path, *options):
    """The same; gives its process, too."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(model()), f"--port={port}"]
    command += ["--host=127.0.0.1", "--dtype=float32", "--enforce-eager", "--block-size=32", "--max-model-len=512"]
    command += ["--num-gpu-blocks-override=24", f"--kv-cache-memory-bytes={1 << 28}", "--max-num-seqs=4"]
    environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1"}
    environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    with (tmp_path / "server.log").open("w") as log:
        running = subprocess.Popen(
            [*command, *options], stdout=log, stderr=log, env=environment, start_new_session=True
        )
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(running, f"{address}/health", tmp_path / "server.log")
            yield running, address
        finally:
            _end(running)


def _end(running):
    """End it with all its processes: an engine that was still starting would outlive its server."""
    for ending in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(running.pid, ending)
        with suppress(subprocess.TimeoutExpired):
            running.wait(60)


def _core_of(running):
    """The process of a server's engine."""
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    [core] = [pid for pid in children if "EngineCore" in Path(f"/proc/{pid}/cmdline").read_text()]
    return int(core)


def _have_ended(running):
    """Wait until no process of a server is there."""
    running.wait()
    with suppress(ProcessLookupError):
        for _ in range(READY_SECONDS):
            os.killpg(running.pid, 0)
            time.sleep(1)
        raise AssertionError("its processes don't end")


def _wait(running, url, log):
    for _ in range(READY_SECONDS):
        assert running.poll() is None, log.read_text()[-4000:]
        try:
            get(url)
            return
        except OSError:
            time.sleep(1)
    raise AssertionError(log.read_text()[-4000:])


def ask(address, prompt, tokens=16, headers=None, **more):
    """The greedy continuation of a prompt, and its offer, if it has one."""
    body = {"model": str(model()), "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    answer = json.loads(get(f"{address}/v1/completions", {**body, **more, "return_token_ids": True}, headers))
    return answer["choices"][0]["token_ids"], answer.get("kv_transfer_params")


def complete(address, prompts):
    """The greedy continuation of each prompt, one after the other."""
    return [ask(address, prompt)[0] for prompt in prompts]


def listen(endpoint):
    import zmq

    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.setsockopt_string(zmq.SUBSCRIBE, "")
    socket.setsockopt(zmq.RCVTIMEO, 20_000)
    socket.connect(endpoint)
    return socket


def host_events(socket, wanted):
    """Events about host memory, until there are blocks enough."""
    import msgspec
    from vllm.distributed.kv_events import BlockStored, KVEventBatch

    stored = []
    while sum(len(event.block_hashes) for event in stored) < wanted:
        _, _, payload = socket.recv_multipart()
        batch = msgspec.msgpack.decode(payload, type=KVEventBatch)
        stored += [event for event in batch.events if isinstance(event, BlockStored) and event.medium == "CPU"]
    return stored


def values(metrics, name):
    """The values of a metric, by the last of its labels, as the server exports it."""
    found = re.findall(rf"^{re.escape(name)}{{(.*)}} ([0-9.e+-]+)$", metrics, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


PROMPTS = [made_up(0, 96) + made_up(seed, length) for seed, length in ((1, 4), (2, 60), (3, 33), (4, 128))]


def test_a_server_gives_the_same_and_counts(tmp_path):
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint.replace("127.0.0.1", "*")}
    extra = {**OURS["kv_connector_extra_config"], "self_describing_kv_events": True}
    transfer = {**OURS, "kv_connector_extra_config": extra}
    options = [f"--kv-transfer-config={json.dumps(transfer)}", f"--kv-events-config={json.dumps(events)}"]
    with server(tmp_path, *options) as address:
        heard = listen(endpoint)
        first = complete(address, PROMPTS)
        get(f"{address}/reset_prefix_cache", {})
        second = complete(address, PROMPTS)
        metrics = get(f"{address}/metrics")
        stored = host_events(heard, 3)
    with server(tmp_path) as address:
        expected = complete(address, PROMPTS)
    assert first == second == expected
    assert sum(values(metrics, "vllm:external_prefix_cache_hits_total").values()) > 0
    hits = values(metrics, "vllm:prompt_tokens_cached_by_source_total")
    assert [value for labels, value in hits.items() if 'source="host"' in labels] > [0]
    for name in ("load_bytes_total", "store_bytes_total", "load_size_count", "total_bytes_total", "size_count"):
        assert sum(values(metrics, f"vllm:kv_offload_{name}").values()) > 0, name
    by_direction = values(metrics, "vllm:kv_offload_total_bytes_total")
    assert {word for labels in by_direction for word in re.findall(r'transfer_type="(\w+)"', labels)} == {
        "CPU_to_GPU",
        "GPU_to_CPU",
    }
    event = stored[0]
    assert (event.block_size, event.kv_cache_spec_kind, event.group_idx) == (32, "full_attention", 0)
    assert event.token_ids == PROMPTS[0][:32]


def test_one_server_computes_the_prompt_and_another_goes_on(tmp_path):
    """As a router would have it: the parameters of one answer are those of the next question."""
    configs = []
    for role in ("kv_producer", "kv_consumer"):
        (tmp_path / role).mkdir()
        config = {**OURS, "kv_connector": "P2PConnector", "kv_role": role, "kv_port": free_port()}
        configs.append(f"--kv-transfer-config={json.dumps({**config, 'kv_connector_extra_config': {}})}")
    with (
        server(tmp_path / "kv_producer", configs[0]) as prefill,
        server(tmp_path / "kv_consumer", configs[1]) as decode,
    ):
        expected = complete(prefill, PROMPTS)
        told = []
        for prompt in PROMPTS:
            _, offer = ask(prefill, prompt, 1, kv_transfer_params={"do_remote_decode": True})
            told.append(ask(decode, prompt, kv_transfer_params=offer)[0])
        held, pulled = get(f"{prefill}/metrics"), get(f"{decode}/metrics")
    assert told == expected
    hits = values(pulled, "vllm:prompt_tokens_cached_by_source_total")
    assert [value for labels, value in hits.items() if 'source="p2p"' in labels] > [0]
    for metrics, name in (
        (held, "served_holds_total"),
        (pulled, "pulled_bytes_total"),
        (pulled, "pull_seconds_count"),
    ):
        assert sum(values(metrics, f"vllm:kv_p2p_{name}").values()) > 0, name
    assert [*values(held, "vllm:kv_p2p_held_blocks").values()] == [0]
    assert [*values(pulled, "vllm:kv_p2p_failed_pulls_total").values()] == [0]


def files(tmp_path, **more):
    extra = {"spec_name": "FileOffloadingSpec", "spec_module_path": "kv_offload_file", **more}
    extra |= {"file_dir": str(tmp_path / "files"), "file_bytes_to_use": 64 << 20, "file_staging_bytes": 1 << 20}
    return {**OURS, "kv_connector_extra_config": extra}


def both(*children):
    """All of them in one server."""
    return {**OURS, "kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": children}}


def test_replicas_of_a_server_share_their_files(tmp_path):
    """Of two data-parallel replicas the second one loads what the first one computed."""
    transfer = json.dumps(files(tmp_path, file_shared=True))
    with server(tmp_path, "--data-parallel-size=2", f"--kv-transfer-config={transfer}") as address:
        first, second = (
            [ask(address, prompt, headers={"X-data-parallel-rank": str(rank)})[0] for prompt in PROMPTS]
            for rank in range(2)
        )
        metrics = get(f"{address}/metrics")
    assert first == second
    [folder] = (tmp_path / "files").iterdir()
    assert {path.name for path in folder.iterdir()} == {"engine-0", "engine-1", "epoch"}
    borrowed = values(metrics, "vllm:kv_offload_file_borrowed_total")
    assert {labels.split('engine="')[1][0] for labels, value in borrowed.items() if value} == {"1"}
    assert not any(values(metrics, "vllm:kv_offload_load_failure_total").values())


def test_from_a_servers_traffic_to_the_configuration_that_it_should_have(tmp_path):
    """Recorded without a connector, sized, and run as `kv-sim size` prints it."""
    trace = tmp_path / "traffic.jsonl"
    transfer = {
        "kv_connector": "TraceConnector",
        "kv_connector_module_path": "kv_vllm",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"trace_path": str(trace)},
    }
    with server(tmp_path, f"--kv-transfer-config={json.dumps(transfer)}") as address:
        expected = complete(address, PROMPTS)
        assert complete(address, PROMPTS) == expected
    records = [json.loads(line) for line in trace.read_text().splitlines()]
    assert [(one["input_length"], one["output_length"]) for one in records] == [
        (len(prompt), 16) for prompt in PROMPTS * 2
    ]
    assert records[0]["hash_ids"] == records[4]["hash_ids"] != records[1]["hash_ids"]
    command = [sys.executable, "-m", "kv_sim", "size", str(trace), "--capacity=16blocks", "--gpu-capacity=none"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "8 requests" in printed and "blocks of 32 tokens" in printed and "format: recorded" in printed
    assert f"recorded: 1,024 bytes a token, room for {23 * 32} tokens on the GPU" in printed
    assert f'"cpu_bytes_to_use": {16 * 32 * 1024}' in printed
    with server(tmp_path, *shlex.split(printed.splitlines()[-1])) as address:
        assert complete(address, PROMPTS) == expected
        get(f"{address}/reset_prefix_cache", {})
        assert complete(address, PROMPTS) == expected
        metrics = get(f"{address}/metrics")
    assert sum(values(metrics, "vllm:external_prefix_cache_hits_total").values()) > 0


def test_a_server_that_sleeps_says_the_same_when_it_is_awake(tmp_path, monkeypatch):
    """While its requests run, and with their KV in host memory that is too small, and in files."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    transfer = json.dumps(both(with_extra(OURS, cpu_bytes_to_use=12 * 32768), files(tmp_path)))
    options = f"--kv-transfer-config={transfer}", "--worker-cls=kv_vllm_sleeper.Sleeper"
    with server(tmp_path, *options) as address, ThreadPoolExecutor(len(PROMPTS)) as clients:
        expected = [ask(address, prompt, 100)[0] for prompt in PROMPTS]
        for level, mode in product((1, 2), ("abort", "keep", "wait")):
            asked = [clients.submit(ask, address, prompt, 100) for prompt in PROMPTS]
            while not any(values(get(f"{address}/metrics"), "vllm:num_requests_running").values()):
                assert not all(one.done() for one in asked), "they were too fast for a sleep"
            get(f"{address}/sleep?level={level}&mode={mode}", {})
            get(f"{address}/wake_up", {})
            told = [one.result()[0] for one in asked]
            assert told == [whole[: len(some)] for whole, some in zip(expected, told, strict=True)]
            assert (told == expected) or mode == "abort"
            for _ in range(2):
                assert [ask(address, prompt, 100)[0] for prompt in PROMPTS] == expected
                get(f"{address}/reset_prefix_cache", {})
        metrics = get(f"{address}/metrics")
    assert sum(values(metrics, "vllm:external_prefix_cache_hits_total").values()) > 1000


def test_where_an_engine_was_killed_another_one_starts(tmp_path):
    """Nothing of it is in the way: no process, port or lock; and what it stored is loaded."""
    pulls = {**OURS, "kv_connector": "P2PConnector", "kv_port": free_port(), "kv_connector_extra_config": {}}
    options = [f"--kv-transfer-config={json.dumps(both(pulls, files(tmp_path)))}"]
    with running_server(tmp_path, *options) as (running, address):
        expected = complete(address, PROMPTS)
        for prompt in PROMPTS:
            ask(address, prompt, 1, kv_transfer_params={"do_remote_decode": True})
        os.kill(_core_of(running), signal.SIGKILL)
        _have_ended(running)
    with server(tmp_path, *options) as address:
        assert complete(address, PROMPTS) == expected
        metrics = get(f"{address}/metrics")
    assert sum(values(metrics, "vllm:external_prefix_cache_hits_total").values()) > 0
