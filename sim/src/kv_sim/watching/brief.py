"""``brief``: any value in a few words, the same in every run: no addresses, no quotes, sets in order.

Connectors pass around metadata of their own classes, whose fields are shown, except empty ones. Requests, block
tables and steps have short forms of their own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final

from kv_sim.engine.output import SchedulerOutput

MOST_ITEMS: Final = 8
MOST_DEPTH: Final = 6
DULL: Final = frozenset({"expected_finished_count"})
"""Fields that are the same in every step."""


def brief(value: Any, depth: int = 0) -> str:
    """A value in a few words."""
    if value is None or isinstance(value, (bool, int, float)):
        return str(value)
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.hex()[:8]
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, SchedulerOutput):
        return brief_step(value)
    if hasattr(value, "get_block_ids"):
        return "blocks " + brief_tables(value.get_block_ids())
    if isinstance(getattr(value, "request_id", None), str):
        return str(value.request_id)
    if depth >= MOST_DEPTH:
        return "…"
    return _container(value, depth + 1)


def _container(value: Any, depth: int) -> str:
    if isinstance(value, Mapping):
        return "{" + _items((f"{brief(k, depth)}: {brief(v, depth)}" for k, v in value.items()), len(value)) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + _items(sorted(brief(item, depth) for item in value), len(value)) + "}"
    if isinstance(value, tuple):
        return "(" + _items((brief(item, depth) for item in value), len(value)) + ")"
    if isinstance(value, list):
        return "[" + _items((brief(item, depth) for item in value), len(value)) + "]"
    if hasattr(value, "shape"):
        return f"array{tuple(value.shape)}"
    return type(value).__name__ + "(" + ", ".join(f"{k}={v}" for k, v in _fields(value, depth)) + ")"


def _items(texts: Iterable[str], count: int) -> str:
    shown = [text for _, text in zip(range(MOST_ITEMS), texts, strict=False)]
    return ", ".join(shown) + (f", … {count} in all" if count > MOST_ITEMS else "")


def _fields(value: Any, depth: int) -> Iterable[tuple[str, str]]:
    if is_dataclass(value):
        held = {field.name: getattr(value, field.name) for field in fields(value)}
    else:
        held = {name: item for name, item in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
    for name, item in held.items():
        if name in DULL:
            continue
        if item is not None and (not hasattr(item, "__len__") or len(item)):
            yield name, brief(item, depth)


def brief_tables(tables: Iterable[Iterable[int]]) -> str:
    """Block tables, a bracket for each group; the null block is a dot."""
    return " ".join("[" + " ".join(str(block) if block else "·" for block in table) + "]" for table in tables)


def brief_step(output: SchedulerOutput) -> str:
    """What a step does with each request."""
    counts, cached = output.num_scheduled_tokens, output.scheduled_cached_reqs
    parts = []
    if output.scheduled_new_reqs:
        new = [f"{r.req_id}+{counts[r.req_id]} after {r.num_computed_tokens}" for r in output.scheduled_new_reqs]
        parts.append("new " + ", ".join(new))
    if cached.req_ids:
        again = [
            f"{name}+{counts[name]}" + (" resumed" if name in cached.resumed_req_ids else "")
            for name in cached.req_ids
        ]
        parts.append("on " + ", ".join(again))
    if output.kv_cache_block_copies:
        copies = (f"{copy.src_block_id} into {copy.dst_block_id}" for copy in output.kv_cache_block_copies)
        parts.append("copies block " + ", ".join(copies))
    handed = output.kv_connector_block_state
    if handed is not None and handed.boundary_state_offloads:
        states = (
            f"block {block} of {name} after {tokens}"
            for name, offers in handed.boundary_state_offloads.items()
            for _, block, tokens in offers
        )
        parts.append("hands over " + ", ".join(states))
    for word, names in (("finished", output.finished_req_ids), ("preempted", output.preempted_req_ids)):
        if names:
            parts.append(f"{word} {', '.join(sorted(names))}")
    return "; ".join(parts) or "nothing to compute"
