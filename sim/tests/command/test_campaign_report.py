"""What a campaign adds up, what it says of that, and with which exit code it ends. No history is run here."""

from collections import Counter
from collections.abc import Callable
from itertools import chain, count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kv_sim.command import campaign as campaign_module
from kv_sim.command.campaign import Batch, Campaign, Plan, missing, run_campaign, tables, work
from kv_sim.command.cli import main
from kv_sim.command.table import aligned
from kv_sim.config import BUILTIN_ENGINE, WorldConfig
from kv_sim.examples.catalogue import LATER, MEMORY, SUBJECTS
from kv_sim.failures.report import USUAL_ACTIONS
from kv_sim.fuzz import Failure, Run
from kv_sim.history.coverage import Coverage
from kv_sim.history.legal import STATES, Expected
from kv_sim.subject import Subject
from kv_sim.violation import Invariant, Violation

EXPECTED = Expected(
    pairs=(("step", "waiting"), ("step", "running"), ("abort", "running"), ("abort", "waiting")),
    rare=(("reset", "running"),),
    situations=("a", "b", "match: a load ends within a block", "c"),
    excluded={
        ("abort", "aborted"): "it has ended",
        ("turn", "running"): "none of these has turns",
        ("turn", "waiting"): "none of these has turns",
        ("turn", "aborted"): "none of these has turns",
    },
    excluded_situations={
        "d": "none of these loses copies",
        "e": "none of these has turns",
        "f": "it has ended",
        "g": "it has ended",
    },
)


def reached(pairs: dict[tuple[str, str], int], situations: dict[str, int]) -> Campaign:
    campaign = Campaign()
    campaign.coverage.pairs.update(pairs)
    campaign.coverage.situations.update(situations)
    return campaign


def test_all_that_was_missed_is_named_in_the_order_of_what_was_expected() -> None:
    assert missing(Campaign(), EXPECTED) == [
        "never reached: step while a request is 'waiting' or 'running'",
        "never reached: abort while a request is 'running' or 'waiting'",
        "never reached: a",
        "never reached: b",
        "never reached: c",
    ]


def test_all_that_can_not_be_is_named_by_the_alphabet() -> None:
    pairs = dict.fromkeys(EXPECTED.pairs, 1)
    odd = {("turn", "odd"): 2, ("reset", "running"): 1, ("abort", "aborted"): 3, ("add", "stopped"): 4}
    found = reached({**pairs, **odd}, {**dict.fromkeys(EXPECTED.situations, 1), "y": 5, "x": 6})
    assert missing(found, EXPECTED) == [
        "reached 3 times, but it can't be: abort while a request is 'aborted' (it has ended)",
        "reached 4 times, but it can't be: add while a request is 'stopped' "
        "(a request that stops is held for a store, or gone at once)",
        "reached 2 times, but it can't be: turn while a request is 'odd' (no such state)",
        "reached 6 times, but not in the table: x",
        "reached 5 times, but not in the table: y",
    ]


def test_the_tables_are_these() -> None:
    lines = tables(reached({("step", "waiting"): 7, ("turn", "running"): 1}, {"a": 3, "d": 4}), EXPECTED)
    table, rest = lines[: lines.index("")], lines[lines.index("") + 1 :]
    assert table[0].split() == ["action", "\\", "a", "request", "is", *" ".join(STATES).split()]
    columns = {state: number for number, state in enumerate(STATES, 1)}
    rows = {line.split()[0]: line.split() for line in table[1:]}
    assert list(rows) == ["step", "abort", "turn"]
    assert [rows["step"][columns[state]] for state in ("waiting", "running")] == ["7", "0"]
    assert rows["abort"][columns["aborted"]] == "-"
    assert [rows["turn"][columns[state]] for state in ("waiting", "running", "aborted")] == ["-", "1", "-"]
    situations, reasons = rest[: rest.index("")], rest[rest.index("") + 1 :]
    assert [line.rsplit(maxsplit=1) for line in situations] == [
        ["situation", "times"],
        *(["a", "3"], ["b", "0"], ["match: a load ends within a block", "0"], ["c", "0"]),
        *(["d", "-"], ["e", "-"], ["f", "-"], ["g", "-"]),
    ]
    assert reasons == [
        "not expected (-):",
        "  it has ended: abort × aborted, f, g",
        "  none of these has turns: turn × running, turn × waiting, turn × aborted and 1 more",
        "  none of these loses copies: d",
    ]


def failure(seed: int | None, subject: Subject = MEMORY) -> Failure:
    return Failure(subject, WorldConfig(), [], Violation(Invariant.WORK, "x"), seed)


def test_words_stand_to_the_left_and_numbers_to_the_right() -> None:
    rows = [["name", "of", "count"], ["a", "b", "7"], ["somebody", "nobody", ""]]
    assert aligned(rows) == ["name          of  count", "a              b      7", "somebody  nobody"]
    assert aligned(rows, left=2) == ["name      of      count", "a         b           7", "somebody  nobody"]


def test_batches_are_added_up() -> None:
    campaign, coverage = Campaign(), Coverage()
    coverage.situations["a"] = 2
    for steps, seed in ((3, 5), (4, None)):
        campaign.take(Batch(coverage, Counter(memory=2), steps, {"memory": failure(seed)}))
    assert (campaign.steps, campaign.histories, campaign.coverage.situations) == (7, {"memory": 4}, {"a": 4})
    assert campaign.failures["memory"].seed is None, "which is the first of all"
    campaign.take(Batch(failures={"memory": failure(0)}))
    assert campaign.failures["memory"].seed is None
    assert (campaign.was_interrupted, campaign.seconds) == (False, 0)


def test_the_lowest_seed_is_kept_whichever_comes_first() -> None:
    campaign, kept = Campaign(), []
    for seed in (5, 3, 4, 1, 0, 1):
        campaign.take(Batch(failures={"memory": failure(seed)}))
        kept.append(campaign.failures["memory"].seed)
    assert kept == [5, 3, 3, 1, 0, 0]


def test_the_first_crash_is_kept() -> None:
    campaign = Campaign()
    for crash in (None, "one", "another", None):
        campaign.take(Batch(crash=crash))
    assert campaign.crash == "one"


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_every_seed_is_run_once(jobs: int) -> None:
    plan = Plan({}, start=7, histories=10, jobs=jobs)
    seeds = [list(plan.seeds(worker)) for worker in range(jobs)]
    assert sorted(chain(*seeds)) == list(range(7, 17))
    assert seeds[0] == list(range(7, 17, jobs))
    assert next(Plan({}).seeds(0)) == 0


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds that were run, each of which takes two steps and reaches one situation."""
    seeds: list[int] = []

    def run_seed(subject: Any, seed: int, **options: Any) -> Run:
        assert options == {"engine": BUILTIN_ENGINE, "actions": USUAL_ACTIONS}
        seeds.append(seed)
        return Run(steps=2, digest="", coverage=reached({}, {"a": 1}).coverage, failure=None)

    monkeypatch.setattr(campaign_module, "run_seed", run_seed)
    return seeds


def test_a_worker_sends_after_every_fifth_seed_and_at_its_end(ran: list[int]) -> None:
    sent: list[Batch] = []
    work(Plan({"memory": MEMORY}, start=3, histories=12), 0, sent.append, lambda: False)
    assert ran == list(range(3, 15))
    assert [(batch.steps, batch.is_last) for batch in sent] == [(10, False), (10, False), (4, True)]
    assert [batch.coverage.situations for batch in sent] == [{"a": 5}, {"a": 5}, {"a": 2}]


def test_who_broke_is_not_run_again_and_a_crash_of_the_testbed_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also in another batch. Of several crashes the first is told."""
    ran: list[tuple[str, int]] = []

    def run_seed(subject: Subject, seed: int, **options: Any) -> Run:
        ran.append((subject.kv_connector, seed))
        if subject is LATER and seed in (1, 2):
            raise KeyError(seed)
        found = failure(seed, subject) if subject is MEMORY and seed == 3 else None
        return Run(steps=2, digest="", coverage=Coverage(), failure=found)

    monkeypatch.setattr(campaign_module, "run_seed", run_seed)
    sent: list[Batch] = []
    work(Plan({"memory": MEMORY, "later": LATER}, histories=7), 0, sent.append, lambda: False)
    assert [seed for name, seed in ran if name == MEMORY.kv_connector] == [0, 1, 2, 3]
    assert [seed for name, seed in ran if name == LATER.kv_connector] == [*range(7)]
    first, last = sent
    assert first.crash is not None
    assert first.crash.startswith("later, seed 1: KeyError: 1\nTraceback (most recent call last):\n")
    assert (first.histories, last.histories) == ({"memory": 4, "later": 3}, {"later": 2})
    assert {name: found.seed for name, found in first.failures.items()} == {"memory": 3}
    assert (last.failures, last.crash) == ({}, None)


def test_a_worker_that_is_told_to_end_or_interrupted_sends_what_it_has(ran: list[int]) -> None:
    sent: list[Batch] = []
    work(Plan({"memory": MEMORY}), 0, sent.append, lambda: len(ran) == 3)
    assert [(batch.steps, batch.is_last) for batch in sent] == [(6, True)]

    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work(Plan({"memory": MEMORY}), 0, sent.append, interrupt)
    assert (sent[-1].steps, sent[-1].is_last, len(sent)) == (0, True, 2)


@pytest.mark.parametrize(("minutes", "many", "at", "seconds"), [(0.1, 5, [6, 8], 9), (0.05, 2, [4], 5)])
def test_a_campaign_knows_how_long_it_has_taken(
    ran: list[int], monkeypatch: pytest.MonkeyPatch, minutes: float, many: int, at: list[int], seconds: int
) -> None:
    """The clock goes on by a second whenever it is read: at the beginning, and then before each history."""
    clock = count(100)
    monkeypatch.setattr(campaign_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    seen: list[float] = []
    plan = Plan({"memory": MEMORY}, minutes=minutes)
    found = run_campaign(plan, lambda campaign: seen.append(campaign.seconds))
    assert (len(ran), seen, found.seconds) == (many, at, seconds)


@pytest.fixture
def campaign(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, Plan]]:
    """Runs the command where a campaign finds just this; its exit code, its output and what was planned."""

    def run(found: Campaign, *options: str, missed: list[str] | None = None) -> tuple[int, str, Plan]:
        plans: list[Plan] = []

        def run_campaign(plan: Plan) -> Campaign:
            plans.append(plan)
            return found

        monkeypatch.setattr(campaign_module, "run_campaign", run_campaign)
        monkeypatch.setattr(campaign_module, "missing", lambda *_: missed or [])
        monkeypatch.setattr(campaign_module, "tables", lambda *_: ["first row", "last row"])
        monkeypatch.setattr("kv_sim.command.cli.tell", lambda found, line, *_, say, **__: say(f"told: {line}"))
        monkeypatch.chdir(tmp_path)
        code = main(["campaign", "--jobs", "2", *options])
        return code, capsys.readouterr().out, plans[0]

    return run


COUNT = len(SUBJECTS)


@pytest.mark.parametrize(
    ("options", "until", "planned"),
    [
        ([], "10 minutes", (None, 10.0)),
        (["--minutes", "1.5"], "1.5 minutes", (None, 1.5)),
        (["--histories", "3"], "3 histories a subject", (3, None)),
    ],
)
def test_a_campaign_that_reached_everything(
    campaign: Any, options: list[str], until: str, planned: tuple[int | None, float | None]
) -> None:
    found = Campaign(histories=Counter(a=2, b=3), steps=40, seconds=7.4)
    code, out, plan = campaign(found, *options, "--seed", "5")
    assert (code, plan.histories, plan.minutes, plan.jobs, plan.start) == (0, *planned, 2, 5)
    assert out.splitlines() == [
        f"{COUNT} subjects, {until}, 2 processes, seeds from 5 (--seed)",
        "5 histories, 40 engine steps in 7 s",
        "",
        "first row",
        "last row",
        "",
        "nothing broke",
        "every legal pair and every situation was reached",
    ]


def test_what_broke_and_what_was_missed_fails_a_campaign(campaign: Any) -> None:
    code, out, _ = campaign(Campaign(failures={"b": failure(4), "a": failure(3)}), missed=["never reached: x"])
    assert code == 1
    assert out.splitlines()[5:] == [
        "",
        "never reached: x",
        "told: kv-sim fuzz --connector a --seed 3 --log",
        "told: kv-sim fuzz --connector b --seed 4 --log",
        "2 subjects broke",
    ]
    code, out, _ = campaign(Campaign(), missed=["never reached: x"])
    assert (code, out.splitlines()[6:]) == (1, ["never reached: x", "nothing broke"])


@pytest.mark.parametrize(
    ("found", "code", "said"),
    [
        (Campaign(crash="memory, seed 0: AssertionError"), 3, "TESTBED memory, seed 0: AssertionError"),
        (Campaign(was_interrupted=True), 130, "interrupted: this is what was reached so far"),
        (
            Campaign(was_interrupted=True, failures={"a": failure(3)}),
            1,
            "interrupted: this is what was reached so far",
        ),
    ],
)
def test_a_campaign_that_did_not_come_to_its_end(campaign: Any, found: Campaign, code: int, said: str) -> None:
    ended, out, _ = campaign(found)
    assert (ended, out.splitlines()[-1]) == (code, said)
