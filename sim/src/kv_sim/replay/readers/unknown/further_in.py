"""Finds records within what a service wraps around its log when it is exported, and how jq gets at them."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.answered import answer_in
from kv_sim.replay.readers.chats.chat import is_conversation
from kv_sim.replay.readers.chats.usual import PROMPTS
from kv_sim.replay.readers.fields import dates_in
from kv_sim.replay.readers.json_values import json_in, object_in
from kv_sim.replay.readers.unknown.likely_columns import are_records as by_name

_DEEPEST: Final = 8
_MOST_LOOKED_AT: Final = 8
"""Of a list whose items aren't alike, such as a time and a line."""
_BARE: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
"""A name that jq takes without quotes."""


def way_to_records(
    value: Any, is_record: Callable[[Any], bool], are_records: Callable[[Any], bool], deepest: int = _DEEPEST
) -> list[str] | None:
    """The steps in which jq gets at the records that lie in a value; None: there are none so near."""
    found = json_in(value)
    steps = [] if found is value else ["fromjson"]
    if is_record(found):
        return steps
    if (renamed := _renamed(found, is_record)) is not None:
        return [*steps, *renamed]
    inner = _inner(found) if deepest else {}
    ways = ((step, way_to_records(one, is_record, are_records, deepest - 1)) for step, one in inner.items())
    way = next(([*steps, step, *way] for step, way in ways if way is not None), None)
    return [*steps, ".[]"] if way is None and deepest and are_records(found) else way


def step_to(name: str) -> str:
    """The step in which jq gets at a field."""
    return f".{name if _BARE.fullmatch(name) else json.dumps(name)}"


def is_mere_body(found: Mapping[str, Any]) -> bool:
    """Whether it is only what an API was asked, and no record of a log, which has a time, or a conversation."""
    return not dates_in(found) and not found.keys().isdisjoint(PROMPTS) and not is_conversation(found)


def _renamed(found: Any, is_record: Callable[[Any], bool]) -> list[str] | None:
    """The steps that call what an API was asked, and its answer, as a log does: beside them may be the time."""
    if not isinstance(found, dict) or len(found) < 2:
        return None
    inner = {name: object_in(value) or {} for name, value in found.items()}
    asked = [name for name, one in inner.items() if is_mere_body(one) and is_record({"request_body": one})]
    if not asked:
        return None
    answers = [name for name, one in inner.items() if name not in asked and answer_in({"response_body": one})]
    names = zip(("request_body", "response_body"), (asked[0], *answers), strict=False)
    return [f".{name} = {step_to(old)}" for name, old in names if name != old]


def _inner(found: Any) -> Mapping[str, Any]:
    """What lies in a value, by the step to it."""
    if isinstance(found, dict) and by_name(found):
        return {".[]": next(iter(found.values()))}
    if isinstance(found, dict):
        return {step_to(name): one for name, one in found.items()}
    if not isinstance(found, list) or not found:
        return {}
    if isinstance(found[0], (dict, list)) and all(type(one) is type(found[0]) for one in found):
        return {".[]": found[0]}
    return {f".[{place}]": one for place, one in enumerate(found[:_MOST_LOOKED_AT])}
