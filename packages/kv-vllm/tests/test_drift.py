"""Drift on made-up classes: each kind of difference is found, and an intended one is told apart."""

from abc import ABC, abstractmethod
from enum import Enum
from types import SimpleNamespace

import pytest

from kv_api.contract import Kind, Member, Phase, Side
from kv_vllm.drift import compare as module
from kv_vllm.drift.compare import PAIRS, Difference, compare, compare_contract, judge, parameters_of
from kv_vllm.drift.intended import INTENDED, Intended


class Ours(ABC):
    def __init__(self, config, cache=None): ...
    @abstractmethod
    def load(self, key, *, wait=False): ...
    def store(self, key): ...
    @property
    def size(self): ...
    @classmethod
    def make(cls, config): ...
    def _private(self): ...


class Same(ABC):
    def __init__(self, config, cache=None): ...
    @abstractmethod
    def load(self, key, *, wait=True): ...
    def store(self, key): ...
    @property
    def size(self): ...
    @classmethod
    def make(cls, config): ...
    def _other(self, one): ...


def found(theirs, ours=Ours):
    assert {d.owner for d in compare("Ours", ours, theirs)} <= {"Ours"}
    return [(d.member, d.aspect, d.detail) for d in compare("Ours", ours, theirs)]


def test_the_same_interface_has_no_drift():
    assert found(Same) == []
    assert found(Difference, Difference) == []  # nor has one in which nothing could be abstract


@pytest.mark.parametrize(
    ("name", "theirs", "expected"),
    [
        ("store", None, ("store", "missing there", "")),
        ("drop", lambda self: 0, ("drop", "missing here", "")),
        ("load", lambda self, key, *, wait=False: 0, ("load", "abstract", "only here")),
        ("store", abstractmethod(lambda self, key: 0), ("store", "abstract", "only in vLLM")),
        ("store", classmethod(lambda cls, key: 0), ("store", "kind", "method, vLLM classmethod")),
        ("store", lambda self, keys: 0, ("store", "parameters", "(key), vLLM (keys)")),
        ("store", lambda self, key, *rest, **more: 0, ("store", "parameters", "(key), vLLM (key, *rest, **more)")),
        ("make", classmethod(lambda cls: 0), ("make", "parameters", "(config), vLLM ()")),
        (
            "__init__",
            lambda self, config, cache: 0,
            ("__init__", "parameters", "(config, cache=), vLLM (config, cache)"),
        ),
    ],
)
def test_each_difference_is_found(name, theirs, expected):
    body = {key: value for key, value in vars(Same).items() if not key.startswith("_") or key == "__init__"}
    body.pop(name, None)
    if theirs is not None:
        body[name] = theirs
    assert found(type("Theirs", (ABC,), body)) == [expected]


def test_enumerations_are_compared_by_their_members():
    here, there = Enum("Here", ["HIT", "MISS"]), Enum("There", ["HIT", "MISS", "LATER"])
    assert found(here, here) == []
    assert found(Enum("There", ["MISS", "HIT"]), here) == []
    assert found(there, here) == [("", "members", "['HIT', 'MISS'], vLLM ['HIT', 'MISS', 'LATER']")]
    assert ("HIT", "missing here", "") in found(here, Same)  # an enumeration and none are as different as any
    assert ("load", "missing there", "") in found(here, Same)
    assert ("load", "missing here", "") in found(Same, here)


ROWS = (
    Member("load", Side.WORKER, Phase.BEGIN, "0.9", abstract=True),
    Member("store", Side.WORKER, Phase.BEGIN, "0.9"),
    Member("size", Side.BOTH, Phase.ANY, "0.9", kind=Kind.PROPERTY),
    Member("make", Side.CLASS, Phase.START, "0.9", kind=Kind.CLASSMETHOD),
)


def test_the_contract_is_compared_too():
    assert compare_contract("Same", ROWS, Same) == []
    changed = (ROWS[0]._replace(abstract=False), ROWS[1]._replace(kind=Kind.PROPERTY))
    changed = (*changed, ROWS[2]._replace(abstract=True), Member("drop", Side.WORKER, Phase.ANY, "0.33"))
    assert {d.owner for d in compare_contract("Same", changed, Same)} == {"contract of Same"}
    assert [(d.member, d.aspect, d.detail) for d in compare_contract("Same", changed, Same)] == [
        ("make", "missing here", ""),
        ("load", "abstract", "only in vLLM"),
        ("store", "kind", "property, vLLM method"),
        ("size", "abstract", "only here"),
        ("drop", "missing there", "since 0.33"),
    ]


def test_intended_differences_are_told_apart_and_rows_that_match_nothing_are_reported():
    differences = [Difference("A", "x", "kind", "1"), Difference("A", "y", "kind", "2")]
    rows = [
        Intended("A", "x", "kind", "on purpose"),
        Intended("A", "y", "kind", "only once", before=(0, 33)),
        Intended("A", "z", "kind", "was so"),
    ]
    assert judge(differences, rows, (0, 33)) == ([(differences[0], "on purpose")], [differences[1]], [rows[2]])
    explained, others, stale = judge(differences, rows, (0, 32))
    assert ([reason for _, reason in explained], others, stale) == (["on purpose", "only once"], [], [rows[2]])


@pytest.fixture
def installed(monkeypatch):
    """Stands for an installed vLLM, whose class `Theirs` is compared with `Ours`; a package of ours is missing."""
    base = SimpleNamespace(KVConnectorBase_V1=Same, SupportsHMA=Same)
    modules = {"here": SimpleNamespace(Ours=Ours), module._V1 + ".base": base}
    monkeypatch.setattr(module, "PAIRS", (("Ours", "here", "there"), ("Gone", "nowhere", "there")))
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "nowhere" else "found")

    def import_module(name):
        if name not in modules:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return modules[name]

    monkeypatch.setattr(module, "import_module", import_module)
    monkeypatch.setattr(module, "vllm_version", lambda: (0, 33))
    monkeypatch.setattr(module, "CONTRACT", ROWS)
    monkeypatch.setattr(module, "HMA_CONTRACT", ROWS)

    def compared(theirs, *intended):
        modules["there"] = SimpleNamespace(Ours=theirs)
        monkeypatch.setattr(module, "INTENDED", intended)
        lines = []
        return module.drift(lines.append), lines

    return compared


class More(Same):
    def get_more(self): ...
    def store(self, keys): ...


WHAT_MORE = Intended("Ours", "get_more", "missing here", "nobody needs it")
WHAT_STORE = Intended("Ours", "store", "parameters", "ours are better")
OF_THE_MISSING = Intended("Gone", "x", "kind", "it is gone")
NOTHING_LIKE_IT = Intended("Ours", "size", "kind", "was so")
LEFT_OUT = "nowhere isn't installed: Gone isn't compared"


def test_what_is_printed_and_what_fails(installed):
    assert installed(Same, OF_THE_MISSING) == (True, [LEFT_OUT, "vLLM 0.33: 0 intended differences, 0 others"])
    assert installed(More, WHAT_MORE, WHAT_STORE) == (
        True,
        [
            LEFT_OUT,
            "vLLM 0.33: 2 intended differences, 0 others",
            "  intended  Ours.get_more: missing here  (nobody needs it)",
            "  intended  Ours.store: parameters: (key), vLLM (keys)  (ours are better)",
        ],
    )
    assert installed(More, WHAT_STORE) == (
        False,
        [
            LEFT_OUT,
            "vLLM 0.33: 1 intended differences, 1 others",
            "  intended  Ours.store: parameters: (key), vLLM (keys)  (ours are better)",
            "  DRIFT     Ours.get_more: missing here",
        ],
    )
    assert installed(Same, NOTHING_LIKE_IT) == (
        False,
        [
            LEFT_OUT,
            "vLLM 0.33: 0 intended differences, 0 others",
            "  STALE     Ours.size: kind is listed as intended, and doesn't differ",
        ],
    )


def test_a_class_that_vllm_does_not_have_is_drift_and_the_others_are_compared(installed, monkeypatch):
    pairs = (("Moved", "here", "elsewhere"), ("Renamed", "here", "there"), ("Ours", "here", "there"))
    monkeypatch.setattr(module, "PAIRS", pairs)
    not_stale = [Intended(name, "x", "kind", "on purpose") for name in ("Moved", "Renamed")]
    assert installed(More, WHAT_MORE, *not_stale) == (
        False,
        [
            "vLLM 0.33: 1 intended differences, 3 others",
            "  intended  Ours.get_more: missing here  (nobody needs it)",
            "  DRIFT     Moved: missing there: No module named 'elsewhere'",
            "  DRIFT     Renamed: missing there: 'types.SimpleNamespace' object has no attribute 'Renamed'",
            "  DRIFT     Ours.store: parameters: (key), vLLM (keys)",
        ],
    )


def test_without_vllms_class_the_contract_is_not_compared(installed, monkeypatch):
    monkeypatch.setattr(module, "_V1", "elsewhere")
    owners = ("contract of KVConnectorBase_V1", "contract of SupportsHMA")
    fine, lines = installed(Same, *[Intended(owner, "x", "kind", "on purpose") for owner in owners])
    assert (fine, lines) == (True, [LEFT_OUT, "vLLM 0.33: 0 intended differences, 0 others"])


@pytest.mark.parametrize(("name", "owner"), [("CONTRACT", "KVConnectorBase_V1"), ("HMA_CONTRACT", "SupportsHMA")])
def test_the_contract_is_a_part_of_it(installed, monkeypatch, name, owner):
    monkeypatch.setattr(module, name, ROWS[1:])
    fine, lines = installed(Same)
    assert not fine
    assert lines[2:] == [f"  DRIFT     contract of {owner}.load: missing here"]


def test_what_has_no_signature_has_no_parameters():
    assert parameters_of(type("Some", (), {"size": 3}).__dict__["size"]) == []
    assert parameters_of(dict.update) == []
    assert parameters_of(property(lambda self, more=1: 0)) == ["more="]


def test_the_list_is_in_order():
    assert len(set(INTENDED)) == len(INTENDED)
    assert len({name for name, _, _ in PAIRS}) == len(PAIRS)
    owners = {name for name, _, _ in PAIRS}
    assert all(row.owner.removeprefix("contract of ") in owners and row.reason for row in INTENDED)
