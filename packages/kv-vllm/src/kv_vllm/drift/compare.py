"""Drift: where the installed vLLM's classes and ours are not the same, told apart into intended and not.

Two classes are compared by what a caller or a subclass relies on: the names of public members, whether they are
abstract, what they are (method, class method, property), and the names, kinds and optionality of parameters.
Enumerations are compared by their members. Annotations and answers are not compared: they live in the docstrings.
The contract, which is data, is compared with vLLM's class as well.

An intended difference is a row with a reason (``intended``). A row that matches nothing is reported too, or
the list would rot.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from kv_api.contract import CONTRACT, HMA_CONTRACT, Kind, Member
from kv_vllm.drift.intended import INTENDED, Intended
from kv_vllm.installed import vllm_version

_V1: Final = "vllm.distributed.kv_transfer.kv_connector.v1"
_OFFLOAD: Final = "vllm.v1.kv_offload.base"

PAIRS: Final[tuple[tuple[str, str, str], ...]] = (
    ("KVConnectorBase_V1", "kv_api", f"{_V1}.base"),
    ("SupportsHMA", "kv_api", f"{_V1}.base"),
    ("KVConnectorTransferResults", "kv_api", f"{_V1}.base"),
    ("KVConnectorWorkerMetadata", "kv_api", f"{_V1}.base"),
    ("KVConnectorStats", "kv_api", f"{_V1}.metrics"),
    ("KVConnectorOutput", "kv_api", "vllm.v1.outputs"),
    ("MultiConnector", "kv_multi", f"{_V1}.multi_connector"),
    ("OffloadingManager", "kv_api", _OFFLOAD),
    ("OffloadingWorker", "kv_api", _OFFLOAD),
    ("OffloadingSpec", "kv_api", _OFFLOAD),
    ("GPULoadStoreSpec", "kv_api", _OFFLOAD),
    ("PrepareStoreOutput", "kv_api", _OFFLOAD),
    ("RequestOffloadingContext", "kv_api", _OFFLOAD),
    ("OffloadingEvent", "kv_api", _OFFLOAD),
    ("TransferResult", "kv_api", _OFFLOAD),
    ("LookupResult", "kv_api", _OFFLOAD),
    ("OffloadPolicy", "kv_api", _OFFLOAD),
)
"""A class, our module and vLLM's."""


_STARS: Final[dict[Any, str]] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


@dataclass(frozen=True)
class Difference:
    """One thing that isn't the same."""

    owner: str
    member: str
    aspect: str
    """``missing here``, ``missing there``, ``abstract``, ``kind``, ``parameters`` or ``members``."""
    detail: str

    def __str__(self) -> str:
        name = f"{self.owner}.{self.member}".rstrip(".")
        return f"{name}: {self.aspect}{': ' if self.detail else ''}{self.detail}"


def members_of(cls: type) -> dict[str, Any]:
    """The public members of a class, and its constructor."""
    names = (name for name in dir(cls) if name == "__init__" or not name.startswith("_"))
    return {name: inspect.getattr_static(cls, name) for name in names}


def kind_of(member: Any) -> Kind:
    """What a member is."""
    return {classmethod: Kind.CLASSMETHOD, property: Kind.PROPERTY}.get(type(member), Kind.METHOD)


def parameters_of(member: Any) -> list[str]:
    """The parameters of a method, with ``*`` or ``**`` in front, and ``=`` behind what is optional."""
    function: Any = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # no function, or written in C
        return []
    return [
        f"{_STARS.get(p.kind, '')}{p.name}{'' if p.default is inspect.Parameter.empty else '='}"
        for p in parameters
        if p.name not in ("self", "cls")
    ]


def compare(owner: str, ours: type, theirs: type) -> list[Difference]:
    """Compare two classes."""
    if issubclass(ours, Enum) and issubclass(theirs, Enum):
        mine, other = ([member.name for member in cls] for cls in (ours, theirs))
        same = set(mine) == set(other)
        return [] if same else [Difference(owner, "", "members", f"{mine}, vLLM {other}")]
    here, there = members_of(ours), members_of(theirs)
    found = [Difference(owner, name, "missing here", "") for name in there if name not in here]
    found += [Difference(owner, name, "missing there", "") for name in here if name not in there]
    for name in (name for name in here if name in there):
        found += _compare_member(owner, name, (ours, here[name]), (theirs, there[name]))
    return found


def _compare_member(
    owner: str, name: str, ours: tuple[type, Any], theirs: tuple[type, Any]
) -> Iterable[Difference]:
    abstract = [name in getattr(cls, "__abstractmethods__", ()) for cls, _ in (ours, theirs)]
    if abstract[0] != abstract[1]:
        yield Difference(owner, name, "abstract", "only here" if abstract[0] else "only in vLLM")
    here, there = kind_of(ours[1]), kind_of(theirs[1])
    if here is not there:
        yield Difference(owner, name, "kind", f"{here.value}, vLLM {there.value}")
    elif (mine := parameters_of(ours[1])) != (other := parameters_of(theirs[1])):
        yield Difference(owner, name, "parameters", f"({', '.join(mine)}), vLLM ({', '.join(other)})")


def compare_contract(owner: str, rows: Sequence[Member], theirs: type) -> list[Difference]:
    """Compare the contract's rows with vLLM's class."""
    owner, there = f"contract of {owner}", members_of(theirs)
    there.pop("__init__", None)
    names = {row.name for row in rows}
    found = [Difference(owner, name, "missing here", "") for name in there if name not in names]
    for row in rows:
        if row.name not in there:
            found.append(Difference(owner, row.name, "missing there", f"since {row.since}"))
            continue
        if row.kind is not (kind := kind_of(there[row.name])):
            found.append(Difference(owner, row.name, "kind", f"{row.kind.value}, vLLM {kind.value}"))
        if row.abstract != (row.name in theirs.__abstractmethods__):  # type: ignore[attr-defined]
            found.append(Difference(owner, row.name, "abstract", "only here" if row.abstract else "only in vLLM"))
    return found


def all_differences(show: Callable[[str], None]) -> tuple[list[Difference], set[str]]:
    """Compare everything that is installed; returns what differs, and what was not compared."""
    found, left_out = [], set()
    for name, module, vllm_module in PAIRS:
        if find_spec(module) is None:
            show(f"{module} isn't installed: {name} isn't compared")
            left_out.add(name)
            continue
        theirs = _class_of_vllm(name, vllm_module)
        if isinstance(theirs, str):
            found.append(Difference(name, "", "missing there", theirs))
            left_out.add(name)
        else:
            found += compare(name, getattr(import_module(module), name), theirs)
    for name, rows in (("KVConnectorBase_V1", CONTRACT), ("SupportsHMA", HMA_CONTRACT)):
        theirs = _class_of_vllm(name, f"{_V1}.base")
        if isinstance(theirs, str):
            left_out.add(f"contract of {name}")  # that the class is missing is said above
        else:
            found += compare_contract(name, rows, theirs)
    return found, left_out


def _class_of_vllm(name: str, module: str) -> type | str:
    """The class, or why there is none."""
    try:
        found: type = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        return str(error)
    return found


def judge(
    found: Sequence[Difference], intended: Sequence[Intended], version: tuple[int, int]
) -> tuple[list[tuple[Difference, str]], list[Difference], list[Intended]]:
    """Tell intended differences, with their reasons, from others; and the rows that match nothing."""
    rows = [row for row in intended if row.holds_for(version)]
    explained, others, used = [], [], set()
    for difference in found:
        what = (difference.owner, difference.member, difference.aspect)
        row = next((row for row in rows if row.what == what), None)
        if row is None:
            others.append(difference)
        else:
            used.add(row)
            explained.append((difference, row.reason))
    return explained, others, [row for row in rows if row not in used]


def drift(show: Callable[[str], None]) -> bool:
    """Compare with the installed vLLM and show what differs. True: nothing but what is intended."""
    version = vllm_version()
    found, left_out = all_differences(show)
    intended = [row for row in INTENDED if row.owner not in left_out]
    explained, others, stale = judge(found, intended, version)
    show(f"vLLM {version[0]}.{version[1]}: {len(explained)} intended differences, {len(others)} others")
    for difference, reason in explained:
        show(f"  intended  {difference}  ({reason})")
    for difference in others:
        show(f"  DRIFT     {difference}")
    for row in stale:
        show(f"  STALE     {row.owner}.{row.member}: {row.aspect} is listed as intended, and doesn't differ")
    return not others and not stale
