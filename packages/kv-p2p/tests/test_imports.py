"""Who may act at all, by what each file imports; and what importing kv_p2p and making its connector loads.

Lint looks into neither folder of the first family, nor into that of the wire.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import kv_p2p

FOLDER = Path(kv_p2p.__file__).parent
BANNED = {"threading", "socket", "time", "asyncio", "concurrent", "multiprocessing", "random", "torch", "pickle"}
ACTING = {
    "clock.py": {"time"},
    "first/lookup_buffer/simple.py": {"threading"},
    "first/lookup_buffer/store.py": {"threading"},
    "first/pipe/local.py": {"threading"},
    "first/pipe/rendezvous.py": {"socket", "time"},
    "first/pipe/tcp.py": {"threading", "socket"},
    "pulling/nixl.py": {"threading", "time"},
    "pulling/tcp/carried.py": {"socket"},
    "pulling/tcp/client.py": {"threading", "socket"},
    "pulling/tcp/lanes.py": {"threading", "concurrent"},
    "pulling/tcp/server.py": {"threading", "socket"},
    "pulling/tcp/slots.py": {"threading"},
    "pulling/tcp/wire.py": {"threading"},
    "sockets.py": {"socket"},
}
"""By file. All others decide, and have none of these."""

SCRIPT = """
import sys, traceback  # which brings a module, on 3.15, that is not among the names
before = set(sys.modules)
import kv_factory
others = set(sys.modules) - before
import kv_p2p
assert {*kv_p2p.__all__, "__name__"} <= {*dir(kv_p2p)}, "listed before they are imported"
steps = [sorted(set(sys.modules) - before), sorted(set(sys.modules) - before - others)]

from types import SimpleNamespace
from kv_api import KVConnectorRole, KVTransferConfig
import logging, numpy  # what an engine has, and what brings threads along
transfer = KVTransferConfig("P2PConnector", kv_role="kv_consumer")
config = SimpleNamespace(
    kv_transfer_config=transfer,
    cache_config=SimpleNamespace(block_size=4),
    parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1, world_size=1, rank=0),
)
spec = SimpleNamespace(kind="full_attention", block_size=4)
group = SimpleNamespace(layer_names=["layer"], kv_cache_spec=spec)
cache = SimpleNamespace(num_blocks=2, kv_cache_groups=[group])
had = set(sys.modules)
for role in KVConnectorRole:
    connector = kv_p2p.P2PConnector(config, role, cache)
    steps.append(sorted(set(sys.modules) - had))
connector.register_kv_caches({"layer": numpy.zeros((2, 4))})
connector.shutdown()
steps.append(sorted(set(sys.modules) - had))
import json
print(json.dumps(steps))
"""


def steps():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    return [set(modules) for modules in json.loads(done.stdout)]


def banned_imports(file):
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    return found & BANNED


def test_who_decides_has_no_thread_no_socket_and_no_clock():
    found = {file.relative_to(FOLDER).as_posix(): banned_imports(file) for file in FOLDER.rglob("*.py")}
    assert {file: names for file, names in found.items() if names} == ACTING


def test_only_declared_packages_and_nothing_that_acts_until_a_worker_has_its_caches():
    imported, own, scheduler, worker, with_wire = steps()
    foreign = {name.partition(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert foreign == {"kv_api", "kv_factory", "kv_p2p"}
    acts = {"socket", "threading", "asyncio", "concurrent.futures", "logging", "numpy", "torch", "random"}
    assert not own & acts
    assert scheduler == worker == set()
    assert {"kv_p2p.pulling.tcp.wire", "kv_p2p.pulling.pages", "socket"} <= with_wire
    assert not any(name.startswith("kv_p2p.pulling.tcp") for name in own)
