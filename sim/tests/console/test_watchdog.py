"""A call that doesn't return is ended, and told; a process of a command ends with it."""

import os
import re
import signal
import subprocess
import sys
import threading
from copy import deepcopy
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from kv_api import KVConnectorRole, TwoSidedConnector
from kv_sim import guard as guards
from kv_sim.campaign import processes
from kv_sim.checkers.raised import runs_at
from kv_sim.cli import main as cli
from kv_sim.cli.main import main
from kv_sim.config import WorldConfig
from kv_sim.console import watchdog
from kv_sim.console.watchdog import ends_calls
from kv_sim.console.workers import end_with_parent
from kv_sim.engine.settings import kv_cache_config, vllm_config
from kv_sim.examples.later import LaterScheduler, LaterWorker
from kv_sim.examples.memory import MemoryConnector
from kv_sim.guard import Guard, NotCreated, create
from kv_sim.replay import crew
from kv_sim.subject import Subject
from kv_sim.violation import DidNotReturn, Referee, TookTooLong
from kv_sim.zoo import command as zoo

LONG = 10_000.0
"""Seconds, in which no test ends: whoever looks is made to."""


@pytest.fixture(autouse=True)
def looks_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", LONG)


class Looked:
    """While it is called, somebody looks as often as is said."""

    looks = 0

    def take_events(self) -> tuple[()]:
        self.looks_at(self.looks)
        return ()

    @staticmethod
    def looks_at(times: int) -> None:
        for _ in range(times):
            signal.raise_signal(signal.SIGALRM)


def guarded() -> tuple[Looked, Any]:
    connector = Looked()
    return connector, Guard(connector, "worker", Referee(), lambda *call: None)  # type: ignore[arg-type]


def test_who_is_twice_found_in_the_same_call_is_ended() -> None:
    connector, guard = guarded()
    connector.looks = 2
    says = (
        r"^NO-CRASH  worker side, take_events: DidNotReturn: it hasn't returned for 10000 s \(--call-timeout\) \("
    )
    with ends_calls(LONG), pytest.raises(TookTooLong, match=says):
        guard.take_events()


def test_who_is_found_in_one_call_after_the_other_is_not() -> None:
    connector, guard = guarded()
    connector.looks = 1
    with ends_calls(LONG):
        for _ in range(3):
            assert guard.take_events() == []
        signal.raise_signal(signal.SIGALRM)
        signal.raise_signal(signal.SIGALRM)  # nobody is called, however long that takes
        assert guard.take_events() == []
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@pytest.mark.parametrize(
    ("looks", "is_told"), [(1, False), (2, True), (3, True)], ids=["once", "again", "and again"]
)
def test_before_it_is_ended_it_is_told_once(looks: int, is_told: bool, capsys: pytest.CaptureFixture[str]) -> None:
    connector, guard = guarded()
    connector.looks = looks
    with ends_calls(3 * LONG):
        for _ in range(2):
            assert guard.take_events() == []
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2 * is_told
    for line in told:
        head, _, tail = line.partition(":")[2].partition("test_watchdog.py:")
        assert head == " a call hasn't returned for 10000 s ("
        assert tail.partition(" ")[2] == "in Looked.looks_at); after 30000 s it is ended (--call-timeout)"


def test_where_it_is_told_it_ends_after_as_long_as_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    connector, guard = guarded()
    connector.looks = 4
    with ends_calls(2.5 * LONG):
        assert signal.getitimer(signal.ITIMER_REAL)[1] == pytest.approx(2.5 * LONG / 3)
        with pytest.raises(TookTooLong, match="it hasn't returned for 25000 s"):
            guard.take_events()
    assert capsys.readouterr().err.startswith("note: a call hasn't returned for 8333.3 s (")


class SaysWhereItIsCopied:
    def __deepcopy__(self, memo: object) -> str:
        return runs_at(sys._getframe(1))


def test_who_waits_in_a_library_is_told_with_who_called_it() -> None:
    place = deepcopy(SaysWhereItIsCopied())
    assert re.fullmatch(r"copy\.py:\d+ in deepcopy, called at test_watchdog\.py:\d+ in test_who_waits_\w+", place)


def test_who_tells_of_a_call_that_was_ended_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """That may take as long as the call, where the cores are busy."""
    told = guards._told

    def slowly(error: BaseException) -> str:
        Looked.looks_at(3)
        return told(error)

    monkeypatch.setattr(guards, "_told", slowly)
    connector, guard = guarded()
    connector.looks = 2
    with ends_calls(LONG), pytest.raises(TookTooLong, match="take_events: DidNotReturn: "):
        guard.take_events()


class LookedAtInTheMaking(MemoryConnector):
    """The same of a constructor."""

    looks = 1

    def __init__(self, *args: Any) -> None:
        Looked.looks_at(self.looks)
        super().__init__(*args)


def test_a_constructor_is_a_call_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    world = WorldConfig()
    config = vllm_config(world, Subject("LookedAtInTheMaking", __name__), 0)
    arguments = (config, KVConnectorRole.SCHEDULER, kv_cache_config(world), Referee())
    with ends_calls(LONG):
        for _ in range(3):
            assert isinstance(create(*arguments), LookedAtInTheMaking)
        monkeypatch.setattr(LookedAtInTheMaking, "looks", 2)
        with pytest.raises(NotCreated, match=r"^NO-CRASH  scheduler side: DidNotReturn: it hasn't returned for "):
            create(*arguments)


def test_who_is_ended_forgives_nobody() -> None:
    assert not issubclass(DidNotReturn, Exception)


def test_a_timer_of_somebody_else_s_is_left_alone() -> None:
    def theirs(number: int, frame: Any) -> None:
        raise AssertionError

    signal.signal(signal.SIGALRM, theirs)
    try:
        with ends_calls(LONG):
            assert signal.getsignal(signal.SIGALRM) is theirs
            assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def test_nothing_is_ended_if_that_is_said() -> None:
    with ends_calls(0):
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_in_a_thread_beside_the_main_one_nothing_is_ended() -> None:
    found = Queue[Any]()

    def run() -> None:
        with ends_calls(LONG):
            found.put((signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found.get_nowait() == (signal.SIG_DFL, (0, 0))


class EndlessWorker(LaterWorker):
    def start_load_kv(self, *args: Any, **more: Any) -> None:
        while True:
            pass


class Endless(TwoSidedConnector):
    scheduler_class, worker_class = LaterScheduler, EndlessWorker


class ExitingWorker(LaterWorker):
    def start_load_kv(self, *args: Any, **more: Any) -> None:
        sys.exit(0)


class Exiting(TwoSidedConnector):
    scheduler_class, worker_class = LaterScheduler, ExitingWorker


class ProcessExitingWorker(LaterWorker):
    def start_load_kv(self, *args: Any, **more: Any) -> None:
        os._exit(7)


class ProcessExiting(TwoSidedConnector):
    scheduler_class, worker_class = LaterScheduler, ProcessExitingWorker


@pytest.mark.parametrize("command", [["conform"], ["fuzz", "--connector"]], ids=" ".join)
def test_an_endless_loop_is_told_and_not_shrunk(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, f"{__name__}:Endless", "--call-timeout", "0.05", "--save", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert (
        "start_load_kv: DidNotReturn: it hasn't returned for 0.05 s (--call-timeout) (test_watchdog.py:"
        in printed.out
    )
    assert "note: the history is not shrunk: each attempt would take as long\n" in printed.err
    assert "\nsaved: kv-sim replay-schedule " in printed.out
    assert "shrunk" not in printed.out


@pytest.mark.parametrize("command", [["conform"], ["fuzz", "--connector"]], ids=" ".join)
def test_whoever_calls_sys_exit_ends_no_command(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, f"{__name__}:Exiting", "--save", str(tmp_path)]) == 1
    assert "start_load_kv: SystemExit: 0 (test_watchdog.py:" in capsys.readouterr().out


def test_whoever_calls_os_exit_ends_no_command_either(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end = os._exit
    assert main(["fuzz", "--connector", f"{__name__}:ProcessExiting", "--save", str(tmp_path)]) == 1
    assert "start_load_kv: SystemExit: os._exit(7) (test_watchdog.py:" in capsys.readouterr().out
    assert os._exit is end


def test_sys_exit_where_nobody_guards_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "COMMANDS", {**cli.COMMANDS, "subjects": lambda options: sys.exit(0)})
    assert main(["subjects"]) == 3
    assert capsys.readouterr().err == "kv-sim subjects: a connector or a library called sys.exit(0)\n"


@pytest.mark.parametrize("seconds", ["-1", "inf", "nan"])
def test_how_long_a_call_may_take_is_a_number(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "--call-timeout", seconds]) == 2
    assert capsys.readouterr().err == f"kv-sim fuzz: --call-timeout: at least 0 seconds, got {seconds}\n"


POOL = """
import multiprocessing, os, time
from kv_sim.console.workers import end_with_parent
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2, end_with_parent) as pool:
        pool.map(abs, range(8))
        print("ready", flush=True)
        pool.map(time.sleep, [10_000] * 2)
"""


def test_processes_end_with_who_began_them_also_if_it_is_killed(tmp_path: Path) -> None:
    """Whoever lives has its end of the pipe that is read here."""
    script = tmp_path / "pool.py"
    script.write_text(POOL)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.kill()
        assert process.communicate(timeout=120)[0] == ""


class Stop:
    def is_set(self) -> bool:
        return True


def test_every_process_of_a_command_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    for module in (processes, crew, zoo):
        monkeypatch.setattr(module, "end_with_parent", lambda name=module.__name__: begun.append(name))
    monkeypatch.setattr(processes, "work", lambda *args: None)
    crew._map([])
    zoo._begin()
    processes._process(None, 0, Queue(), Stop())  # type: ignore[arg-type]
    assert begun == ["kv_sim.replay.crew", "kv_sim.zoo.command", "kv_sim.campaign.processes"]


def test_who_was_begun_by_nobody_waits_for_nobody() -> None:
    before = threading.active_count()
    end_with_parent()
    assert threading.active_count() == before


SIZE = ["size", "mooncake-synthetic", "--requests", "50", "--model", "llama-3.1-8b", "--points", "2"]


def test_what_an_encoding_doesn_t_have_is_printed_as_its_number() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kv_sim", *SIZE, "--jobs", "1"],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert b"32 layers \\xd7 2 (K and V)" in done.stdout and done.stderr == b""
