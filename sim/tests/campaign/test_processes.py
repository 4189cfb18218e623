"""How a campaign goes on in several processes and how it ends: by the clock, by Ctrl-C, or by a death among them.

No process is begun here, and no time goes by.
"""

import queue
import signal
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kv_sim.campaign import processes
from kv_sim.campaign.found import Batch, Campaign
from kv_sim.campaign.processes import PATIENCE_SECONDS, Plan, run_campaign
from kv_sim.examples.catalogue import MEMORY
from kv_sim.fuzz import Run
from kv_sim.history.coverage import Coverage

BEGIN = 100.0
PLAN = Plan({"memory": MEMORY}, minutes=0.1, jobs=2)
"""For six seconds."""
LAST = Batch(steps=3, is_last=True)


class Process:
    """Runs when it is started, if it runs at all."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], daemon: bool, does: bool) -> None:
        self.run = (lambda: target(*args)) if does else lambda: None
        self.daemon = daemon
        self.exitcode: int | None = None
        self.did: list[Any] = []

    def start(self) -> None:
        self.did.append(signal.getsignal(signal.SIGINT))
        self.run()

    def join(self, patience: float | None = None) -> None:
        self.did.append("join" if patience is None else f"join for {patience:g} s")


class Machine:
    """A clock, processes, and the queue and the event between them.

    What the campaign finds when it looks into the queue is a script: a batch, or nothing while so many seconds go
    by or while something happens.
    """

    def __init__(self, *script: Any, does: bool = False) -> None:
        self.script = [*script]
        self.does = does
        self.now = BEGIN
        self.told: list[float] = []
        """When the processes were told to end."""
        self.processes: list[Process] = []
        self.context = SimpleNamespace(Queue=lambda: self, Event=lambda: self, Process=self.process)

    def process(self, **how: Any) -> Process:
        self.processes.append(Process(**how, does=self.does))
        return self.processes[-1]

    def get(self, timeout: float) -> Batch:
        assert timeout > 0, "or it would look at the clock all the time"
        found = self.script.pop(0)
        if isinstance(found, Batch):
            return found
        if callable(found):
            found()
        else:
            self.now += found
        raise queue.Empty

    def put(self, batch: Batch) -> None:
        self.script.append(batch)

    def empty(self) -> bool:
        return not isinstance(self.script[0] if self.script else None, Batch)

    def set(self) -> None:
        self.told.append(self.now)

    def is_set(self) -> bool:
        return bool(self.told)

    def dies(self, *codes: int | None) -> None:
        for process, code in zip(self.processes, codes, strict=True):
            process.exitcode = code


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Machine], Machine]]:
    """Lets campaigns run on a machine, and afterwards Ctrl-C must do what it did before."""
    before = signal.getsignal(signal.SIGINT)

    def use(machine: Machine) -> Machine:
        contexts = {"spawn": machine.context}
        monkeypatch.setattr(processes, "multiprocessing", SimpleNamespace(get_context=contexts.__getitem__))
        monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: machine.now))
        monkeypatch.setattr(processes, "end_group", lambda process: process.did.append("end"))
        return machine

    yield use
    assert signal.getsignal(signal.SIGINT) is before


def test_each_process_runs_its_share_and_is_waited_for(on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are daemons that log nothing and leave Ctrl-C to the one that began them."""
    ran: list[int] = []
    quiet: list[int] = []

    def run_seed(subject: Any, seed: int, **options: Any) -> Run:
        ran.append(seed)
        return Run(steps=2, digest="", coverage=Coverage(), failure=None)

    monkeypatch.setattr(processes, "run_seed", run_seed)
    monkeypatch.setattr(processes, "let_connectors_log_nothing", lambda: quiet.append(len(ran)))
    machine = on(Machine(does=True))
    found = run_campaign(Plan({"memory": MEMORY}, start=10, histories=7, jobs=3))
    assert ran == [10, 13, 16, 11, 14, 12, 15]
    assert quiet == [0, 3, 5]
    assert (found.histories, found.steps, found.was_interrupted) == ({"memory": 7}, 14, False)
    assert [process.did for process in machine.processes] == [[signal.SIG_IGN, "join for 20 s", "end", "join"]] * 3
    assert all(process.daemon for process in machine.processes)
    assert (machine.told, machine.script) == ([], [])


def test_when_the_time_is_over_all_are_told_to_end_once(on: Any) -> None:
    machine = on(Machine(3, 3, PATIENCE_SECONDS, LAST, LAST))
    seconds: list[float] = []
    found = run_campaign(PLAN, lambda campaign: seconds.append(campaign.seconds))
    assert machine.told == [BEGIN + 6]
    assert (found.steps, found.was_interrupted, machine.script) == (6, False, [])
    assert seconds == [3, 6, 26, 26, 26]
    assert found.seconds == 26


@pytest.mark.parametrize("ended", [0, 1])
def test_who_does_not_end_when_it_is_told_to_is_given_up(on: Any, ended: int) -> None:
    machine = on(Machine(6, *[LAST] * ended, PATIENCE_SECONDS, 0.5, LAST))
    with pytest.raises(RuntimeError) as raised:
        run_campaign(PLAN)
    assert str(raised.value) == f"{2 - ended} of 2 worker processes didn't end within 20 s"
    assert (machine.now, machine.script) == (BEGIN + 26.5, [LAST])
    assert [process.did for process in machine.processes] == [[signal.SIG_IGN, "end", "join"]] * 2


def test_who_is_not_told_to_end_may_take_its_time(on: Any) -> None:
    on(Machine(1e6, LAST, 1e6, LAST))
    found = run_campaign(Plan({"memory": MEMORY}, histories=1, jobs=2))
    assert (found.steps, found.seconds) == (6, 2e6)


def test_what_a_process_sent_before_it_ended_is_taken_and_that_it_sent_no_last_batch_is_told(on: Any) -> None:
    machine = on(Machine())
    machine.script = [
        lambda: machine.dies(None, -9),  # the other one may go on
        1,
        lambda: machine.dies(0, -9),  # its batch is still on its way
        LAST,
        1,
    ]
    taken: list[int] = []
    with pytest.raises(RuntimeError) as raised:
        run_campaign(PLAN, lambda campaign: taken.append(campaign.steps))
    assert str(raised.value) == "1 of 2 worker processes ended before they reported: exit codes [0, -9]"
    assert (taken, machine.script) == ([0, 0, 0, 3], [])


def test_ctrl_c_ends_them_and_all_that_they_have_is_taken(on: Any) -> None:
    """Pressed as often as one likes."""

    def press() -> None:
        signal.raise_signal(signal.SIGINT)

    machine = on(Machine(1, press, 2, press, Batch(steps=4), LAST, LAST))
    found = run_campaign(Plan({"memory": MEMORY}, jobs=2))
    assert (machine.told, machine.script) == ([BEGIN + 1], [])
    assert (found.was_interrupted, found.steps, found.seconds) == (True, 10, 3)
    assert [process.did[1:] for process in machine.processes] == [["join for 20 s", "end", "join"]] * 2


def test_ctrl_c_where_all_runs_in_one_process(on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = on(Machine())

    def run_seed(subject: Any, seed: int, **options: Any) -> Run:
        machine.now += 1
        if seed == 2:
            raise KeyboardInterrupt
        return Run(steps=2, digest="", coverage=Coverage(), failure=None)

    monkeypatch.setattr(processes, "run_seed", run_seed)
    seen: list[Campaign] = []
    found = run_campaign(Plan({"memory": MEMORY}), seen.append)
    assert (found.was_interrupted, found.histories, found.steps, found.seconds) == (True, {"memory": 2}, 4, 3)
    assert seen == [found]
