"""Scenarios as tests of pytest, without a pytest around them; and what a scenario hands on of its options."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kv_api import ConfigError
from kv_sim.config import BUILTIN_ENGINE, WorldConfig
from kv_sim.conformance import items, report, scenarios
from kv_sim.conformance.items import KEY, Conformance, ConnectorBroke, ScenarioItem
from kv_sim.conformance.scenarios import Claim, Outcome, Scenario
from kv_sim.examples.catalogue import LATER, MEMORY, OFFLOAD
from kv_sim.fuzz import Failure, Run
from kv_sim.guard import NotCreated
from kv_sim.history.coverage import Coverage
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant, Violation

RANKS = Scenario("ranks", frozenset({Trait.RANKS}), Trait.RANKS)


def plan_of(**options: Any) -> Conformance:
    """Of options without their ``--kv-``, in a folder that is called so."""
    given = {f"--kv-{name}": value for name, value in options.items()}
    config: Any = SimpleNamespace(getoption=lambda name: given.get(name), rootpath=Path("/the root"))
    return Conformance(config)


def test_options_become_a_plan(tmp_path: Path) -> None:
    plan = plan_of(connector="later")
    assert (plan.name, plan.extra, plan.start, plan.histories) == ("later", None, 0, 100)
    assert (plan.folder, plan.subject, plan.engine) == (Path("/the root"), LATER, BUILTIN_ENGINE)
    plan = plan_of(
        connector="later", seed="0x20", histories=1, save=str(tmp_path), extra='{"a": 1}', traits="ranks,failures"
    )
    assert (plan.start, plan.histories, plan.folder, plan.extra) == (32, 1, tmp_path, '{"a": 1}')
    assert (plan.subject.traits, plan.subject.extra_config["a"]) == ({Trait.RANKS, Trait.FAILURES}, 1)
    assert plan_of(connector="later", **{"serves-peers": 1}).subject == replace(
        LATER, serves_peers=True, traits=LATER.traits - {Trait.SLEEP}
    )
    medium = "kv_sim.offload:WorldCPUOffloadingSpec"
    plan = plan_of(spec=medium)
    assert (plan.name, plan.subject.kv_connector) == (medium, "OffloadingConnector")
    assert '"spec_name": "WorldCPUOffloadingSpec"' in str(plan.extra)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": "x"}, "--kv-seed: a seed is a whole number or 0x…, got 'x'"),
        ({"histories": 0}, "--kv-histories: more than 0, got 0"),
        ({"histories": -1}, "--kv-histories: more than 0, got -1"),
        ({"traits": "x,y"}, "--kv-traits: unknown trait 'x'; known: "),
        ({"extra": "["}, "--kv-extra: no JSON: Expecting value at column 2"),
        (
            {"connector": "a.b"},
            "--kv-connector: unknown connector 'a.b'; write your own as module:Class, as in a:b",
        ),
        (
            {"connector": None, "spec": "a.b"},
            "--kv-spec 'a.b': expected module:Class, as in a:b, or an installed medium",
        ),
        ({"save": __file__}, f"--kv-save {__file__}: {__file__} is no folder"),
    ],
)
def test_wrong_options_are_pytest_s_to_tell(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pytest.UsageError) as caught:
        plan_of(**{"connector": "later", **options})
    assert str(caught.value).startswith(message)


class Reporter:
    """A terminal."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.line = self.lines.append

    def section(self, title: str) -> None:
        self.lines.append(f"= {title}")


def test_what_tests_found_is_summed_up() -> None:
    plan, reporter = plan_of(connector="later"), Reporter()
    told: Any = reporter
    plan.pytest_terminal_summary(told)
    assert not reporter.lines, "no test of it ran"
    rows = [("plain", "made", 3, 20, "holds"), ("ranks", "made", 4, 30, "holds")]
    for when in ("setup", "call"):
        for row in rows:
            found = {"row": list(row), "situations": {"a copy fails": 2}}
            one: Any = SimpleNamespace(when=when, user_properties=[("other", 1), (KEY, found)])
            plan.pytest_runtest_logreport(one)
    somebody_else: Any = SimpleNamespace(when="call", user_properties=[])
    plan.pytest_runtest_logreport(somebody_else)
    plan.pytest_terminal_summary(told)
    situations = Counter({"a copy fails": 4})
    assert reporter.lines == [
        "= conformance of later",
        *report.scenario_table(rows),
        "",
        *report.situation_table(LATER, situations, LATER.traits),
        *(f"note: {note}" for note in report.notes(LATER, situations)),
    ]


def failed(seed: int = 7) -> Failure:
    config = WorldConfig(engine="strange")
    return Failure(MEMORY, config, [], Violation(Invariant.WORK, "x"), seed)


@pytest.mark.parametrize("failure", [None, failed()])
def test_a_test_runs_its_scenario_and_keeps_what_it_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failure: Failure | None
) -> None:
    plan = plan_of(connector="later", extra='{"a": 1}', seed="5", histories=3, save=str(tmp_path))
    outcome, asked, told = Outcome(RANKS, 3, 20, failure=failure), [], []
    outcome.coverage.situations["a copy fails"] = 2
    end = os._exit

    def run_scenario(*args: Any, **options: Any) -> Outcome:
        assert os._exit is not end, "a connector that calls it would end pytest without a word"
        asked.append((args, options))
        return outcome

    def tell_failure(*args: Any, say: Any, note: Any) -> None:
        told.append(args)
        say("FAIL")
        note("not saved")

    monkeypatch.setattr(items.scenarios, "run_scenario", run_scenario)
    monkeypatch.setattr(items.report, "tell_failure", tell_failure)
    item: Any = SimpleNamespace(plan=plan, scenario=RANKS, user_properties=[], name="later[ranks]")
    if failure is None:
        ScenarioItem.runtest(item)
    else:
        with pytest.raises(ConnectorBroke) as caught:
            ScenarioItem.runtest(item)
        excinfo: Any = SimpleNamespace(value=caught.value)
        assert ScenarioItem.repr_failure(item, excinfo) == "FAIL\nnote: not saved"
    assert asked == [((plan.subject, RANKS), {"start": 5, "histories": 3, "engine": BUILTIN_ENGINE})]
    assert told == ([] if failure is None else [("later", '{"a": 1}', failure, tmp_path)])
    found = {"row": report.row_of(outcome), "situations": {"a copy fails": 2}}
    assert item.user_properties == [(KEY, found)]
    assert os._exit is end
    assert ScenarioItem.reportinfo(item) == (tmp_path, None, "later[ranks]")


# -- scenarios ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trait", "shows", "plain"),
    [
        (Trait.FINE, WorldConfig(hashes_per_block=2), WorldConfig()),
        (Trait.RANKS, WorldConfig(tp_size=2), WorldConfig()),
    ],
)
def test_a_scenario_runs_in_the_engine_that_was_asked_for_with_seeds_that_show_its_trait(
    monkeypatch: pytest.MonkeyPatch, trait: Trait, shows: WorldConfig, plain: WorldConfig
) -> None:
    drawn, ran = iter([plain, shows, plain, shows, shows]), []
    engines: list[str] = []

    def config_for(subject: Subject, random: Any, engine: str = BUILTIN_ENGINE) -> WorldConfig:
        engines.append(engine)
        return next(drawn)

    def run_seed(subject: Subject, seed: int, **options: Any) -> Run:
        ran.append((subject.traits, seed, options))
        return Run(Coverage(), 5, "", failed(seed) if seed == 14 else None)

    monkeypatch.setattr(scenarios, "config_for", config_for)
    monkeypatch.setattr(scenarios, "run_seed", run_seed)
    scenario = Scenario("one", frozenset({trait}), trait)
    outcome = scenarios.run_scenario(OFFLOAD, scenario, start=10, histories=9, actions=6, engine="strange")
    options = {"actions": 6, "engine": "strange", "without": frozenset()}
    assert ran == [({trait}, seed, options) for seed in (11, 13, 14)]
    assert set(engines) == {"strange"}
    assert (outcome.histories, outcome.steps, outcome.seed) == (3, 15, 14)
    assert outcome.failure is not None


@pytest.mark.parametrize("claim", Claim)
def test_a_probe_for_which_it_lacks_something_is_refused_and_a_claim_is_run(
    monkeypatch: pytest.MonkeyPatch, claim: Claim
) -> None:
    """From seed 0 on."""

    def check_groups(subject: Subject, engine: str) -> None:
        raise ConfigError(f"not in {engine}")

    ran: list[int] = []

    def run_seed(subject: Subject, seed: int, **options: Any) -> Run:
        ran.append(seed)
        return Run(Coverage(), 5, "", None)

    monkeypatch.setattr(scenarios, "check_groups", check_groups)
    monkeypatch.setattr(scenarios, "run_seed", run_seed)
    monkeypatch.setattr(scenarios, "_shows", lambda *_: True)
    scenario = Scenario("states", frozenset({Trait.GROUPS, Trait.STATES}), Trait.STATES, claim)
    outcome = scenarios.run_scenario(OFFLOAD, scenario, histories=2, engine="strange")
    probed = claim is Claim.PROBED
    assert (outcome.refusal, ran) == (("not in strange", []) if probed else (None, [0, 1]))


@pytest.mark.parametrize("claim", Claim)
def test_a_world_that_is_refused_counts_in_a_probe_and_ends_what_is_claimed(
    monkeypatch: pytest.MonkeyPatch, claim: Claim
) -> None:
    bad = replace(failed(), violation=NotCreated(Invariant.NO_CRASH, "no"))
    made: list[Failure | None] = [bad, None, bad, None, failed()]

    def run_seed(subject: Subject, seed: int, **options: Any) -> Run:
        if seed >= len(made):
            raise ConfigError("too few" if seed == 5 else "too many")
        return Run(Coverage(), 5, "", made[seed])

    monkeypatch.setattr(scenarios, "run_seed", run_seed)
    monkeypatch.setattr(scenarios, "_shows", lambda *_: True)
    scenario = Scenario("ranks", frozenset({Trait.RANKS}), Trait.RANKS, claim)
    outcome = scenarios.run_scenario(OFFLOAD, scenario, histories=6, engine=BUILTIN_ENGINE)
    if claim is Claim.MADE:
        assert (outcome.seed, outcome.histories, outcome.failure, outcome.refused) == (0, 1, bad, {})
        with pytest.raises(ConfigError, match="too few"):
            scenarios.run_scenario(OFFLOAD, scenario, start=5, histories=1, engine=BUILTIN_ENGINE)
        return
    assert (outcome.seed, outcome.histories, outcome.failure) == (4, 3, made[4])
    assert outcome.refused == {"can't create it: no": 2}
    assert outcome.refusal is None
    outcome = scenarios.run_scenario(OFFLOAD, scenario, start=5, histories=3, engine=BUILTIN_ENGINE)
    refused = {"too few": 1, "too many": 2}
    assert (outcome.histories, outcome.refused, outcome.refusal) == (0, refused, "ranks: too many")


def test_a_scenario_whose_trait_no_world_shows_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def shows(subject: Subject, trait: Any, seed: int, engine: str) -> bool:
        looked.append(seed)
        return False

    monkeypatch.setattr(scenarios, "_shows", shows)
    outcome = scenarios.run_scenario(OFFLOAD, RANKS, start=3, histories=2, engine=BUILTIN_ENGINE)
    assert looked == list(range(3, 3 + 2 * scenarios.MOST_SEEDS))
    assert report.row_of(outcome) == ("ranks", "made", 0, 0, "no history tries it")


def test_the_line_to_paste_names_engine_and_traits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[Any] = []
    monkeypatch.setattr(report.telling, "tell", lambda *args, **options: told.append(args))
    found, traits = failed(), ",".join(sorted(MEMORY.traits)) or "none"
    report.tell_failure("memory", '{"a": 1}', found, tmp_path, say=print, note=print)
    options = f"""--connector memory --extra '{{"a": 1}}' --traits {traits} --engine strange --seed 7 --log"""
    assert told == [(found, f"kv-sim fuzz {options}", tmp_path, "fail-memory-7")]


def test_a_summary_names_every_refusal_and_every_claim_that_was_not_made() -> None:
    probes = [Scenario(name, frozenset(), None, Claim.PROBED) for name in ("a", "b", "c")]
    refused = [Outcome(probe, refusal=said) for probe, said in zip(probes, ("two", None, "one"), strict=True)]
    lines = report.summary_lines(Subject("X", traits=frozenset()), refused, lambda outcome: "")
    notes = [line for line in lines if line.startswith("note: ")]
    assert notes[:2] == ["note: one", "note: two"]
    assert notes[-1] == (
        "note: not claimed, so not tried: "
        "groups, states, unequal, fine, ranks, failures, losses, repeats, zeroing, reset, sleep, keeps, events, "
        "counts, clients, images"
    )


def test_a_summary_says_of_each_probe_how_many_worlds_were_refused_as_in_most_of_them() -> None:
    a, b, c, d = (Scenario(name, frozenset(), None, Claim.PROBED) for name in "abcd")
    outcomes = [
        Outcome(a, 3, refused=Counter({"once": 1, "twice": 2})),
        Outcome(b, 3),
        Outcome(c, refused=Counter({"never": 5}), refusal="c: never"),
        Outcome(d, 1, refused=Counter({"often": 4})),
    ]
    lines = report.summary_lines(Subject("X", traits=frozenset()), outcomes, lambda outcome: "")
    notes = [line for line in lines if line.startswith("note: ")]
    assert notes[:3] == [
        "note: c: never",
        "note: a: of 6 worlds, 3 were refused, for example: twice",
        "note: d: of 5 worlds, 4 were refused, for example: often",
    ]
    assert not any("were refused" in note for note in notes[3:])
