"""What ``kv-sim campaign`` plans and prints, and with which exit code it ends."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kv_sim_campaigns import failure

from kv_sim.campaign import command
from kv_sim.campaign.found import Campaign
from kv_sim.campaign.processes import Plan
from kv_sim.cli.main import main
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.history.expected import Expected, expected


def judging(found: Campaign, lines: list[str]) -> Callable[..., list[str]]:
    """What says these lines of a campaign, if it is held against what all subjects together must reach."""

    def judge(campaign: Campaign, wanted: Expected) -> list[str]:
        assert campaign is found
        assert wanted == expected(SUBJECTS.values())
        return lines

    return judge


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

        monkeypatch.setattr(command, "run_campaign", run_campaign)
        monkeypatch.setattr(command, "missing", judging(found, missed or []))
        monkeypatch.setattr(command, "tables", judging(found, ["first row", "last row"]))
        monkeypatch.setattr("kv_sim.console.failed.tell", lambda found, line, *_, say, **__: say(f"told: {line}"))
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
