"""Ctrl-C, which reaches all processes of a terminal, ends a command at once, and one line says it."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing import active_children, get_context
from pathlib import Path
from threading import Event, Thread

import pytest

from kv_api import ConfigError
from kv_sim.cli.main import main
from kv_sim.console.interrupts import heard_here_alone
from kv_sim.replay import open_trace
from kv_sim.replay.caches.outcome import Setup
from kv_sim.replay.command import run
from kv_sim.replay.command.progress import ProgressBar
from kv_sim.replay.crew import Crew
from kv_sim.replay.hit_rates.setups import replay_all
from kv_sim.replay.servers.fleet import Fleet, RoutedTrace


@pytest.fixture(autouse=True)
def _is_heard():
    """Also where whoever started the tests does not listen, as in the background of a shell: all inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def long(tmp_path):
    """A trace that takes seconds to read, and to replay."""
    file = tmp_path / "long.jsonl"
    with file.open("w") as opened:
        for n in range(5_000):
            ids = [*range(200 * n, 200 * n + 200)]
            opened.write(json.dumps({"timestamp": n, "input_length": 102_400, "hash_ids": ids}) + "\n")
    return file


COMMANDS = {
    "replay": ("--capacity", "1000blocks", "--jobs", "1"),
    "replay --fidelity engine": ("--fidelity", "engine"),
    "replay in processes": ("--capacity", "1000blocks,2000blocks", "--policy", "all", "--jobs", "2"),
    "size in processes": ("--policy", "all", "--jobs", "2"),
}
MOMENTS = {
    "it reads": lambda process, trace: str(trace) in opened_by(process),
    "processes begin": lambda process, trace: len(children_of(process)) == 3,  # one is multiprocessing's own
    "processes work": lambda process, trace: sum(map(has_blocks, children_of(process))) == 2,
}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for the children of a process")
@pytest.mark.parametrize(
    ("what", "moment"),
    [
        *((what, "it reads") for what in COMMANDS),
        ("size in processes", "processes begin"),
        ("replay in processes", "processes work"),
    ],
)
def test_ctrl_c_ends_all_processes_and_is_said_once(long, what, moment):
    """Also while they start, when no code of ours could see to that.

    Tried again if it goes on: Python loses an interrupt that finds it in a callback of its own, as imports have.
    """
    command = [what.split()[0], str(long), *COMMANDS[what]]
    tries = (interrupted(command, lambda process: MOMENTS[moment](process, long)) for _ in range(2))
    assert next(filter(None, tries), None) == (130, "", "note: interrupted\n")


def interrupted(command, is_time):
    """How a command ended and what it printed. None: not within twenty seconds."""
    with subprocess.Popen(
        [sys.executable, "-m", "kv_sim", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            end = time.monotonic() + 120
            while not is_time(process.pid):
                assert process.poll() is None and time.monotonic() < end, process.communicate()
                time.sleep(0.01)
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, out, err


def children_of(process):
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


def has_blocks(process):
    """Whether it has mapped what it replays."""
    return "blocks.npy" in Path(f"/proc/{process}/maps").read_text()


def opened_by(process):
    found = []
    for file in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):  # it is closed already
            found.append(os.readlink(file))
    return found


def test_other_processes_of_a_notebook_are_left_alone(small):
    columns = open_trace(small)
    other = get_context("spawn").Process(target=time.sleep, args=(300,))
    other.start()

    def stop(share):
        raise KeyboardInterrupt

    trace = RoutedTrace(columns, Fleet())
    with pytest.raises(KeyboardInterrupt):
        replay_all(trace, [Setup("lru", 4), Setup("arc", 4)], Crew(2, stop))
    assert active_children() == [other]
    other.terminate()
    other.join()


@pytest.mark.parametrize("threads", [0, 1])
def test_what_is_started_does_not_hear_it_and_this_process_does_later(threads):
    """Also where another thread takes the signal, such as one of numpy's."""
    program = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    said = []

    def ask():
        said.append(subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60).strip())

    def start():
        with heard_here_alone():
            os.kill(os.getpid(), signal.SIGINT)
            ask()

    end, before = Event(), signal.getsignal(signal.SIGINT)
    others = [Thread(target=end.wait) for _ in range(threads)]
    for other in others:
        other.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            start()
    finally:
        end.set()
    ask()
    assert said == ["True", "False"] and signal.getsignal(signal.SIGINT) is before


def test_the_first_process_that_python_starts_does_not_hear_it_either():
    """Before that one it starts a process of its own, and then lets whatever comes next hear the signal."""
    program = """
import signal
from multiprocessing import resource_tracker
from kv_sim.console.interrupts import heard_here_alone
with heard_here_alone():
    resource_tracker.ensure_running()
    print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
    assert subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60) == "True\n"


def test_in_a_thread_nothing_is_heard_anyway():
    ran = []

    def inside():
        with heard_here_alone():
            ran.append(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    thread = Thread(target=inside)
    thread.start()
    thread.join()
    assert ran == [True]


def test_what_ends_a_command_is_not_said_behind_its_progress(small, capsys, monkeypatch):
    """On a terminal, where a line is drawn over and over."""
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(run, "ProgressBar", lambda: ProgressBar(screen))

    for error, code in ((KeyboardInterrupt(), 130), (ConfigError("no"), 2)):

        def stop(trace, options, tell, error=error):
            tell(7)
            raise error

        monkeypatch.setattr(run, "open_trace", stop)
        for command in ("replay", "size"):
            assert main([command, str(small)]) == code
            assert screen.getvalue().endswith("reading requests: 7\r                   \r")
    told = ["note: interrupted", "note: interrupted", "kv-sim replay: no", "kv-sim size: no"]
    assert capsys.readouterr().err.splitlines() == told
