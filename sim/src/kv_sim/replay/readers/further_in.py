"""Finds records within what a service wraps around its log when it is exported, and how jq gets at them."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from kv_sim.replay.readers.asked import json_in

_DEEPEST: Final = 8
_MOST_LOOKED_AT: Final = 8
"""Of a list whose items aren't alike, such as a time and a line."""


def way_to_records(value: Any, is_record: Callable[[Any], bool], deepest: int = _DEEPEST) -> list[str] | None:
    """The steps in which jq gets at the records that lie in a value; None: there are none so near."""
    found = json_in(value)
    steps = [] if found is value else ["fromjson"]
    if is_record(found):
        return steps
    ways = ((step, way_to_records(one, is_record, deepest - 1)) for step, one in _inner(found).items() if deepest)
    return next(([*steps, step, *way] for step, way in ways if way is not None), None)


def _inner(found: Any) -> Mapping[str, Any]:
    """What lies in a value, by the step to it."""
    if isinstance(found, dict):
        return {f".{name if name.isidentifier() else json.dumps(name)}": one for name, one in found.items()}
    if not isinstance(found, list) or not found:
        return {}
    if isinstance(found[0], (dict, list)) and all(type(one) is type(found[0]) for one in found):
        return {".[]": found[0]}
    return {f".[{place}]": one for place, one in enumerate(found[:_MOST_LOOKED_AT])}
