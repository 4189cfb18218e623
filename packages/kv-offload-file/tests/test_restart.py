"""Engines in processes of their own, one after the other; some are killed while they store."""

import os
import signal
import subprocess
import sys

from kv_offload_file_rig import Rig, make_keys

from kv_api import LookupResult

CHILD = """
import sys
sys.path[:0] = {path}
from kv_offload_file_rig import Rig
from kv_api import ReqContext
rig = Rig({folder!r}, 40, ranks=2, blocks_per_chunk=1)
for first in range(0, 1000, 4):
    rig.context = ReqContext(str(first))
    assert rig.store(range(first, first + 4))
    print(first, flush=True)
    if first == {last}:
        rig.stop()
        break
"""


def child(folder, last):
    code = CHILD.format(path=sys.path, folder=str(folder), last=last)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def found(folder):
    """Which chunks an engine finds, all of which it can load."""
    rig = Rig(folder, 40, ranks=2, blocks_per_chunk=1)
    keys = make_keys(range(1000))
    there = [n for n, key in enumerate(keys) if rig.manager.lookup(key, rig.context) is LookupResult.HIT]
    for begin in range(0, len(there), 8):
        assert rig.load(there[begin : begin + 8])
    rig.check()
    rig.stop()
    return there


def test_an_engine_that_was_stopped(tmp_path):
    with child(tmp_path, last=12) as process:
        assert [*map(int, process.stdout)] == [0, 4, 8, 12]
    assert found(tmp_path) == [*range(16)]
    assert found(tmp_path) == [*range(16)]


def test_an_engine_that_was_killed_while_it_stored(tmp_path):
    """What it said it had stored is there, unless it had to leave for more; the rest is whole or not there."""
    with child(tmp_path, last=-1) as process:
        for line in process.stdout:
            if int(line) >= 80:
                break
        os.kill(process.pid, signal.SIGKILL)
        ended = [80, *map(int, process.stdout)][-1]
    there = found(tmp_path)
    assert {*range(ended + 8 - 40, ended + 4)} <= {*there}
    assert len(there) <= 40
