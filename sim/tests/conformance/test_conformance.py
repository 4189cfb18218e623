"""A connector's claims, tried one by one."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kv_sim.cli.main import COMMANDS, main
from kv_sim.cli.options import parser_of
from kv_sim.config import BUILTIN_ENGINE, WorldConfig
from kv_sim.conformance import command, report
from kv_sim.conformance.scenarios import Claim, Outcome, Scenario, probes_of, run_scenario, scenarios_of
from kv_sim.console import values
from kv_sim.examples.catalogue import OFFLOAD
from kv_sim.fuzz import Failure, Run
from kv_sim.history.coverage import Coverage
from kv_sim.history.expected import SITUATIONS, situations_of
from kv_sim.subject import NOT_OF_PEERS, OF_SEVERAL, OF_TWO, Subject, Trait
from kv_sim.violation import Invariant, Violation

CONNECTORS = Path(__file__).parents[1] / "support" / "broken_connectors.py"

# -- kv-sim conform ----------------------------------------------------------------------------


@pytest.fixture
def conform(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[int, str]]:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["conform", *arguments])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_a_claim_that_does_not_hold_ends_it(conform: Callable[..., tuple[int, str]]) -> None:
    code, out = conform("broken_connectors:Hasty", "--traits", "ranks,reset", "--histories", "3")
    assert code == 1
    assert "reset_cache" not in out, "that was not tried"
    assert out.startswith("FAIL seed=")
    assert "\n\nscenario " in out
    assert ("situation" in out, "no load was tried" in out) == (False, False), "of a run that hardly began"
    rows = [line.split() for line in out.splitlines() if "made" in line.split()[1:2]]
    assert [(row[0], row[-2]) for row in rows] == [("plain", "breaks")]


def test_a_checker_that_is_off_finds_nothing_and_is_named(conform: Callable[..., tuple[int, str]]) -> None:
    arguments = ("broken_connectors:Hasty", "--traits", "none", "--histories", "1", "--without")
    code, out = conform(*arguments, "WORK,HITS")
    assert (code, out.partition("  ")[2].split()[0]) == (1, "PROTOCOL")
    assert "--traits none --seed 0 --without HITS,WORK --log\n" in out
    assert "\nnote: not checked: HITS, WORK\n" in out
    assert [json.loads(file.read_text().splitlines()[0])["without"] for file in Path().glob("fail-*")] == [
        ["HITS", "WORK"]
    ]
    code, out = conform(*arguments, "PROTOCOL")
    assert "PROTOCOL  " not in out
    assert conform(*arguments, "protocoll")[0] == 2


def test_what_takes_long_says_how_far_it_is(
    conform: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 1.0, 31.0, 31.0, 32.0])
    monkeypatch.setattr("kv_sim.failures.deadline.monotonic", lambda: next(times, 33.0))
    code, out = conform("memory", "--traits", "none", "--histories", "3")
    said = [line for line in out.splitlines() if line.startswith("note: scenario")]
    assert (code, said) == (0, ["note: scenario plain: 2 of 3 histories so far"])


def test_the_line_to_paste_has_as_many_actions(conform: Callable[..., tuple[int, str]]) -> None:
    code, out = conform("broken_connectors:Hasty", "--histories", "3", "--actions", "90")
    assert code == 1
    [line] = [line.removeprefix("replay: ") for line in out.splitlines() if line.startswith("replay: ")]
    assert "--actions 90" in line
    assert main(shlex.split(line)[1:]) == 1


@pytest.mark.parametrize(("first", "failing"), [(4, 6), (0, 0)])
def test_a_failure_of_the_testbed_itself(
    first: int, failing: int, conform: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_seed(subject: Subject, seed: int, **options: Any) -> Run:
        if seed == failing:
            raise ZeroDivisionError("ours")
        return Run(Coverage(), 1, "", None)

    monkeypatch.setattr("kv_sim.conformance.scenarios.run_seed", run_seed)
    code, out = conform("broken_connectors:Hasty", "--traits", "repeats", "--seed", str(first), "--actions", "9")
    line = f"kv-sim fuzz --connector broken_connectors:Hasty --traits none --seed {failing} --actions 9 --log"
    assert (code, out[: out.index("Traceback ")]) == (
        3,
        f"TESTBED seed={failing}  ZeroDivisionError: ours\nreplay: {line}\n",
    )


@pytest.mark.once
def test_all_claims_are_tried_if_it_keeps_going(conform: Callable[..., tuple[int, str]]) -> None:
    asked = ("broken_connectors:Hasty", "--traits", "ranks,repeats", "--histories", "3", "--keep-going")
    code, out = conform(*asked)
    assert code == 1
    rows = [line.split() for line in out.splitlines() if "made" in line.split()[1:2]]
    assert [row[0] for row in rows] == ["plain", "ranks", "repeats", "together"]
    assert out.count("FAIL seed=") == [row[-2] for row in rows].count("breaks") > 1


@pytest.mark.once
def test_a_probe_fails_nothing(conform: Callable[..., tuple[int, str]]) -> None:
    code, out = conform("later", "--probe", "--histories", "2")
    assert code == 0
    said = {line.split()[0]: line for line in out.splitlines() if " probed " in line}
    assert set(said) == {"groups", "states", "unequal", "fine", "losses", "events", "counts"}
    assert said["groups"].endswith("can't be tried")
    assert said["events"].endswith("breaks ACCOUNTING")
    assert said["counts"].endswith("breaks ACCOUNTING")
    assert "LaterConnector can't be used with several KV cache groups" in out
    assert "not tried" not in out
    assert "note: states: " not in out, "no more histories would show it"
    assert "FAIL" not in out


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Alone", "fewer than 1000 blocks"),
        ("Choosy", "can't create it: worker side: RuntimeError: one rank is enough (broken_connectors.py:"),
    ],
)
def test_a_world_that_is_refused_breaks_no_probe(
    conform: Callable[..., tuple[int, str]], name: str, words: str
) -> None:
    code, out = conform(f"broken_connectors:{name}", "--probe", "--histories", "1")
    assert code == 0
    said = {line.split()[0]: line for line in out.splitlines() if " probed " in line}
    assert len(said) == 16, "all others were tried"
    assert said["ranks"].endswith("can't be tried")
    assert f"\nnote: ranks: {words}" in out
    assert "note: ranks: its situations" not in out


@pytest.mark.once
def test_a_probe_says_how_many_worlds_were_refused(conform: Callable[..., tuple[int, str]]) -> None:
    alone = Subject("Alone", "broken_connectors", {"fewest_blocks": 20}, traits=frozenset())
    [probe] = [scenario for scenario in probes_of(alone) if scenario.shows is Trait.RANKS]
    outcome = run_scenario(alone, probe, histories=8, engine=BUILTIN_ENGINE)
    tried, words = outcome.histories, "fewer than 20 blocks"
    assert (outcome.failure, outcome.refusal, 0 < tried < 8) == (None, None, True)
    assert outcome.refused == {words: 8 - tried}
    lines = report.summary_lines(alone, [outcome])
    assert f"note: ranks: of 8 worlds, {8 - tried} were refused, for example: {words}" in lines
    code, out = conform("broken_connectors:Alone", "--traits", "ranks", "--histories", "2")
    assert (code, out) == (2, "kv-sim conform: fewer than 1000 blocks\n"), "who claims it is told"


@pytest.mark.once
def test_the_line_below_a_probe_that_broke_shows_how(conform: Callable[..., tuple[int, str]]) -> None:
    _, out = conform("later", "--traits=none", "--seed=0x3", "--actions=20", "--probe", "--histories=5")
    rows = out.splitlines()
    row = next(index for index, text in enumerate(rows) if re.match("events +probed .*breaks ACCOUNTING$", text))
    assert rows[row + 1] == "  see how: kv-sim conform later --traits events,keeps --seed 0x3 --actions 20"
    code, shown = conform(*shlex.split(rows[row + 1])[4:], "--histories=5")
    assert code == 1 and re.match(r"FAIL seed=\d+ actions=\d+  ACCOUNTING  ", shown), shown


@pytest.mark.parametrize(
    ("typed", "histories", "line"),
    [
        ("later --probe --histories 20", 20, "later --traits ranks"),
        ("later --histories 300 --traits reset", 101, "later --traits ranks --histories 300"),
        ("--spec a:B --extra '{\"c\": 1}'", 1, "--spec a:B --extra '{\"c\": 1}' --traits ranks"),
        ("later --engine vllm", 1, "later --traits ranks --engine vllm"),
        ("later --histories 300", 100, "later --traits ranks"),
        ("later --seed 0x3 --actions 20", 1, "later --traits ranks --seed 0x3 --actions 20"),
        ("a:B --serves-peers", 1, "a:B --traits ranks --serves-peers"),
        ("a:B --shares-store", 1, "a:B --traits ranks --shares-store"),
        ("a:B --two-engines", 1, "a:B --traits ranks --two-engines"),
        ("later --without WORK,HITS", 1, "later --traits ranks --without HITS,WORK"),
    ],
)
def test_the_line_has_what_was_typed(typed: str, histories: int, line: str) -> None:
    options = parser_of(COMMANDS).parse_args(["conform", *shlex.split(typed)])
    probe = Scenario("ranks", frozenset({Trait.RANKS}), Trait.RANKS, Claim.PROBED)
    without = values.parse_checkers(options.without)
    assert command.again(options, Outcome(probe, histories, without=without)) == f"kv-sim conform {line}"


def test_the_line_names_all_traits_of_a_scenario_in_order() -> None:
    options = parser_of(COMMANDS).parse_args(["conform", "later"])
    traits = frozenset(Trait)
    shown = command.again(options, Outcome(Scenario("together", traits), 1))
    assert shown == f"kv-sim conform later --traits {','.join(sorted(traits))}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a connector, or an offloading medium with --spec"),
        (["laterr"], "did you mean 'later'?"),
        (["later", "--engine", "vlm"], "unknown engine 'vlm'"),
        (["later", "--histories", "0"], "--histories: more than 0, got 0"),
    ],
)
def test_a_misuse_is_explained(
    conform: Callable[..., tuple[int, str]], arguments: list[str], message: str
) -> None:
    code, out = conform(*arguments)
    assert code == 2
    assert message in out


# -- scenarios ---------------------------------------------------------------------------------


def test_every_claim_is_tried_by_itself_and_all_together() -> None:
    traits = {Trait.GROUPS, Trait.STATES, Trait.KEEPS, Trait.EVENTS}
    subject = Subject("X", "x", {}, frozenset(traits))
    tried = {scenario.name: scenario.traits for scenario in scenarios_of(subject)}
    assert tried == {
        "plain": frozenset(),
        "groups": {Trait.GROUPS},
        "states": {Trait.GROUPS, Trait.STATES},
        "keeps": {Trait.KEEPS},
        "events": {Trait.KEEPS, Trait.EVENTS},
        "together": traits,
    }
    probes = probes_of(subject)
    assert {probe.name for probe in probes} == set(Trait) - OF_SEVERAL - traits
    serving = replace(subject, serves_peers=True)
    assert {probe.name for probe in probes_of(serving)} == set(Trait) - NOT_OF_PEERS - OF_TWO - traits
    assert {probe.claim for probe in probes} == {Claim.PROBED}
    assert [s.name for s in scenarios_of(Subject("X", "x", {}, frozenset()))] == ["plain"]
    assert [s.name for s in scenarios_of(Subject("X", "x", {}, frozenset({Trait.RANKS})))] == ["plain", "ranks"]
    two = Subject("X", "x", {}, frozenset({Trait.RANKS, Trait.RESET}))
    assert [s.name for s in scenarios_of(two)] == ["plain", "ranks", "reset", "together"]
    # What it doesn't claim is not tried beside a claim that means nothing without it.
    alone = frozenset({Trait.STATES})
    assert [s.traits for s in scenarios_of(Subject("X", "x", {}, alone))] == [frozenset(), alone]


@pytest.mark.parametrize("trait", [Trait.GROUPS, Trait.STATES, Trait.RANKS, Trait.ZEROING])
def test_the_worlds_of_a_claim_show_it(trait: Trait, monkeypatch: pytest.MonkeyPatch) -> None:
    from kv_sim.conformance import scenarios as module

    worlds, runs = [], []
    real = module.run_seed

    def watched(subject: Subject, seed: int, **options: object) -> Run:
        worlds.append(module.config_for(subject, module.Random(seed)))
        runs.append(real(subject, seed, actions=5))
        return runs[-1]

    monkeypatch.setattr(module, "run_seed", watched)
    scenario = next(s for s in scenarios_of(OFFLOAD) if s.name == trait)
    outcome = run_scenario(OFFLOAD, scenario, histories=6, engine=BUILTIN_ENGINE)
    shown = {
        Trait.GROUPS: [len(config.groups) > 1 for config in worlds],
        Trait.STATES: [config.groups[-1].kind == "state" for config in worlds],
        Trait.RANKS: [config.world_size > 1 for config in worlds],
        Trait.ZEROING: [config.zero_new_blocks and config.runner == 2 for config in worlds],
    }[trait]
    assert outcome.histories == len(worlds) == 6
    assert outcome.steps == sum(run.steps for run in runs) > 0
    assert outcome.coverage.situations == sum((run.coverage.situations for run in runs), Counter[str]())
    assert all(shown)
    if trait is not Trait.RANKS:
        assert all(config.world_size == 1 for config in worlds)


COUNTED = {
    "match: asynchronous load": 9,
    "match: stages hold different layers": 20,
    "a copy fails": 12,
    "a copy is torn": 5,
    "a restart ends copies": 2,
}


def test_situations_that_were_reached_are_counted_and_the_others_named() -> None:
    subject = Subject("A", traits=frozenset())
    head, *rows = report.situation_table(subject, {"a copy fails": 7, "an empty step": 0}, tuple(Trait))
    assert [head.split(), rows[0].split()] == [["situation", "times"], ["a", "copy", "fails", "7"]]
    never = " ".join(line.strip() for line in rows[1:])
    assert never.startswith("never: match: ask again; ")
    assert never.removeprefix("never: ").split("; ") == [
        name for name in SITUATIONS if name not in {"a copy fails", *BY_TICKETS, *IN_A_STORE}
    ]
    assert all(len(line) <= 100 for line in rows)
    assert "never" not in "".join(report.situation_table(subject, dict.fromkeys(SITUATIONS, 1), tuple(Trait)))
    tried = report.situation_table(subject, {}, [Trait.LOSSES, None])
    said = " ".join(line.strip() for line in tried)
    assert ("a copy is lost" in said, "an empty step" in said, "a copy fails" in said) == (True, True, False)


@pytest.mark.parametrize(
    ("free", "full", "fails", "is_said"),
    [(9, 0, False, True), (9, 1, False, False), (0, 0, False, False), (9, 0, True, False)],
)
def test_it_is_said_that_a_medium_was_never_full(free: int, full: int, fails: bool, is_said: bool) -> None:
    subject = Subject("A", traits=frozenset())
    outcome = Outcome(Scenario("plain", frozenset()))
    outcome.coverage.room.update(free=free, full=full)
    ended = Failure(subject, WorldConfig(), [], Violation(Invariant.WORK, "m"), 1)
    outcome.failure = ended if fails else None
    assert (f"note: {report.NEVER_FULL}" in report.summary_lines(subject, [outcome])) is is_said


BY_TICKETS = {
    "a load by a ticket ends well",
    "a load by a ticket goes on after tokens on the GPU",
    "a load by a ticket fails",
}
IN_A_STORE = {"a load of what another engine stored", "a stranger's KV is not found"}


def test_what_no_connector_of_its_kind_can_meet_is_not_said_to_be_never_met() -> None:
    alone = Subject("A", traits=frozenset())
    peers, sharing = replace(alone, serves_peers=True), replace(alone, engines=2, shares_store=True)
    asleep = {name for name in SITUATIONS if "sleep" in name}
    assert SITUATIONS.keys() - situations_of(alone) == BY_TICKETS | IN_A_STORE
    assert SITUATIONS.keys() - situations_of(peers) == IN_A_STORE | asleep
    assert SITUATIONS.keys() - situations_of(sharing) == BY_TICKETS
    assert report.situation_table(sharing, {}, ()) != report.situation_table(alone, {}, ())


@pytest.mark.parametrize(("lost", "came"), [(0, "never came up"), (1, "came up once"), (3, "came up 3 times")])
def test_it_is_said_what_hardly_came_up(lost: int, came: str) -> None:
    subject = Subject("A", traits=frozenset({Trait.LOSSES, Trait.FAILURES, Trait.KEEPS, Trait.RANKS}))
    situations = {**COUNTED, "a copy is lost": lost, "a restart loses host memory": 1}
    [said, unclaimed] = report.notes(subject, situations)
    about = "a copy is lost, a lost copy is found, a load that stands still is aborted"
    assert said == f"losses: its situations ({about}) {came}: --histories N tries more"
    assert unclaimed.startswith("not claimed")
    assert report.notes(subject, {**situations, "a lost copy is found": 20 - lost}) == [unclaimed]
    fewer = report.notes(subject, {**situations, "a lost copy is found": 20, "a restart loses host memory": 0})
    assert [note.split(":")[0] for note in fewer[:-1]] == ["failures"]


def test_of_what_was_probed_it_is_said_too_and_not_after_a_broken_claim() -> None:
    subject = Subject("A", traits=frozenset())
    assert len(report.notes(subject, COUNTED)) == 1
    said, _ = report.notes(subject, COUNTED, frozenset({Trait.STATES, None}))
    assert said.startswith("states: its situations (a state within a block is handed over, match: a load ends")
    assert len(report.notes(subject, COUNTED, frozenset({Trait.STATES}), is_whole=False)) == 1


def test_what_forgets_at_a_reset_has_its_own_note() -> None:
    [said, _] = report.notes(Subject("A", traits=frozenset({Trait.RESET})), COUNTED)
    assert said == "no reset_cache returned True, so this run doesn't show that a reset forgets what was stored"
