"""Engines that share a folder, in processes of their own that store and load at once; one is killed meanwhile."""

import json
import signal
import subprocess
import sys

from kv_offload_file_rig import Rig

from kv_offload_file.stats import BORROWED

CHILD = """
import json, logging, random, sys
sys.path[:0] = json.loads(sys.argv[4])
from kv_api import LookupResult
from kv_offload_file.stats import BORROWED, DAMAGED, ERRORS, GONE
from kv_offload_file_rig import Rig, make_key

logging.disable(logging.CRITICAL)
folder, number, times = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rig = Rig(folder, 12, file_shared=True, file_engine=number)
chance = random.Random(number)
counted = {"loads": 0, "failed": 0, BORROWED: 0}
for turn in range(times):
    first = chance.randrange(30)
    numbers = [chunk % 30 for chunk in range(first, first + chance.randint(1, 4))]
    there = [chunk for chunk in numbers if rig.manager.lookup(make_key(chunk), rig.context) is LookupResult.HIT]
    if there:
        counted["loads"] += 1
        counted["failed"] += not rig.load(there)  # which compares bytes if it went well
    missing = [chunk for chunk in numbers if chunk not in there]
    if missing:
        rig.store(missing)
    counted[BORROWED] += rig.manager.get_stats().data.get(BORROWED, 0)
    if turn == 0:
        print("begun", flush=True)
        sys.stdin.readline()
    rig.check()
[rank] = rig.ranks
counts = rank.worker.take_counts()
rig.stop()
print(json.dumps({**counted, "errors": counts.get(ERRORS, 0), "damaged": counts.get(DAMAGED, 0),
    "gone": counts.get(GONE, 0)}))
"""


def start(folder, number, times):
    command = [sys.executable, "-c", CHILD, str(folder), str(number), str(times), json.dumps(sys.path)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_nothing_wrong_is_loaded_whoever_stores_or_dies_meanwhile(tmp_path):
    engines = [start(tmp_path, number, 250) for number in range(3)]
    assert [engine.stdout.readline() for engine in engines] == ["begun\n"] * 3
    killed = start(tmp_path, 3, 10**9)
    assert killed.stdout.readline() == "begun\n"
    for engine in [killed, *engines]:
        engine.stdin.write("go on\n")
        engine.stdin.flush()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    ended = [engine.communicate() for engine in engines]
    assert [engine.returncode for engine in engines] == [0] * 3, ended
    counted = [json.loads(out) for out, _ in ended]
    for one in counted:
        assert one[BORROWED] > 0, "it found what others had"
        assert one["errors"] == one["damaged"] == 0
        assert one["failed"] <= one["gone"], "but what went before it was borrowed, all was loaded"
        assert one["loads"] > 2 * one["failed"], "and that is rare"
    again = Rig(tmp_path, 12, file_shared=True, file_engine=3)
    assert again.manager._own.lent() == [], "nobody has anything of anybody's any more"
    there = [number for number in range(30) if again.hits([number])]
    assert len(there) > 12 and all(again.load([number]) for number in there)
    again.stop()
