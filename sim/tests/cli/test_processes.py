"""Histories in several processes: in the order of the seeds, as in one, whatever happens to a process."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import kv_sim_runs as runs
import pytest
from kv_sim_command_lines import HASTY, Result

from kv_api import ConfigError
from kv_sim.campaign.processes import Plan, run_campaign
from kv_sim.cli.processes import ProcessEndedError, run_in_order
from kv_sim.console.workers import end_group
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.subject import Subject


@pytest.fixture(autouse=True)
def _no_process_is_left() -> object:
    yield
    assert not multiprocessing.active_children()


def test_results_come_in_the_order_of_the_seeds() -> None:
    assert list(run_in_order(range(-3, 20), 3, runs.square)) == [seed * seed for seed in range(-3, 20)]
    assert list(run_in_order(range(5), 2, partial(runs.run_of, SUBJECTS["later"]))) == [
        f"LaterConnector {seed}" for seed in range(5)
    ]


def test_each_process_runs_every_so_manieth_and_there_are_no_more_than_seeds() -> None:
    found = list(run_in_order(range(10, 17), 2, runs.where))
    first, second = ({process for seed, process in found if seed % 2 == odd} for odd in (0, 1))
    assert len(first) == len(second) == 1
    assert len({*first, *second, os.getpid()}) == 3
    assert len({process for _, process in run_in_order(range(2), 9, runs.where)}) == 2


def test_a_process_ends_with_this_one_whatever_happens_and_says_nothing_else() -> None:
    [found] = run_in_order(range(1), 1, runs.surroundings)
    assert found == runs.Surroundings(
        ends_with_parent=True,
        may_begin_some=True,
        leads_a_group=True,
        hears_interrupts=False,
        logs=False,
        tells_of_crashes=True,
    )


def test_results_of_any_size() -> None:
    assert [len(result) for result in run_in_order(range(6), 2, runs.long)] == [300_000] * 6


def test_what_is_raised_for_a_seed_is_raised_when_it_is_its_turn() -> None:
    results = run_in_order(range(10, 16), 3, runs.refuses)
    assert [next(results), next(results)] == [10, 11]
    with pytest.raises(ConfigError) as caught:
        next(results)
    assert str(caught.value) == "no twelve"
    [told] = caught.value.__notes__
    assert told.startswith("Traceback") and "kv_sim_runs.py" in told


@pytest.mark.parametrize(
    ("run", "said"), [(runs.speaks, "SpeakingError: seed: 4"), (runs.keeps_a_frame, "ValueError: with something")]
)
def test_an_error_that_can_not_be_sent_is_told(run: Callable[[int], int], said: str) -> None:
    with pytest.raises(Exception, match=said) as caught:
        next(run_in_order(range(4, 6), 2, run))
    assert "kv_sim_runs.py" in str(caught.value)


def test_a_process_that_ends_without_a_result_is_told_of_with_its_seed() -> None:
    results = run_in_order(range(10, 20), 2, runs.ends)
    assert [next(results) for _ in range(3)] == [10, 11, 12]
    with pytest.raises(ProcessEndedError) as caught:
        next(results)
    assert str(caught.value) == "the process ended in the middle of the history, with exit code 7"


def test_who_has_seen_enough_ends_the_processes() -> None:
    results = run_in_order(range(1000), 2, runs.long)
    next(results)
    assert len(multiprocessing.active_children()) == 2
    results.close()


def test_the_same_is_found_as_in_one_process(kv_sim: Callable[[str], Result], tmp_path: Path) -> None:
    command = "kv-sim fuzz --connector later --seeds 3-7"
    assert kv_sim(f"{command} --jobs 2") == kv_sim(command)
    assert kv_sim(f"{command} --digest --jobs 2") == kv_sim(f"{command} --digest")
    told = []
    for folder in ("one", "two"):
        jobs = "--jobs 2 " if folder == "two" else ""
        code, out, err = kv_sim(
            f"kv-sim fuzz --connector {HASTY} --traits ranks,failures --seeds 0-20 {jobs}--save {folder}"
        )
        [file] = (tmp_path / folder).iterdir()
        told.append((code, out.replace(f"{folder}/", ""), err, file.name, file.read_text()))
    assert told[0] == told[1]
    assert told[0][0] == 1


def test_one_history_runs_in_this_process_and_so_do_all_of_one_job(
    kv_sim: Callable[[str], Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "kv-sim fuzz --connector later --seed 3 --log"
    assert kv_sim(f"{command} --jobs 2") == kv_sim(command)
    monkeypatch.setattr("kv_sim.cli.fuzz.run_in_order", None)
    assert kv_sim("kv-sim fuzz --connector later --seeds 3-4 --jobs 1")[0] == 0


def test_a_connector_that_ends_its_process(kv_sim: Callable[[str], Result]) -> None:
    code, out, _ = kv_sim("kv-sim fuzz --connector broken_connectors:Leaving --traits ranks --seeds 4-9 --jobs 2")
    assert code == 1
    failed, replay = out.splitlines()
    assert failed == "FAIL seed=4  NO-CRASH  the process ended in the middle of the history, with exit code 5"
    assert replay == "replay: kv-sim fuzz --connector broken_connectors:Leaving --traits ranks --seed 4 --log"


def test_a_connector_may_begin_processes_in_each(kv_sim: Callable[[str], Result]) -> None:
    command = "kv-sim fuzz --connector broken_connectors:Begetting --traits none --seeds 0-1"
    assert kv_sim(f"{command} --jobs 2") == kv_sim(command)
    subject = Subject("Begetting", "broken_connectors", traits=frozenset())
    found = run_campaign(Plan({"begetting": subject}, histories=2, jobs=2))
    assert (found.histories, found.failures, found.crash) == ({"begetting": 2}, {}, None)


BEGETTING = """
import sys
from multiprocessing import get_context
from time import sleep
from kv_sim.campaign.processes import Plan, run_campaign
from kv_sim.cli.processes import run_in_order

def run(seed):
    get_context("spawn").Process(target=sleep, args=(1000,)).start()

if __name__ == "__main__":
    results = run_in_order(range(2), 2, run)
    print(next(results), next(results), flush=True)
    sys.stdin.readline()
    results.close()
"""


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_a_connector_began_ends_with_the_command(is_killed: bool, tmp_path: Path) -> None:
    """Whoever lives has its end of the pipe that is read here."""
    script = tmp_path / "begetting.py"
    script.write_text(BEGETTING)
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "None None\n"
        if is_killed:
            process.kill()
        assert process.communicate("\n", timeout=120)[0] == ""


def test_a_process_that_leads_no_group_ends_alone() -> None:
    """One that has begun just now, for example."""
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(1000,))
    process.start()
    end_group(process)
    process.join(60)
    assert process.exitcode == -signal.SIGTERM


def test_a_call_that_does_not_return_is_ended_in_a_process_too(kv_sim: Callable[[str], Result]) -> None:
    code, out, _ = kv_sim(
        "kv-sim fuzz --connector broken_connectors:Endless --traits none --seeds 0-1 --jobs 2 --call-timeout 0.2"
    )
    assert code == 1
    assert re.search(r"\nFAIL seed=0 .*NO-CRASH .*it hasn't returned for 0.2 s", out), out


@pytest.mark.parametrize("jobs", ["0", "-2"])
def test_there_is_at_least_one(jobs: str, kv_sim: Callable[[str], Result]) -> None:
    code, _, err = kv_sim(f"kv-sim fuzz --connector later --jobs {jobs}")
    assert (code, err) == (2, f"kv-sim fuzz: --jobs: more than 0, got {jobs}\n")
