"""Drift: the differences between the installed vLLM's classes and ours, intended ones and others.

Two classes are compared by what a caller or a subclass relies on: the names of public members, whether they are
abstract, what they are (method, class method, property), and the names, kinds and optionality of parameters.
Fields are compared as parameters of the constructor. Enumerations are compared by their members. Annotations and
answers are not compared: they are in the docstrings. vLLM's classes must have what a connector may read from an
engine (``PROMISES``), and may have more. The contract, which is data, is compared with vLLM's class, too.

An intended difference is a row with a reason (``intended``). A row that matches no difference is reported, too, so
that the list stays right.
"""

import dis
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from kv_api.contract import CONTRACT, HMA_CONTRACT, Kind, Member
from kv_vllm.drift.intended import INTENDED, Intended
from kv_vllm.drift.pairs import CONNECTORS, LOOKED_FOR, PAIRS, PROMISES
from kv_vllm.installed import vllm_version


class _SomeDefault:
    """Stands for every default."""

    def __repr__(self) -> str:
        return ""


_SOME_DEFAULT: Final = _SomeDefault()


@dataclass(frozen=True)
class Difference:
    """One difference."""

    owner: str
    member: str
    aspect: str
    """``missing here``, ``missing there``, ``abstract``, ``kind``, ``parameters`` or ``members``."""
    detail: str

    def __str__(self) -> str:
        name = f"{self.owner}.{self.member}".rstrip(".")
        return f"{name}: {self.aspect}{': ' if self.detail else ''}{self.detail}"


def members_of(cls: type) -> dict[str, Any]:
    """The public members of a class, and its constructor, which has the fields as parameters."""
    fields = fields_of(cls)
    names = [name for name in dir(cls) if not name.startswith("_") and name not in fields]
    return {**{name: inspect.getattr_static(cls, name) for name in names}, "__init__": cls}


def fields_of(cls: type) -> Iterable[str]:
    """The fields of a data class, or of a struct of msgspec's."""
    fields: Iterable[str] = getattr(cls, "__dataclass_fields__", getattr(cls, "__struct_fields__", ()))
    return fields


def attributes_of(cls: type) -> set[str]:
    """The attributes of an instance: members, fields, and those that the constructor sets."""
    found = {*dir(cls), *fields_of(cls)}
    for base in cls.__mro__:
        code = getattr(vars(base).get("__init__"), "__code__", None)
        if code is not None:
            found.update(step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR")
    return found


def kind_of(member: Any) -> Kind:
    """The kind of a member."""
    return {classmethod: Kind.CLASSMETHOD, property: Kind.PROPERTY}.get(type(member), Kind.METHOD)


def parameters_of(member: Any) -> str:
    """The parameters of a method as text, without annotations and values of defaults."""
    function: Any = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # no function, or written in C
        return "()"
    empty = inspect.Parameter.empty
    kept = [
        p.replace(annotation=empty, default=empty if p.default is empty else _SOME_DEFAULT)
        for p in parameters
        if p.name not in ("self", "cls")
    ]
    return str(inspect.Signature(kept))


def compare(ours: Any, owner: str, theirs: Any) -> list[Difference]:
    """Compare two classes, or two functions."""
    if not isinstance(ours, type):
        return list(_compare_parameters(owner, "", ours, theirs))
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
    else:
        yield from _compare_parameters(owner, name, ours[1], theirs[1])


def _compare_parameters(owner: str, name: str, ours: Any, theirs: Any) -> Iterable[Difference]:
    mine, other = parameters_of(ours), parameters_of(theirs)
    if mine != other:
        yield Difference(owner, name, "parameters", f"{mine}, vLLM {other}")


def compare_promise(promised: type, owner: str, theirs: type) -> list[Difference]:
    """Compare a protocol with the class that must have all of it."""
    names = [name for name in (*vars(promised), *inspect.get_annotations(promised)) if not name.startswith("_")]
    return compare_attributes(names, owner, theirs)


def compare_attributes(names: Sequence[str], owner: str, theirs: type) -> list[Difference]:
    """The attributes in ``names`` that a class lacks."""
    there = attributes_of(theirs)
    return [Difference(owner, name, "missing there", "") for name in names if name not in there]


def compare_contract(rows: Sequence[Member], owner: str, theirs: type) -> list[Difference]:
    """Compare the contract's rows with vLLM's class."""
    there = members_of(theirs)
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


def all_differences(
    pairs: Sequence[tuple[str, str, str]],
    looked_for: Sequence[tuple[str, str, Sequence[str]]],
    show: Callable[[str], None],
) -> tuple[list[Difference], set[str]]:
    """Compare these pairs, if they are installed, the promises, the attributes looked for, and the contract.

    Returns the differences, and the names of all that was compared.
    """
    found: list[Difference] = []
    compared: set[str] = set()

    def with_vllms(
        owner: str, name: str, module: str, differences: Callable[[str, Any], list[Difference]]
    ) -> None:
        theirs = _find_in_vllm(name, module)
        if isinstance(theirs, str):
            found.append(Difference(owner, "", "missing there", theirs))
        else:
            compared.add(owner)
            found.extend(differences(owner, theirs))

    for name, module, vllm_module in pairs:
        if find_spec(module) is None:
            show(f"{module} isn't installed: {name} isn't compared")
        else:
            ours = getattr(import_module(module), name)
            with_vllms(name, name, vllm_module, partial(compare, ours))
    for promise, name, vllm_module in PROMISES:
        module, _, ours = promise.rpartition(".")
        promised = getattr(import_module(module), ours)
        with_vllms(f"promise of {ours}", name, vllm_module, partial(compare_promise, promised))
    for name, vllm_module, attributes in looked_for:
        with_vllms(f"looked for in {name}", name, vllm_module, partial(compare_attributes, attributes))
    for name, rows in (("KVConnectorBase_V1", CONTRACT), ("SupportsHMA", HMA_CONTRACT)):
        with_vllms(f"contract of {name}", name, CONNECTORS, partial(compare_contract, rows))
    return found, compared


def _find_in_vllm(name: str, module: str) -> Any:
    """The class or function; or, as text, why it can't be found."""
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        return str(error)


def judge(
    found: Sequence[Difference], intended: Sequence[Intended], version: tuple[int, int]
) -> tuple[list[tuple[Difference, str]], list[Difference], list[Intended]]:
    """Sort differences into intended ones, with their reasons, and others; with the rows that match none."""
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


def drift(
    show: Callable[[str], None],
    pairs: Sequence[tuple[str, str, str]] = PAIRS,
    looked_for: Sequence[tuple[str, str, Sequence[str]]] = LOOKED_FOR,
) -> bool:
    """Compare with the installed vLLM and show the differences. True: all of them are intended."""
    version = vllm_version()
    found, compared = all_differences(pairs, looked_for, show)
    intended = [row for row in INTENDED if row.owner in compared]
    explained, others, stale = judge(found, intended, version)
    show(f"vLLM {version[0]}.{version[1]}: {len(explained)} intended differences, {len(others)} others")
    for difference, reason in explained:
        show(f"  intended  {difference}  ({reason})")
    for difference in others:
        show(f"  DRIFT     {difference}")
    for row in stale:
        show(f"  STALE     {row.owner}.{row.member}: {row.aspect} is listed as intended, and doesn't differ")
    return not others and not stale
