"""Drift on made-up classes: each kind of difference is found, and an intended one is told apart."""

from abc import ABC, abstractmethod
from enum import Enum

import pytest

from kv_api.contract import Kind, Member, Phase, Side
from kv_vllm.drift import PAIRS, Difference, compare, compare_contract, judge
from kv_vllm.drift_intended import INTENDED, Intended


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
    return [(d.member, d.aspect, d.detail) for d in compare("Ours", ours, theirs)]


def test_the_same_interface_has_no_drift():
    assert found(Same) == []


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


ROWS = (
    Member("load", Side.WORKER, Phase.BEGIN, "0.9", abstract=True),
    Member("store", Side.WORKER, Phase.BEGIN, "0.9"),
    Member("size", Side.BOTH, Phase.ANY, "0.9", kind=Kind.PROPERTY),
    Member("make", Side.CLASS, Phase.START, "0.9", kind=Kind.CLASSMETHOD),
)


def test_the_contract_is_compared_too():
    assert compare_contract("Same", ROWS, Same) == []
    changed = (ROWS[0]._replace(abstract=False), ROWS[1]._replace(kind=Kind.PROPERTY), *ROWS[2:])
    changed = (*changed[:3], Member("drop", Side.WORKER, Phase.ANY, "0.33"))
    assert [(d.member, d.aspect, d.detail) for d in compare_contract("Same", changed, Same)] == [
        ("make", "missing here", ""),
        ("load", "abstract", "only in vLLM"),
        ("store", "kind", "property, vLLM method"),
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


def test_the_list_is_in_order():
    assert len(set(INTENDED)) == len(INTENDED)
    assert len({name for name, _, _ in PAIRS}) == len(PAIRS)
    owners = {name for name, _, _ in PAIRS}
    assert all(row.owner.removeprefix("contract of ") in owners and row.reason for row in INTENDED)
