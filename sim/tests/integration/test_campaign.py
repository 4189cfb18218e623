"""Campaigns: who runs what, what counts as reached, and that nothing is missed in silence."""

import inspect
import os
import queue
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kv_sim import actions, site, world_state
from kv_sim.campaign.found import Batch, Campaign, missing, tables
from kv_sim.campaign.processes import Plan, _next_batch, run_campaign, work
from kv_sim.cli.main import main
from kv_sim.examples.catalogue import LATER, MEMORY, SUBJECTS
from kv_sim.fuzz import run_seed
from kv_sim.history import coverage, effects
from kv_sim.history.expected import (
    EXCLUSIONS,
    NEVER_BETWEEN_ACTIONS,
    RARE,
    RARE_SITUATIONS,
    SITUATION_NEEDS,
    SITUATIONS,
    STATE_NEEDS,
    STATES,
    expected,
)
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant

TWO = {"memory": MEMORY, "later": LATER}
HASTY = Subject("Hasty", "broken_connectors", traits=frozenset())


def test_what_is_counted_does_not_depend_on_the_processes() -> None:
    alone = run_campaign(Plan(TWO, histories=3, jobs=1))
    together = run_campaign(Plan(TWO, histories=3, jobs=2))
    assert alone.histories == together.histories == {"memory": 3, "later": 3}
    assert alone.coverage.pairs == together.coverage.pairs
    assert alone.coverage.situations == together.coverage.situations
    assert alone.steps == together.steps
    by_hand = coverage.Coverage()
    for subject in TWO.values():
        for seed in range(3):
            by_hand.add(run_seed(subject, seed).coverage)
    assert alone.coverage.pairs == by_hand.pairs


def test_a_failure_comes_back_whole_from_a_process() -> None:
    hasty = {"hasty": HASTY}
    here = run_campaign(Plan(hasty, histories=12, jobs=1)).failures["hasty"]
    elsewhere = run_campaign(Plan(hasty, histories=12, jobs=2)).failures["hasty"]
    again = run_seed(HASTY, elsewhere.seed or 0).failure
    for found in (here, elsewhere):
        assert found.violation.invariant is Invariant.PROTOCOL
        assert str(found.violation) == f"PROTOCOL  {found.violation.message}"
    assert again is not None
    assert (elsewhere.history, str(elsewhere.violation)) == (again.history, str(again.violation))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_campaign_ends_by_the_clock(jobs: int) -> None:
    """It ends, in order and uninterrupted; how much it did meanwhile is the machine's business."""
    found = run_campaign(Plan(TWO, minutes=1 / 60, jobs=jobs))
    assert found.seconds >= 1
    assert not found.was_interrupted
    assert not found.failures


def test_workers_that_were_told_to_end_have_some_time_for_it() -> None:
    nothing, now = queue.Queue[Batch](), time.monotonic()
    computing, ended = SimpleNamespace(exitcode=None), SimpleNamespace(exitcode=0)
    for end in (None, now + 3600):
        assert not _next_batch(nothing, [computing, ended], 1, end).is_last
    with pytest.raises(RuntimeError, match="1 of 2 worker processes didn't end within 20 s"):
        _next_batch(nothing, [computing, ended], 1, now)
    with pytest.raises(RuntimeError, match="1 of 2 worker processes ended before they reported"):
        _next_batch(nothing, [SimpleNamespace(exitcode=-9), ended], 1, None)


def test_an_interrupted_campaign_knows_what_it_reached() -> None:
    def interrupt(campaign: Campaign) -> None:
        raise KeyboardInterrupt

    found = run_campaign(Plan(TWO, minutes=1, jobs=1), interrupt)
    assert found.was_interrupted
    assert found.coverage.pairs
    assert found.histories["memory"] == 5


def test_interrupted_processes_tell_what_they_have() -> None:
    calls = 0

    def interrupt(campaign: Campaign) -> None:
        nonlocal calls
        calls += 1
        if campaign.histories["memory"] and calls < 1000:
            calls = 1000
            signal.raise_signal(signal.SIGINT)

    found = run_campaign(Plan(TWO, minutes=1, jobs=2), interrupt)
    assert found.was_interrupted
    assert found.coverage.pairs
    assert found.seconds < 30


def test_the_first_failure_of_a_subject_is_kept() -> None:
    batches: list[Batch] = []
    work(Plan({"hasty": HASTY, "memory": MEMORY}, histories=12), 0, batches.append, lambda: False)
    campaign = Campaign()
    for batch in reversed(batches):
        campaign.take(batch)
    first = next(seed for seed in range(12) if run_seed(HASTY, seed).failure)
    assert campaign.failures["hasty"].seed == first
    assert campaign.histories == {"hasty": first + 1, "memory": 12}
    assert [batch.is_last for batch in batches] == [False] * (len(batches) - 1) + [True]


def interrupted(folder: Path, seconds: int) -> str:
    """What a campaign printed that Ctrl-C ended after so long."""
    script = "import sys; from kv_sim.cli.main import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "campaign", "--minutes", "5", "--jobs", "2"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert "8 subjects, 5 minutes, 2 processes" in process.stdout.readline().replace(str(len(SUBJECTS)), "8", 1)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert errors == ""
    assert process.returncode == 130
    assert "interrupted: this is what was reached so far" in out
    return out


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal to a group of processes")
def test_ctrl_c_ends_all_processes_and_prints_what_was_reached(tmp_path: Path) -> None:
    # A busy machine may take long for the first history.
    assert any(re.search(r"^step +[1-9]", interrupted(tmp_path, 4 * factor), re.MULTILINE) for factor in (1, 4, 8))


def test_the_testbed_s_own_failure_is_no_connector_s(monkeypatch: pytest.MonkeyPatch) -> None:
    def fall_over(self: object) -> bool:
        raise AssertionError("3 + 4 != 8")

    monkeypatch.setattr("kv_sim.engine.builtin.BuiltinEngine.check", fall_over)
    found = run_campaign(Plan(TWO, histories=2))
    assert found.crash is not None
    assert found.crash.startswith("memory, seed 0: AssertionError: 3 + 4 != 8\nTraceback")
    assert not found.failures


# -- what is legal -----------------------------------------------------------------------------


def full(subjects: dict[str, Subject]) -> Campaign:
    """A campaign that reached everything once."""
    wanted = expected(subjects.values())
    campaign = Campaign()
    campaign.coverage.pairs.update(wanted.pairs)
    campaign.coverage.situations.update(wanted.situations)
    return campaign


def test_a_full_campaign_misses_nothing() -> None:
    assert missing(full(SUBJECTS), expected(SUBJECTS.values())) == []


def test_what_was_never_reached_is_named() -> None:
    wanted = expected(SUBJECTS.values())
    for pair in wanted.pairs:
        campaign = full(SUBJECTS)
        del campaign.coverage.pairs[pair]
        assert missing(campaign, wanted) == [f"never reached: {pair[0]} while a request is {pair[1]!r}"]
    for name in wanted.situations:
        campaign = full(SUBJECTS)
        del campaign.coverage.situations[name]
        lines = [] if name in RARE_SITUATIONS else [f"never reached: {name}"]
        assert missing(campaign, wanted) == lines


def test_what_can_not_be_is_named_when_it_is_reached() -> None:
    campaign = full(SUBJECTS)
    campaign.coverage.pairs["abort", "aborted"] = 2
    campaign.coverage.pairs["step", "stopped"] = 1
    campaign.coverage.situations["something new"] = 1
    assert missing(campaign, expected(SUBJECTS.values())) == [
        "reached 2 times, but it can't be: abort while a request is 'aborted' "
        "(a request that has ended can't be aborted any more)",
        "reached 1 times, but it can't be: step while a request is 'stopped' "
        "(a request that stops is held for a store, or gone at once)",
        "reached 1 times, but not in the table: something new",
    ]


def test_what_nobody_claims_is_not_expected() -> None:
    wanted = expected([MEMORY])
    assert not [pair for pair in wanted.pairs if pair[0] in ("fail", "lose") or pair[1] == "failed"]
    assert "a copy fails" not in wanted.situations
    claims_all = expected([Subject("X", traits=frozenset(Trait))])
    assert ("lose", "running") in claims_all.pairs
    assert "a copy is lost" in claims_all.situations


def test_the_table_knows_every_action_and_state() -> None:
    wanted = expected(SUBJECTS.values())
    assert {action for action, _ in (*wanted.pairs, *wanted.excluded)} == {kind.value for kind in actions.Kind}
    for subject in [*SUBJECTS.values()][::3]:
        for action, state in run_seed(subject, 0).coverage.pairs:
            assert state in STATES, state
            assert state not in NEVER_BETWEEN_ACTIONS
            assert (action, state) not in wanted.excluded
    assert all(exclusion.reason for exclusion in EXCLUSIONS)


def test_the_table_knows_every_situation_that_is_counted() -> None:
    source = "".join(map(inspect.getsource, (coverage, effects, site, world_state)))
    calls = re.findall(r"\.situation\((.*)\)\n", source)
    names = {name for call in calls for name in re.findall(r'(?<!f)"([^"]+)"', call)}
    assert source.count("self.situation(NOT_PULLED if has_failed else PULLED)\n") == 1
    names |= {coverage.PULLED, coverage.NOT_PULLED}
    assert source.count("self.situation(STRANGE_WORDS if isinstance(params, dict) else NO_OBJECT)\n") == 1
    names |= {coverage.STRANGE_WORDS, coverage.NO_OBJECT}
    names |= {getattr(coverage, name) for call in calls for name in re.findall(r"^[A-Z]+$", call)}
    patterns = {name for call in calls for name in re.findall(r'f"([^"{]+)\{', call)}
    assert len(names) > 10
    for name in names:
        assert name in SITUATIONS, name
    for name in SITUATIONS:
        assert name in names or any(name.startswith(pattern) for pattern in patterns), name


def test_the_tables_show_counts_and_reasons() -> None:
    campaign = full(SUBJECTS)
    campaign.coverage.pairs["step", "running"] = 4711
    text = "\n".join(tables(campaign, expected(SUBJECTS.values())))
    assert re.search(r"^step +1 +1 +1 +4711 ", text, re.MULTILINE)
    assert re.search(r"^match: ask again +1$", text, re.MULTILINE)
    assert "a request that has ended can't be aborted any more: abort × stopped and held" in text


# -- the command -------------------------------------------------------------------------------


def test_a_short_campaign_fails_for_what_it_never_reached(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kv_sim.campaign.command.SUBJECTS", TWO)
    assert main(["campaign", "--histories", "1", "--jobs", "1", "--seed", "3"]) == 1
    out = capsys.readouterr().out
    assert "1 histories a subject, 1 processes, seeds from 3 (--seed)" in out
    assert "\nnever reached: " in out


def test_a_campaign_that_reached_everything_passes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kv_sim.campaign.command.run_campaign", lambda plan: full(SUBJECTS))
    assert main(["campaign", "--histories", "1"]) == 0
    assert capsys.readouterr().out.endswith("nothing broke\nevery legal pair and every situation was reached\n")


def test_an_interrupted_campaign_prints_its_tables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(plan: Plan) -> Campaign:
        campaign = full(SUBJECTS)
        campaign.was_interrupted = True
        return campaign

    monkeypatch.setattr("kv_sim.campaign.command.run_campaign", interrupted)
    assert main(["campaign", "--minutes", "1"]) == 130
    out = capsys.readouterr().out
    assert out.endswith("interrupted: this is what was reached so far\n")
    assert re.search(r"^step +1 +1 ", out, re.MULTILINE)


def test_the_module_is_whole() -> None:
    assert set(RARE_SITUATIONS) <= set(SITUATIONS)
    assert set(STATE_NEEDS) <= set(STATES)
    assert set(SITUATION_NEEDS) <= set(SITUATIONS)


def test_a_rare_state_may_be_met_and_need_not_be() -> None:
    table = expected(SUBJECTS.values())
    assert {state for _, state in table.rare} == set(RARE)
    assert not {state for _, state in table.pairs} & set(RARE)
    campaign = Campaign()
    before = missing(campaign, table)
    campaign.coverage.pairs[table.rare[0]] += 1
    assert missing(campaign, table) == before
