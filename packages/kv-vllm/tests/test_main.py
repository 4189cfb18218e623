"""The command line: what a command is run with and answers, and what it says to what it can't do."""

import json
import re
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from kv_sim.config import WorldConfig
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.failures.schedule_file import read_schedule
from kv_sim.fuzz import Failure
from kv_sim.violation import Invariant, Violation
from kv_vllm import __main__ as module
from kv_vllm.__main__ import main
from kv_vllm.differential.matrix import CELLS
from kv_vllm.driver.hunt import Found
from kv_vllm.driver.subjects import OUR_SUBJECTS, VLLM_SUBJECTS
from kv_vllm.smoke.run import CONNECTOR


@pytest.fixture
def no_vllm(monkeypatch):
    """There is no vLLM, whatever this environment has."""
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setitem(sys.modules, "vllm.version", None)


@pytest.mark.parametrize("command", ["drift", "differential", "fuzz"])
def test_without_vllm_it_says_so(command, no_vllm, capsys):
    assert main([command]) == 2
    told = capsys.readouterr().err
    assert told.startswith("kv_vllm: this needs the installed vLLM, and none can be imported: import of vllm")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "arguments are required: COMMAND"),
        (["hunt"], "invalid choice: 'hunt'"),
        (["differential", "--runner", "3"], "--runner: invalid choice: "),
        (["differential", "--async", "maybe"], "--async: invalid choice: 'maybe'"),
        (["schedule", "a.calls.jsonl"], "arguments are required: SCHEDULE"),
        (["smoke", "--eagre"], "unrecognized arguments: --eagre"),
    ],
)
def test_what_is_no_command_is_refused(arguments, message, capsys):
    """With the usage of the command, if there is one."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    told = capsys.readouterr().err
    command = "" if message.endswith(("COMMAND", "'hunt'")) else f" {arguments[0]}"
    assert (end.value.code, told.startswith(f"usage: python -m kv_vllm{command} [-h]")) == (2, True)
    assert message in told


def test_its_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    told = capsys.readouterr().out
    assert (end.value.code, module.__doc__.splitlines()[0] in " ".join(told.split())) == (0, True)
    assert re.findall(r"^ {4}([a-z]+)\s+\w", told, re.MULTILINE) == [
        "differential",
        "drift",
        "fuzz",
        "smoke",
        "schedule",
    ]


def test_its_answer_is_the_exit_code(tmp_path):
    command = [sys.executable, "-m", "kv_vllm", "schedule", str(tmp_path / "none"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, f"kv_vllm: {tmp_path / 'none'}: No such file or directory\n")


@pytest.mark.parametrize("is_fine", [True, False])
def test_drift_is_1(is_fine, monkeypatch):
    monkeypatch.setattr("kv_vllm.drift.compare.drift", lambda show: is_fine)
    assert main(["drift"]) == (0 if is_fine else 1)


def test_an_unknown_subject_is_named_with_the_known_ones(capsys):
    assert main(["differential", "--subject", "latter"]) == 2
    assert capsys.readouterr().err == (
        "kv_vllm: --subject: unknown subject 'latter'; did you mean 'later'?; known: those that kv-sim subjects "
        "lists\n"
    )


def test_an_unknown_subject_to_fuzz_is_named_with_those_of_vllm(capsys):
    assert main(["fuzz", "--subject", "example"]) == 2
    told = capsys.readouterr().err
    assert (
        "unknown subject 'example'; did you mean 'vllm-example'?; known: vllm-example, vllm-example+example, "
        in told
    )
    assert told.endswith(", our-p2p, those that kv-sim subjects lists\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minutes", "-3"], "--minutes: more than 0, got -3.0"),
        (["--minutes", "nan"], "--minutes: a finite number, got nan"),
        (["--call-timeout", "-1"], "--call-timeout: at least 0 seconds, got -1"),
        (["--seed", "x"], "--seed: a seed is a whole number or 0x…, got 'x'"),
        (["--extra", "{}"], "--extra applies to one connector: name it with --connector"),
        (["--traits", "ranks"], "--traits applies to one connector: name it with --connector"),
        (["--two-engines"], "--two-engines applies to one connector: name it with --connector"),
        (["--shares-store"], "--shares-store applies to one connector: name it with --connector"),
        (["--save", __file__], f"--save {__file__}: {__file__} is no folder"),
    ],
)
def test_what_can_not_be_fuzzed_is_known_before_anything_is(arguments, message, hunted, capsys):
    assert main(["fuzz", "--subject", "memory", *arguments]) == 2
    assert (capsys.readouterr().err, hunted[0]) == (f"kv_vllm: {message}\n", [])


def test_a_seed_may_be_the_hash_of_a_commit(hunted):
    assert main(["fuzz", "--subject", "memory", "--seed", "0x1f"]) == 0
    assert [seed for _, seed, _, _ in hunted[0]] == [31]


@pytest.mark.parametrize(("breaks", "code"), [(False, 130), (True, 1)])
def test_interrupted_fuzzing_keeps_what_was_found(breaks, code, some_vllm, monkeypatch, tmp_path, capsys):
    failure = Failure(SUBJECTS["memory"], WorldConfig(), [], Violation(Invariant.CONTENT, "some block"), 7)
    found = Found(
        3, {"a kind": failure} if breaks else {}, Counter(["a kind"] if breaks else []), was_interrupted=True
    )
    monkeypatch.setattr("kv_vllm.driver.hunt.hunt", lambda *arguments, without: found)
    assert main(["fuzz", "--subject", "memory,later", "--save", str(tmp_path)]) == code
    told = capsys.readouterr()
    assert told.err == "note: interrupted; this is what was found so far\n"
    assert "memory: 3 histories" in told.out and "later: " not in told.out
    assert len(list(tmp_path.iterdir())) == breaks


@pytest.mark.parametrize("command", ["drift", "fuzz"])
def test_an_interrupted_command_says_so(command, some_vllm, monkeypatch, capsys):
    def interrupted(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("kv_vllm.drift.compare.drift", interrupted)
    monkeypatch.setattr("kv_vllm.driver.hunt.hunt", interrupted)
    assert main([command]) == 130
    assert capsys.readouterr().err == "note: interrupted\n"


def test_it_begins_and_ends_as_kv_sim_does(monkeypatch):
    """There a crash is told, and no thread of a connector's keeps it from ending."""
    asked = []
    monkeypatch.setattr("kv_sim.cli.start.start", lambda command: asked.append(command) or 5)
    assert (module._start(), asked) == (5, [main])
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setattr(module, "main", lambda: 6)
    assert (module._start(), asked) == (6, [main])


@pytest.mark.parametrize("seeds", ["", "x", "5-", "5-x", "9-3"])
def test_seeds_that_are_none(seeds, capsys):
    with pytest.raises(SystemExit) as end:
        main(["differential", "--seeds", seeds])
    assert end.value.code == 2
    assert f"{seeds!r} is neither a seed nor a range" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["differential", "fuzz"])
def test_without_the_testbed_it_says_so(command, no_vllm, monkeypatch, capsys):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert main([command]) == 2
    assert capsys.readouterr().err == "kv_vllm: this needs the testbed: install kv-vllm[sim]\n"


def test_what_needs_no_testbed_runs_without(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    monkeypatch.setattr("kv_vllm.drift.compare.drift", lambda show: True)
    assert main(["drift"]) == 0


@pytest.fixture
def some_vllm(monkeypatch):
    """A vLLM of which nothing is asked but its version."""
    monkeypatch.setattr("kv_vllm.installed.vllm_version", lambda: (0, 33))
    monkeypatch.setitem(sys.modules, "kv_vllm.differential.scheduler", SimpleNamespace(VllmScheduler="vLLM's"))


def noting(answer):
    """A function that gives this answer, and what it was asked, but for what prints its lines."""
    asked = []

    def command(*arguments):
        asked.append(tuple(one for one in arguments if one is not module._show))
        return answer

    return command, asked


USUAL = ["later", "patient", "memory"]


@pytest.mark.parametrize("agrees", [True, False])
@pytest.mark.parametrize(
    ("options", "cells", "names", "seeds"),
    [
        ([], CELLS, USUAL, range(500)),
        (["--runner", "2"], (CELLS[1], CELLS[3]), USUAL, range(500)),
        (["--async", "no", "--seeds", "3-5"], CELLS[:2], USUAL, range(3, 6)),
        (["--async", "yes", "--runner", "1", "--seeds", "7"], CELLS[2:3], USUAL, range(7, 8)),
        (
            ["--subject", "memory,later", "--subject", "longest"],
            CELLS,
            ["memory", "later", "longest"],
            range(500),
        ),
    ],
)
def test_what_is_compared(options, cells, names, seeds, agrees, some_vllm, monkeypatch):
    differential, asked = noting(agrees)
    quiet = []
    monkeypatch.setattr("kv_vllm.differential.run.differential", differential)
    monkeypatch.setattr("kv_sim.console.output.let_connectors_log_nothing", lambda: quiet.append(True))
    assert main(["differential", *options]) == (0 if agrees else 1)
    assert asked == [([*cells], names, seeds, "vLLM's", (0, 33))]
    assert quiet == [True]


@pytest.fixture
def hunted(some_vllm, monkeypatch):
    """Subjects that were fuzzed, the first two seeds of each, and for how long; one in ``breaking`` fails."""
    told, now, breaking, quiet = [], [1000.0], [], [SUBJECTS["patient"]]

    def hunt(subject, seeds, goes_on, *, without):
        begun = now[0]
        while goes_on():
            now[0] += 1
        told.append((subject, next(seeds), next(seeds), now[0] - begun))
        assert without == (frozenset() if subject not in quiet else {Invariant.CONTENT, Invariant.WORK})
        if subject not in breaking:
            return Found(histories=3, situations=Counter({"match: load in the step": 1}))
        failure = Failure(subject, WorldConfig(), [], Violation(Invariant.CONTENT, "some block"), 7)
        return Found(3, {"a kind": failure}, Counter({"a kind": 2}))

    monkeypatch.setattr("kv_vllm.driver.hunt.hunt", hunt)
    monkeypatch.setattr("kv_sim.failures.deadline.monotonic", lambda: now[0])
    return told, breaking


def test_fuzzing_shares_its_time_and_begins_with_a_seed(hunted, capsys):
    told, _ = hunted
    names = ["memory", "vllm-example", "our-offloading"]
    given = ["--subject", ",".join(names[:2]), "--subject", names[2]]
    assert main(["fuzz", *given, "--minutes", "1.5", "--seed", "7"]) == 0
    subjects = [SUBJECTS["memory"], VLLM_SUBJECTS["vllm-example"], OUR_SUBJECTS["our-offloading"]]
    assert told == [(subject, 7, 8, 30) for subject in subjects]
    assert capsys.readouterr().out.splitlines() == [
        "vLLM 0.33: memory, vllm-example, our-offloading, 1.5 minutes in all",
        *[f"{name}: 3 histories, 0 failures" for name in names],
    ]


def test_checkers_are_switched_off_by_name(hunted, capsys):
    told, _ = hunted
    assert main(["fuzz", "--subject", "patient", "--without", "content,work", "--minutes", "1"]) == 0
    assert len(told) == 1
    assert main(["fuzz", "--subject", "patient", "--without", "contents"]) == 2
    assert "--without: unknown checker 'contents'; known: CONTENT, " in capsys.readouterr().err


def test_fuzzing_is_of_all_of_vllms_for_ten_minutes(hunted):
    told, _ = hunted
    assert main(["fuzz"]) == 0
    assert [(subject, seed) for subject, seed, _, _ in told] == [
        (subject, 0) for subject in VLLM_SUBJECTS.values()
    ]
    share = 600 / len(VLLM_SUBJECTS)
    assert all(share <= seconds < share + 1 for _, _, _, seconds in told)


@pytest.mark.parametrize(("options", "seconds"), [([], 60), (["--call-timeout", "7"], 7)])
def test_fuzzing_logs_nothing_and_ends_long_calls(options, seconds, hunted, monkeypatch):
    done = []
    monkeypatch.setattr("kv_sim.console.output.let_connectors_log_nothing", lambda: done.append("quiet"))
    monkeypatch.setattr("kv_sim.console.watchdog.ends_calls", lambda given: nullcontext(done.append(given)))
    assert main(["fuzz", "--subject", "memory", *options]) == 0
    assert done == ["quiet", seconds]


@pytest.mark.parametrize("named", [[], ["--subject", "memory"]])
@pytest.mark.parametrize(
    ("options", "serves", "shares"),
    [
        ([], None, None),
        (["--serves-peers"], 1, None),
        (["--two-engines"], 2, None),
        (["--shares-store"], None, True),
    ],
)
def test_a_connector_of_ones_own_is_fuzzed_alone_or_after_those_that_are_named(
    options, serves, shares, named, hunted, monkeypatch
):
    told, asked = hunted[0], []

    def choose(*arguments, **more):
        asked.append((arguments, more))
        return SUBJECTS["later"]

    monkeypatch.setattr("kv_sim.console.selection.choose_subject", choose)
    monkeypatch.setattr("kv_sim.console.values.look_in_this_folder", lambda: asked.append("this folder"))
    assert main(["fuzz", "--connector", "mine:Mine", "--extra", "{}", "--traits", "a", *options, *named]) == 0
    assert [subject for subject, *_ in told] == [*map(SUBJECTS.get, named[1:]), SUBJECTS["later"]]
    kind = {"serves_peers": serves, "shares_store": shares}
    assert asked == ["this folder", (("mine:Mine", "{}", "a", "vllm"), kind)]


@pytest.mark.parametrize(("name", "where"), [("memory", "found"), ("later", None)])
def test_what_breaks_is_saved_and_the_others_are_fuzzed_too(name, where, hunted, tmp_path, monkeypatch):
    told, breaking = hunted
    breaking.append(SUBJECTS[name])
    folder = tmp_path / "found"
    folder.mkdir()
    monkeypatch.chdir(folder if where is None else tmp_path)
    options = [] if where is None else ["--save", where]
    assert main(["fuzz", "--subject", "memory,later", "--minutes", "1", *options]) == 1
    assert [subject for subject, *_ in told] == [SUBJECTS["memory"], SUBJECTS["later"]]
    (file,) = folder.iterdir()
    assert (file.name.startswith(f"{name}-content"), read_schedule(file).subject) == (True, SUBJECTS[name])


@pytest.mark.parametrize("is_fine", [True, False])
@pytest.mark.parametrize(
    ("options", "model", "eager"), [([], None, False), (["--model", "some/model", "--eager"], "some/model", True)]
)
def test_a_smoke_test_is_of_a_model(options, model, eager, is_fine, monkeypatch):
    smoke, asked = noting(is_fine)
    monkeypatch.setattr("kv_vllm.smoke.run.smoke", smoke)
    assert main(["smoke", *options]) == (0 if is_fine else 1)
    assert asked == [(model, {"enforce_eager": eager}, CONNECTOR)]


def test_a_smoke_test_of_a_connector_of_ones_own(monkeypatch, capsys):
    smoke, asked = noting(True)
    monkeypatch.setattr("kv_vllm.smoke.run.smoke", smoke)
    assert main(["smoke", "--kv-transfer-config", '{"kv_connector": "Mine"}']) == 0
    assert asked == [(None, {"enforce_eager": False}, {"kv_connector": "Mine"})]
    assert main(["smoke", "--kv-transfer-config", "{}"]) == 2
    assert len(asked) == 1 and capsys.readouterr().err == (
        "kv_vllm: --kv-transfer-config: expected an object with the name of a connector as kv_connector; got {}\n"
    )
    assert main(["smoke", "--kv-transfer-config", ""]) == 2
    assert len(asked) == 1 and "--kv-transfer-config: this is no JSON: " in capsys.readouterr().err


HEAD = {
    "format": "kv-vllm calls",
    "version": 1,
    "world": {"num_blocks": 16, "block_size": 4, "groups": [{"kind": "full", "window": 0}]},
    "subject": {"kv_connector": "MemoryConnector", "extra_config": {}},
}


def test_a_schedule_is_made_of_calls(tmp_path, capsys):
    calls, schedule = tmp_path / "some.calls.jsonl", tmp_path / "some.jsonl"
    calls.write_text(json.dumps(HEAD) + "\n")
    schedule.write_text("of an earlier file of calls")
    assert main(["schedule", str(calls), str(schedule)]) == 0
    assert json.loads(schedule.read_text())["world"] == HEAD["world"]
    assert capsys.readouterr().out.startswith("0 requests")


def test_what_is_no_file_of_calls_is_named(tmp_path, capsys):
    calls, schedule = tmp_path / "some.calls.jsonl", tmp_path / "some.jsonl"
    assert main(["schedule", str(calls), str(schedule)]) == 2
    assert "No such file" in capsys.readouterr().err
    calls.write_text("{}\n")
    assert main(["schedule", str(calls), str(schedule)]) == 2
    told = capsys.readouterr()
    expected = f"kv_vllm: {calls}: line 1: expected the header of 'kv-vllm calls', version 1\n"
    assert (told.out, told.err, schedule.exists()) == ("", expected, False)
