"""Drift on made-up classes: each kind of difference is found, and an intended one is told apart."""

import inspect
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, make_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, Protocol

import pytest

import kv_api
import kv_factory
import kv_vllm
from kv_api import engine
from kv_api.contract import Kind, Member, Phase, Side
from kv_vllm.drift import compare as module
from kv_vllm.drift.compare import Difference, compare, compare_contract, compare_promise, judge, parameters_of
from kv_vllm.drift.intended import INTENDED, Intended
from kv_vllm.drift.pairs import INTERFACE, LOOKED_FOR, PAIRS, PROMISES


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
    assert {d.owner for d in compare(ours, "Ours", theirs)} <= {"Ours"}
    return [(d.member, d.aspect, d.detail) for d in compare(ours, "Ours", theirs)]


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
        ("store", lambda self, *, key: 0, ("store", "parameters", "(key), vLLM (*, key)")),
        ("store", lambda self, key, /: 0, ("store", "parameters", "(key), vLLM (key, /)")),
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
    assert found(here, there) == [("", "members", "['HIT', 'MISS', 'LATER'], vLLM ['HIT', 'MISS']")]
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
    assert compare_contract(ROWS, "Same", Same) == []
    changed = (ROWS[0]._replace(abstract=False), ROWS[1]._replace(kind=Kind.PROPERTY))
    changed = (*changed, ROWS[2]._replace(abstract=True), Member("drop", Side.WORKER, Phase.ANY, "0.33"))
    assert {d.owner for d in compare_contract(changed, "Same", Same)} == {"Same"}
    assert [(d.member, d.aspect, d.detail) for d in compare_contract(changed, "Same", Same)] == [
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


class Promised:
    """Stands for a protocol of ours."""

    @property
    def size(self): ...
    @property
    def length(self): ...

    load: int

    def _private(self): ...


@pytest.fixture
def installed(monkeypatch):
    """Stands for an installed vLLM, whose class `Theirs` is compared with `Ours`; a package of ours is missing."""
    base = SimpleNamespace(KVConnectorBase_V1=Same, SupportsHMA=Same)
    modules = {
        "here": SimpleNamespace(Ours=Ours, Renamed=Ours, Moved=Ours),
        "here.engine": SimpleNamespace(Promise=Promised),
        module.CONNECTORS: base,
    }
    monkeypatch.setattr(module, "PROMISES", ())
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "nowhere" else "found")

    def import_module(name):
        if name not in modules:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return modules[name]

    monkeypatch.setattr(module, "import_module", import_module)
    monkeypatch.setattr(module, "vllm_version", lambda: (0, 33))
    monkeypatch.setattr(module, "CONTRACT", ROWS)
    monkeypatch.setattr(module, "HMA_CONTRACT", ROWS)

    def compared(
        theirs, *intended, pairs=(("Ours", "here", "there"), ("Gone", "nowhere", "there")), looked_for=()
    ):
        modules["there"] = SimpleNamespace(Ours=theirs, Engine=theirs)
        monkeypatch.setattr(module, "INTENDED", intended)
        lines = []
        return module.drift(lines.append, pairs, looked_for), lines

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
    assert installed(Same, NOTHING_LIKE_IT, WHAT_STORE) == (
        False,
        [
            LEFT_OUT,
            "vLLM 0.33: 0 intended differences, 0 others",
            "  STALE     Ours.size: kind is listed as intended, and doesn't differ",
            "  STALE     Ours.store: parameters is listed as intended, and doesn't differ",
        ],
    )


def test_all_that_has_a_like_in_vllm_is_compared_if_nothing_else_is_said(monkeypatch):
    asked, lines = [], []
    monkeypatch.setattr(module, "vllm_version", lambda: (0, 33))
    monkeypatch.setattr(
        module, "all_differences", lambda pairs, names, show: asked.append((pairs, names)) or ([], ())
    )
    assert module.drift(lines.append)
    assert asked == [(PAIRS, LOOKED_FOR)]


def test_a_class_that_vllm_does_not_have_is_drift_and_the_others_are_compared(installed):
    pairs = (("Ours", "here", "there"), ("Renamed", "here", "there"), ("Moved", "here", "elsewhere"))
    not_stale = [Intended(name, "x", "kind", "on purpose") for name in ("Moved", "Renamed")]
    assert installed(More, WHAT_MORE, *not_stale, pairs=pairs) == (
        False,
        [
            "vLLM 0.33: 1 intended differences, 3 others",
            "  intended  Ours.get_more: missing here  (nobody needs it)",
            "  DRIFT     Ours.store: parameters: (key), vLLM (keys)",
            "  DRIFT     Renamed: missing there: 'types.SimpleNamespace' object has no attribute 'Renamed'",
            "  DRIFT     Moved: missing there: No module named 'elsewhere'",
        ],
    )


def test_without_vllms_class_the_contract_is_not_compared(installed, monkeypatch):
    monkeypatch.setattr(module, "CONNECTORS", "elsewhere")
    owners = ("contract of KVConnectorBase_V1", "contract of SupportsHMA")
    fine, lines = installed(Same, *[Intended(owner, "x", "kind", "on purpose") for owner in owners])
    assert not fine
    assert lines[2:] == [f"  DRIFT     {owner}: missing there: No module named 'elsewhere'" for owner in owners]


def test_what_a_connector_may_read_vllm_must_have(installed, monkeypatch):
    monkeypatch.setattr(
        module,
        "PROMISES",
        (("here.engine.Promise", "Engine", "there"), ("here.engine.Promise", "Engine", "elsewhere")),
    )
    fine, lines = installed(Same, pairs=())
    assert not fine
    assert lines == [
        "vLLM 0.33: 0 intended differences, 2 others",
        "  DRIFT     promise of Promise.length: missing there",
        "  DRIFT     promise of Promise: missing there: No module named 'elsewhere'",
    ]


class SetsIt:
    def __init__(self, size):
        self.size = size


class SetsMore(SetsIt):
    def __init__(self):
        super().__init__(1)
        self.length = 2

    def load(self): ...


class OnlyReadsIt:
    def __init__(self, config):
        self.length = config.size.load()


class Struct:
    """Stands for one of msgspec's."""

    __struct_fields__ = ("size", "length", "load")


@pytest.mark.parametrize(
    ("theirs", "missing"),
    [
        (SetsIt, ["length", "load"]),
        (SetsMore, []),
        (OnlyReadsIt, ["size", "load"]),
        (NamedTuple("Tuple", [("size", int), ("load", int)]), ["length"]),
        (make_dataclass("Data", ["length", "load", "more"]), ["size"]),
        (Struct, []),
        (dict, ["size", "length", "load"]),
    ],
)
def test_it_may_have_it_as_whatever_an_instance_has(theirs, missing):
    differences = compare_promise(Promised, "Promise", theirs)
    assert differences == [Difference("Promise", name, "missing there", "") for name in missing]


@pytest.mark.parametrize(("name", "owner"), [("CONTRACT", "KVConnectorBase_V1"), ("HMA_CONTRACT", "SupportsHMA")])
def test_the_contract_is_a_part_of_it(installed, monkeypatch, name, owner):
    monkeypatch.setattr(module, name, ROWS[1:])
    fine, lines = installed(Same)
    assert not fine
    assert lines[2:] == [f"  DRIFT     contract of {owner}.load: missing here"]


@dataclass
class Fields:
    size: int
    length: int = 0

    def load(self): ...


class Written:
    def __init__(self, size, length=0): ...
    def load(self): ...


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        (Fields, []),
        (Written, []),
        (
            make_dataclass("Other", ["size", "length"], namespace={"load": Fields.load}),
            [("__init__", "parameters", "(size, length=), vLLM (size, length)")],
        ),
        (
            make_dataclass("Other", [("more", int, 0)], bases=(Fields,)),
            [("__init__", "parameters", "(size, length=), vLLM (size, length=, more=)")],
        ),
    ],
)
def test_fields_are_parameters_of_the_constructor(theirs, expected):
    assert found(theirs, Fields) == expected


def test_functions_are_compared_by_their_parameters():
    assert found(lambda one, more=1: 0, lambda one, more=2: 1) == []
    assert found(lambda one: 0, lambda one, more=2: 1) == [("", "parameters", "(one, more=), vLLM (one)")]


def test_what_has_no_signature_has_no_parameters():
    assert parameters_of(type("Some", (), {"size": 3}).__dict__["size"]) == "()"
    assert parameters_of(dict.update) == "()"
    assert parameters_of(property(lambda self, more=1: 0)) == "(more=)"


OURS_ALONE = {
    *("KVError", "ConfigError", "UnknownNameError", "WrongSideError", "RemovedKeyWarning", "KVTransferStateError"),
    *("TwoSidedConnector", "TwoSidedHMAConnector", "SchedulerSide", "WorkerSide"),
    *("AttentionKind", "ConfigInfo", "Direction", "PrefixLookup", "Offer", "Target"),
    *("forbid_module_paths", "module_paths_allowed", "isolated"),
}
"""What has no counterpart in vLLM."""
OF_OLD = {"KVConnectorBase"}
"""The connectors of generation 0, which vLLM has no more."""
NO_CLASS_THERE = {"CopyBlocksOp"}
"""Protocols of which vLLM has a type, and no class."""
ANYTHING = {"Tensor", "AttentionMetadata"}


def is_protocol(value):
    return getattr(value, "_is_protocol", False) and value is not Protocol


def exported(package):
    found = {name: getattr(package, name) for name in package.__all__}
    return {name for name, value in found.items() if inspect.isclass(value) or inspect.isfunction(value)}


def test_all_that_is_exported_is_compared_or_ours_alone():
    promised = {name.rpartition(".")[2] for name, _, _ in PROMISES}
    compared = {name for name, module, _ in PAIRS if module in ("kv_api", "kv_factory")} | promised
    rest = OURS_ALONE | OF_OLD | NO_CLASS_THERE | ANYTHING
    names = exported(kv_api) | exported(kv_factory) | promised
    assert {name for name in names if name[0].isupper() or name in exported(kv_factory)} == compared | rest
    assert not compared & rest


def test_all_that_an_engine_has_is_promised():
    protocols = {f"kv_api.engine.{name}" for name, value in vars(engine).items() if is_protocol(value)}
    of_output = {"kv_api.output.ModelRunnerOutput"}
    assert protocols - {"kv_api.engine.CopyBlocksOp"} == {name for name, _, _ in PROMISES} - of_output


def test_what_is_looked_for_is_compared(installed):
    looked_for = [("Ours", "there", ("store", "length", "size")), ("Gone", "there", ("store",))]
    fine, lines = installed(Same, looked_for=looked_for)
    assert not fine
    assert [line for line in lines if "looked" in line] == [
        "  DRIFT     looked for in Ours.length: missing there",
        "  DRIFT     looked for in Gone: missing there: 'types.SimpleNamespace' object has no attribute 'Gone'",
    ]


ASKED = re.compile(r'getattr\([\w.]+(?:\([^()]*\))?, "(\w+)", ')
OF_OTHERS = {
    *(
        "hands_over_states",
        "kind",
        "page_size_bytes",
        "replicated_layout",
        "sliding_window",
    ),  # other engines' specs
    *("enable_kv_cache_events", "hisparse_config"),  # parts of vLLM's configuration that it may lack
    *(
        "__name__",
        "_vllm_config",
        "extra_keys",
        "kv_transfer_config",
        "let_go",
        "limit_chunks",
        "name",
        "num_chunks",
        "supports_sleep_mode",
        "take_counts",
    ),  # ours
}
"""Asked for with a default, and not of one of these classes."""


def test_all_that_is_looked_for_is_listed():
    """In the sources of the connectors: what they ask for with a default, and no name that they don't have."""
    files = [Path(str(import_module(f"kv_api.{name}").__file__)) for name in ("blocks", "groups")]
    files.append(Path(kv_vllm.__file__).parent / "refused.py")
    for package in ("kv_offload", "kv_p2p", "kv_multi", "kv_vllm.connectors"):
        files += Path(import_module(package).__path__[0]).rglob("*.py")
    sources = [file.read_text(encoding="utf-8") for file in files]
    asked = {name for source in sources for name in ASKED.findall(source)}
    assert len(asked) > 20
    listed = {name for _, _, names in LOOKED_FOR for name in names}
    assert asked - OF_OTHERS <= listed
    assert {name for name in listed if not any(name in source for source in sources)} == set()


def test_the_interface_is_what_vllm_calls_and_is_handed():
    """A server refuses a vLLM in which any of it differs."""
    assert {name for name, _, _ in INTERFACE} >= {"KVConnectorBase_V1", "SupportsHMA", "MultiConnector"}
    assert set(INTERFACE) < set(PAIRS)


def test_the_list_is_in_order():
    assert len(set(INTENDED)) == len(INTENDED)
    assert {row.before for row in INTENDED if row.reason == "new in 0.33"} == {(0, 33)}
    assert len({name for name, _, _ in PAIRS}) == len(PAIRS)
    owners = {name for name, _, _ in PAIRS}
    assert len({name for name, _, _ in PROMISES}) == len(PROMISES)
    assert all(row.owner.removeprefix("contract of ") in owners and row.reason for row in INTENDED)
