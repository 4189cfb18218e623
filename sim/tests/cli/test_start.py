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
            "note: these threads still run after shutdown, and are not waited for: pull, push\n",
        ),
        ("threading.Thread(target=threading.Event().wait, args=(0.01,)).start()", ""),
        ("threading.Thread(target=threading.Event().wait, daemon=True).start()", ""),
        ("sys.stderr = None; threading.Thread(target=threading.Event().wait).start()", ""),
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


def test_a_thread_that_ends_the_process_says_where() -> None:
    ended = run(
        "from kv_sim.console.edge import exit_code_of; import os; "
        "exit_code_of('it', lambda: threading.Thread(target=lambda: os._exit(9)).run())"
    )
    assert ended.returncode == 9
    assert ended.stderr.startswith("note: a connector or a library called os._exit(9):\n  File ")
    assert "in <lambda>" in ended.stderr


def test_a_process_that_is_forked_ends_as_ever() -> None:
    ended = run(
        "from kv_sim.console.edge import exit_code_of; import os; sys.stdout.flush(); "
        "exit_code_of('it', lambda: print(os.waitpid(os.fork() or os._exit(9), 0)[1] >> 8))"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "done\n9\natexit\n", "")


def test_another_command_may_begin_there() -> None:
    script = "from kv_sim.cli.start import start; import sys; sys.exit(start(lambda: 5))"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 5
