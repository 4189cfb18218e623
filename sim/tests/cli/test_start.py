"""How the command ends, whatever a connector did: each in a process of its own."""

import os
import subprocess
import sys

import pytest

COMMAND = """
import atexit, ctypes, sys, threading
import kv_sim.cli.main
from kv_sim.cli import start
start.PATIENCE_SECONDS = 0.2

def main():
    atexit.register(print, "atexit")
    print("done")
    {what}
    return 7

kv_sim.cli.main.main = main
sys.exit(start.start())
"""


POOL = "import concurrent.futures; atexit.kept = concurrent.futures.ThreadPoolExecutor(); atexit.kept"
"""One that goes on: what nobody has any more ends by itself."""


def run(what: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", COMMAND.format(what=what)]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=buffered)


@pytest.mark.parametrize(
    ("what", "err"),
    [
        (
            "[threading.Thread(target=threading.Event().wait, name=name).start() for name in ('push', 'pull')]",
            "note: threads are left that no shutdown ended, and not waited for: pull, push\n",
        ),
        ("threading.Thread(target=threading.Event().wait, args=(0.01,)).start()", ""),
        ("threading.Thread(target=threading.Event().wait, daemon=True).start()", ""),
        (f"{POOL}.submit(print, end='')", ""),
        (f"{POOL}.submit(threading.Event().wait)", ""),
    ],
)
def test_no_thread_of_a_connector_keeps_the_command_from_its_end(what: str, err: str) -> None:
    ended = run(what)
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "done\natexit\n", err)


def test_a_crash_of_the_process_says_where() -> None:
    ended = run("ctypes.string_at(0)")
    assert ended.returncode < 0
    assert "in string_at" in ended.stderr
    assert "in main" in ended.stderr
