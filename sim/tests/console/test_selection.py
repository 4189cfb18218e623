"""From what somebody typed to what it means: values, and whole messages about mistakes."""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kv_api import ConfigError, KVTransferConfig
from kv_sim.actions import Action, Kind
from kv_sim.cli.options import parser_of
from kv_sim.config import STATE, GroupConfig, WorldConfig
from kv_sim.console import selection, values
from kv_sim.examples.catalogue import LATER, MEMORY, SUBJECTS
from kv_sim.failures.schedule_file import Schedule
from kv_sim.subject import Subject, Trait
from kv_sim.violation import Invariant

HASTY = "broken_connectors:Hasty"
TRAITS = (
    "clients, counts, events, failures, fine, groups, holds, images, keeps, losses, ranks, repeats, reset, sleep, "
    "states, strangers, tickets, unequal, zeroing"
)
CHECKERS = "CONTENT, OWNERSHIP, CONSERVATION, LIVENESS, NO-CRASH, PROTOCOL, HITS, ACCOUNTING, GEOMETRY, WORK"


def refused(function: Callable[..., Any], *args: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        function(*args)
    return str(raised.value)


@pytest.mark.parametrize(("is_safe", "is_there", "is_added"), [(0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 1, 0)])
def test_this_folder_is_looked_in_last_unless_python_was_told_not_to(
    monkeypatch: pytest.MonkeyPatch, is_safe: int, is_there: int, is_added: int
) -> None:
    path = ["first", *[os.getcwd()] * is_there, "last"]
    expected = [*path, *[os.getcwd()] * is_added]
    python = SimpleNamespace(flags=SimpleNamespace(safe_path=bool(is_safe)), path=path)
    monkeypatch.setattr(values, "sys", python)
    values.look_in_this_folder()
    assert path == expected


@pytest.mark.parametrize(
    ("seed", "seeds", "histories", "found"),
    [
        (None, None, None, range(300)),
        (None, None, 5, range(5)),
        ("7", None, None, range(7, 8)),
        ("0x10", None, None, range(16, 17)),
        ("7", None, 5, range(7, 12)),
        (None, "3-5", None, range(3, 6)),
        (None, "3-3", None, range(3, 4)),
        (None, "0xa-0xb", None, range(10, 12)),
    ],
)
def test_seeds(seed: str | None, seeds: str | None, histories: int | None, found: range) -> None:
    assert values.choose_seeds(seed, seeds, histories, 300) == found


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("1", "1-2", None), "--seeds already says which seeds to run: leave out --seed and --histories"),
        ((None, "1-2", 3), "--seeds already says which seeds to run: leave out --seed and --histories"),
        ((None, "1..2", None), "--seeds: expected A-B, got '1..2'"),
        ((None, "1-2-3", None), "--seeds: expected A-B, got '1-2-3'"),
        ((None, "5-3", None), "--seeds: 3 comes before 5"),
        ((None, "1-x", None), "--seeds: a seed is a whole number or 0x…, got 'x'"),
        (("1.5", None, None), "--seed: a seed is a whole number or 0x…, got '1.5'"),
    ],
)
def test_seeds_that_are_none(args: tuple[Any, ...], message: str) -> None:
    assert refused(values.choose_seeds, *args, 300) == message


@pytest.mark.parametrize(
    ("text", "traits"),
    [
        ("none", set()),
        ("groups", {Trait.GROUPS}),
        (" groups , ranks,, ", {Trait.GROUPS, Trait.RANKS}),
    ],
)
def test_traits(text: str, traits: set[Trait]) -> None:
    assert values.parse_traits(text) == traits


def test_other_parts() -> None:
    assert values.parse_checkers(["hits", "NO-CRASH"]) == {Invariant.HITS, Invariant.NO_CRASH}
    assert values.parse_extra('{"a": 1}') == {"a": 1}
    assert values.with_spec("Installed", None) == '{"spec_name": "Installed"}'
    assert values.with_spec("m:S", None) == '{"spec_name": "S", "spec_module_path": "m"}'
    assert values.with_spec("m:S", '{"a": 1, "spec_name": "T"}') == (
        '{"spec_name": "T", "spec_module_path": "m", "a": 1}'
    )
    assert selection.choose_name(Namespace(spec=None, name="later", extra="{}")) == ("later", "{}")
    spec = '{"spec_name": "S", "spec_module_path": "m"}'
    assert selection.choose_name(Namespace(spec="m:S", name=None, extra=None)) == ("OffloadingConnector", spec)
    assert selection.choose_name(Namespace(spec="m:S", name="mine", extra=None)) == ("mine", spec)
    values.check_numbers(Namespace(minutes=0.5, histories=None, jobs=1))


@pytest.mark.parametrize(
    ("function", "argument", "message"),
    [
        (values.parse_traits, " , ", "--traits: expected names with commas between them, or 'none', got ' , '"),
        (values.parse_traits, "none,groups", f"--traits: unknown trait 'none'; known: {TRAITS}"),
        (
            values.parse_traits,
            "groups,rank",
            f"--traits: unknown trait 'rank'; known: {TRAITS}; did you mean 'ranks'?",
        ),
        (
            values.parse_checkers,
            ["hits", "contents"],
            f"--without: unknown checker 'contents'; known: {CHECKERS}; did you mean 'CONTENT'?",
        ),
        (values.parse_checkers, ["xyz"], f"--without: unknown checker 'xyz'; known: {CHECKERS}"),
        (values.parse_extra, "[1]", "--extra: expected an object, got [1] (a list)"),
        (
            values.parse_extra,
            "{",
            "--extra: no JSON: Expecting property name enclosed in double quotes at column 2",
        ),
        (values.parse_extra, '{"a": 1, "a": 2}', "--extra: the key 'a' stands there twice"),
        (values.check_numbers, Namespace(minutes=0.0), "--minutes: more than 0, got 0.0"),
        (values.check_numbers, Namespace(histories=-1), "--histories: more than 0, got -1"),
        (values.check_numbers, Namespace(jobs=0), "--jobs: more than 0, got 0"),
        (values.check_numbers, Namespace(actions=0), "--actions: more than 0, got 0"),
        (
            selection.choose_name,
            Namespace(spec=None, name=None),
            "name a connector, or an offloading medium with --spec",
        ),
    ],
)
def test_mistakes(function: Callable[..., Any], argument: Any, message: str) -> None:
    assert refused(function, argument) == message


@pytest.mark.parametrize("spec", ["", "m:", ":S"])
def test_a_medium_has_a_module_and_a_class(spec: str) -> None:
    message = f"--spec: expected module:Class or the name of an installed medium, got {spec!r}"
    assert refused(values.with_spec, spec, None) == message


def test_a_medium_is_named_by_its_module_and_not_its_file() -> None:
    assert refused(values.with_spec, "./shelf.py:Shelf", None) == (
        "--spec './shelf.py:Shelf': expected module:Class, and a module's name instead of its file: shelf:Shelf, "
        "with its folder on PYTHONPATH if it isn't this one"
    )


def test_a_spec_that_is_named_as_in_an_import_is_told_how() -> None:
    message = "--spec 'my.media.Spec': expected module:Class, as in my.media:Spec, or an installed medium"
    assert refused(values.with_spec, "my.media.Spec", None) == message


def test_a_medium_for_a_connector_that_takes_one_is_in_its_settings() -> None:
    extra = {"spec_name": "WorldCPUOffloadingSpec", "spec_module_path": "kv_sim.offload"}
    subject = selection.choose_subject("offload", json.dumps(extra))
    assert subject.extra_config.items() >= extra.items()
    assert subject.traits == SUBJECTS["offload"].traits


@pytest.mark.parametrize(
    ("extra", "kept"),
    [
        ({}, (1, 1)),
        ({"blocks_per_chunk": 3}, (3, 1)),
        ({"store_threshold": 2}, (1, 2)),
        ({"store_threshold": 0, "blocks_per_chunk": 2}, (2, 1)),
    ],
)
def test_what_an_offloading_connector_keeps_is_said_by_its_settings(
    extra: dict[str, Any], kept: tuple[int, int]
) -> None:
    medium = {"spec_name": "WorldCPUOffloadingSpec", "spec_module_path": "kv_sim.offload"}
    subject = selection.choose_subject("OffloadingConnector", json.dumps({**medium, **extra}), "keeps")
    assert (subject.blocks_per_chunk, subject.keeps_from) == kept
    other = selection.choose_subject("memory", json.dumps({"blocks_per_chunk": 3, "store_threshold": 2}))
    assert (other.blocks_per_chunk, other.keeps_from) == (1, 1), "they mean nothing there"
    chunks = selection.choose_subject("offload-chunks", "{}")
    assert chunks.blocks_per_chunk == 2, "what isn't said stays"
    at_once = selection.choose_subject("offload-again", '{"store_threshold": 0}')
    assert (SUBJECTS["offload-again"].keeps_from, at_once.keeps_from) == (3, 1)


@pytest.mark.parametrize("value", ["2", 0, -1, 1.5])
def test_a_setting_that_is_none_is_refused_by_the_connector(value: object) -> None:
    message = refused(selection.choose_subject, "offload", json.dumps({"blocks_per_chunk": value}))
    assert "blocks_per_chunk" in message


class WithoutVllm:
    """A finder of modules that finds no vLLM, though one may be installed."""

    def __init__(self, finder: Any) -> None:
        self._finder = finder

    def find_spec(self, name: str, *rest: Any) -> Any:
        return None if name == "vllm" else self._finder.find_spec(name, *rest)


def test_a_module_that_needs_vllm_is_sent_to_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [WithoutVllm(finder) for finder in sys.meta_path])
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    (tmp_path / "for_a_vllm.py").write_text("import vllm.nowhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    message = refused(selection.choose_subject, "for_a_vllm:Connector")
    assert message.endswith(
        "No module named 'vllm' (for_a_vllm.py:1); a connector written for vLLM needs an installed vLLM and the "
        "package kv-vllm: --engine vllm, in pytest --kv-engine vllm"
    )


@pytest.mark.parametrize(
    ("module", "is_vllms"), [("vllm.distributed", True), ("vllmish", False), ("a.vllm", False)]
)
def test_a_class_is_vllms_if_a_base_of_it_is(monkeypatch: pytest.MonkeyPatch, module: str, is_vllms: bool) -> None:
    base = type("Base", (), {"__module__": module})
    made = SimpleNamespace(Connector=type("Connector", (base,), {}), function=len)
    monkeypatch.setitem(sys.modules, "made", made)  # type: ignore[arg-type]
    for name, expected in (("Connector", is_vllms), ("function", False), ("Other", False)):
        transfer = KVTransferConfig.from_mapping(
            {"kv_connector": name, "kv_connector_module_path": "made", "kv_role": "kv_both"}
        )
        assert selection._is_vllms(transfer) is expected


def test_subjects_by_name() -> None:
    assert selection.choose_subjects(None, None, None) == SUBJECTS
    assert selection.choose_subjects("later", None, None) == {"later": LATER}
    mine = selection.choose_subject("memory", '{"host_slots": 9}', "groups")
    assert mine == Subject(
        MEMORY.kv_connector, MEMORY.module_path, {"host_slots": 9}, frozenset({Trait.GROUPS}), 1, 1, False
    )
    assert selection.choose_subject(HASTY) == Subject("Hasty", "broken_connectors", traits=frozenset())
    assert selection.choose_subject("offload", '{"more": 1, "load_timeout_seconds": 7}').extra_config == {
        **SUBJECTS["offload"].extra_config,
        "load_timeout_seconds": 7,
        "more": 1,
    }


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((None, "{}", None), "--extra applies to one connector: name it with --connector"),
        ((None, None, "none"), "--traits applies to one connector: name it with --connector"),
        (
            ("later", None, "ranks,holds"),
            "--traits: 'holds' is a trait of connectors that serve other engines: --serves-peers",
        ),
        ((":X", None, None), "--connector ':X': expected module:Class"),
        (("x:", None, None), "--connector 'x:': expected module:Class"),
        *(
            (
                (f"{file}:X", None, None),
                f"--connector '{file}:X': expected module:Class, and a module's name instead of its file: "
                "store:X, with its folder on PYTHONPATH if it isn't this one",
            )
            for file in ("store.py", "../store", "mine/store.py")
        ),
        (
            ("my.store.X", None, None),
            "--connector: unknown connector 'my.store.X'; write your own as module:Class, as in my.store:X",
        ),
        (
            ("store.py", None, None),
            "--connector: unknown connector 'store.py'; write your own as module:Class, as in store:Class",
        ),
        (
            (HASTY, None, "groups"),
            "Hasty can't be used with several KV cache groups (the trait 'groups'): its class doesn't derive "
            "from SupportsHMA",
        ),
    ],
)
def test_subjects_that_are_none(args: tuple[Any, ...], message: str) -> None:
    assert refused(selection.choose_subjects, *args) == message


def test_what_serves_peers_is_told_so() -> None:
    assert not selection.choose_subject("later").serves_peers
    assert selection.choose_subject("p2p").serves_peers
    told = selection.choose_subject("later", traits="tickets,ranks", serves_peers=1)
    assert told == replace(LATER, traits=frozenset({Trait.RANKS, Trait.TICKETS}), serves_peers=True)
    assert selection.choose_subjects("later", None, None, serves_peers=1)["later"].serves_peers
    with pytest.raises(
        ConfigError, match="--traits: 'sleep' is a trait of connectors that serve no other engines"
    ):
        selection.choose_subject("later", traits="sleep", serves_peers=1)
    with pytest.raises(ConfigError, match="--serves-peers applies to one connector: name it with --connector"):
        selection.choose_subjects(None, None, None, serves_peers=1)


def test_or_that_its_worlds_have_two_engines() -> None:
    assert (selection.choose_subject("p2p").engines, selection.choose_subject("p2p-two-engines").engines) == (1, 2)
    told = selection.choose_subject("later", serves_peers=2)
    assert told == replace(LATER, serves_peers=True, engines=2, traits=LATER.traits - {Trait.SLEEP})
    with pytest.raises(ConfigError, match="--two-engines applies to one connector: name it with --connector"):
        selection.choose_subjects(None, None, None, serves_peers=2)


def test_a_stranger_is_a_second_engine() -> None:
    two = selection.choose_subject("p2p", traits="strangers", serves_peers=2)
    assert two.traits == {Trait.STRANGERS}
    assert Trait.STRANGERS in selection.choose_subject("p2p-two-engines").traits
    assert Trait.STRANGERS not in selection.choose_subject("p2p-two-engines", serves_peers=1).traits
    with pytest.raises(ConfigError, match="'strangers' is a trait of connectors that are driven in two engines"):
        selection.choose_subject("p2p", traits="strangers", serves_peers=1)


def test_or_that_its_engines_share_a_store() -> None:
    assert (selection.choose_subject("shared").shares_store, selection.choose_subject("later").shares_store) == (
        True,
        False,
    )
    told = selection.choose_subject("later", shares_store=True)
    assert told == replace(LATER, shares_store=True, engines=2)
    assert selection.choose_subjects("later", None, None, shares_store=True) == {"later": told}
    strange = selection.choose_subject("later", traits="strangers,sleep", shares_store=True)
    assert strange.traits == {Trait.STRANGERS, Trait.SLEEP}
    assert selection.choose_subject("p2p", shares_store=True).serves_peers is False
    with pytest.raises(
        ConfigError,
        match="--traits: 'strangers' is a trait of connectors that are driven in two engines: --two-engines or --",
    ):
        selection.choose_subject("later", traits="strangers")
    with pytest.raises(
        ConfigError, match="--traits: 'holds' is a trait of connectors that serve other engines: --serves-p"
    ):
        selection.choose_subject("later", traits="holds", shares_store=True)
    for peers, option in (1, "--serves-peers"), (2, "--two-engines"):
        words = f"^{option} and --shares-store exclude each other: give one of them$"
        with pytest.raises(ConfigError, match=words):
            selection.choose_subject("later", serves_peers=peers, shares_store=True)
        with pytest.raises(ConfigError, match=words):
            selection.choose_subject("shared", serves_peers=peers)
    with pytest.raises(ConfigError, match="--shares-store applies to one connector: name it with --connector"):
        selection.choose_subjects(None, None, None, shares_store=True)


def test_an_unknown_connector() -> None:
    message = refused(selection.choose_subject, "latr")
    assert message.startswith(
        "--connector: unknown connector 'latr'; did you mean 'later'?; write your own as module:Class; kv-sim "
        "subjects lists those of the testbed; installed connectors, known: MultiConnector, "
    )
    assert refused(selection.choose_subject, "x").startswith(
        "--connector: unknown connector 'x'; write your own as module:Class; kv-sim "
    )


def test_a_connector_that_cannot_be_made() -> None:
    message = refused(selection.choose_subject, "broken_connectors:Homeless", '{"a": 1}')
    assert message.startswith(
        "--connector 'broken_connectors:Homeless': can't create it: worker side: KeyError: 'home' ("
    )
    assert message.endswith(
        ' (its kv_connector_extra_config is {"a": 1}; --extra adds to it, and so does the world: host_slots and '
        "cpu_bytes_to_use, unless they are null)"
    )


def test_a_connector_that_refuses_settings_it_does_not_know() -> None:
    """The world's own are such, unless somebody leaves them out."""
    message = refused(selection.choose_subject, "broken_connectors:Strict")
    assert "can't create it: worker side: ValueError: unknown setting: host_slots (" in message
    extra = '{"host_slots": null, "cpu_bytes_to_use": null, "home": null}'
    subject = selection.choose_subject("broken_connectors:Strict", extra)
    assert subject.transfer_config(WorldConfig()).kv_connector_extra_config == {"home": None}
    children = {"connectors": [{"kv_connector": "A"}, {"kv_connector_extra_config": {"host_slots": None}}]}
    room = {"host_slots": 64, "cpu_bytes_to_use": WorldConfig().host_bytes}
    assert Subject("Parent", None, children).transfer_config(WorldConfig()).kv_connector_extra_config == {
        **room,
        "connectors": [
            {"kv_role": "kv_both", "kv_connector": "A", "kv_connector_extra_config": room},
            {"kv_role": "kv_both", "kv_connector_extra_config": {"cpu_bytes_to_use": room["cpu_bytes_to_use"]}},
        ],
    }


def act(kind: str, **args: Any) -> Action:
    return Action(Kind(kind), args)


@pytest.mark.parametrize(
    ("config", "history", "needs"),
    [
        ({}, [act("step"), act("reset", running=True, connector=False)], []),
        ({"groups": (GroupConfig(), GroupConfig("sliding", 4))}, [], ["groups (its world has 2 groups)"]),
        (
            {"groups": (GroupConfig(), STATE)},
            [],
            ["groups (its world has 2 groups)", "states (its world has a group of states)"],
        ),
        ({"hashes_per_block": 2}, [], ["fine (its blocks have 2 hashes each)"]),
        ({"tp_size": 2, "pp_size": 2}, [], ["ranks (its world has 4 ranks)"]),
        ({"tp_size": 2}, [], ["ranks (its world has 2 ranks)"]),
        (
            {"runner": 2, "zero_new_blocks": True},
            [],
            ["zeroing (runner V2 writes new blocks before handle_preemptions)"],
        ),
        (
            {"runner": 2, "hashes_per_block": 4},
            [],
            [
                "fine (its blocks have 4 hashes each)",
                "zeroing (runner V2 writes new blocks before handle_preemptions)",
            ],
        ),
        ({"runner": 2}, [], []),
        ({"zero_new_blocks": True}, [], []),
        *(({}, [act(kind, rank=0, copy=0)], ["failures (copies fail)"]) for kind in ("fail", "spoil", "restart")),
        ({}, [act("lose", rank=0, copy=0)], ["losses (a copy is lost)"]),
        ({}, [act("repeat", rank=0, copy=0)], ["repeats (the end of a copy is reported twice)"]),
        ({}, [act("reset", running=False, connector=True)], ["reset (the connector's cache is reset)"]),
    ],
)
def test_what_a_schedule_needs_to_be_claimed(
    config: dict[str, Any], history: list[Action], needs: list[str]
) -> None:
    plain = Subject("X", traits=frozenset())
    assert selection.unclaimed(Schedule(plain, WorldConfig(**config), history)) == needs
    assert selection.unclaimed(Schedule(Subject("X"), WorldConfig(**config), history)) == []


# -- options ------------------------------------------------------------------------------------

RUN = {"actions": 80, "save": ".", "engine": "builtin"}


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("fuzz", {**RUN, "jobs": 1, "without": []}),
        (
            "fuzz --connector c --extra {} --traits t --seed 3 --seeds 1-2 --histories 4 --jobs 2 "
            "--actions 5 --log --perfetto f --save d --digest --without A,B --without C --engine e",
            {
                **{"connector": "c", "extra": "{}", "traits": "t", "seed": "3", "seeds": "1-2", "histories": 4},
                **{
                    "jobs": 2,
                    "actions": 5,
                    "log": True,
                    "perfetto": "f",
                    "save": "d",
                    "digest": True,
                    "engine": "e",
                },
                "without": ["A", "B", "C"],
            },
        ),
        ("replay-schedule f", {"file": "f"}),
        ("replay-schedule f --engine e --log", {"file": "f", "engine": "e", "log": True}),
        ("conform", {**RUN, "seed": "0", "without": []}),
        (
            "conform n --spec s --probe --histories 4 --seed 2 --actions 3 --without WORK",
            {
                **RUN,
                "without": ["WORK"],
                "name": "n",
                "spec": "s",
                "probe": True,
                "histories": 4,
                "seed": "2",
                "actions": 3,
            },
        ),
        ("growth n --extra {}", {"name": "n", "extra": "{}", "engine": "builtin", "without": []}),
        ("campaign --jobs 1", {**RUN, "seed": "0", "jobs": 1}),
        (
            "campaign --minutes 1.5 --histories 2 --jobs 3 --seed 7",
            {**RUN, "minutes": 1.5, "histories": 2, "jobs": 3, "seed": "7"},
        ),
        ("zoo --jobs 2", {"names": [], "jobs": 2, "seed": "0"}),
        ("zoo a b --list --jobs 2 --seed 4", {"names": ["a", "b"], "list": True, "jobs": 2, "seed": "4"}),
        ("subjects", {}),
    ],
)
def test_options_and_what_they_are_by_default(line: str, options: dict[str, Any]) -> None:
    """All that are not named are not given. Each command has a function and a usage of its own."""
    command = line.split()[0]
    typed = vars(parser_of(Names()).parse_args(line.split()))
    assert typed.pop("run") == command
    assert typed.pop("refuse").__self__.prog == f"kv-sim {command}"
    drives = {"call_timeout": 60.0} if command in ("fuzz", "conform", "growth", "replay-schedule") else {}
    assert {name: value for name, value in typed.items() if value is not None and value is not False} == {
        "command": command,
        **options,
        **drives,
    }


class Names(dict[str, Any]):
    """Of each command its name, in the place of a function."""

    def __missing__(self, name: str) -> str:
        return name


def test_there_is_a_process_for_each_core() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    for command in ("campaign", "zoo"):
        assert parser_of(Names()).parse_args([command]).jobs == cores


@pytest.mark.parametrize(("count", "jobs"), [(5, 5), (None, 1)])
def test_where_it_cannot_be_asked_which_cores_may_be_used_all_are(
    monkeypatch: pytest.MonkeyPatch, count: int | None, jobs: int
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert parser_of(Names()).parse_args(["campaign"]).jobs == jobs


def test_who_fails_without_its_medium_uses_it() -> None:
    """However it fails: it may look for the medium by itself."""
    name, extra = "broken_connectors:Fussy", {"spec_name": "There"}
    found = selection.choose_subject(name, json.dumps(extra), None, "builtin")
    assert found.extra_config == extra
