"""``Trace``: the events that one scheduler got and the calls that it made to its connector, as plain values.

A trace is a list of turns. A turn is one event (a request arrives, or the next turn of a session, a step is
scheduled, its output is processed, an abort, a reset) and the connector's calls that followed, in order, with
their answers. The events have everything that a scheduler can't decide itself: tokens, reports of the workers. So
a trace can be played to any scheduler, with the connector's answers, and it must make the same calls with the same
arguments.

The same function turns the arguments of both engines into plain values; it reads only attributes that ``kv_api``
promises. Sets become sorted lists and tables lists, so that traces can be compared and printed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

COMPARED: Final = frozenset(
    {
        "on_new_request",
        "get_num_new_matched_tokens",
        "get_loaded_kv_cache_group_ids",
        "update_state_after_alloc",
        "has_pending_block_frees",
        "build_connector_meta",
        "request_finished",
        "request_finished_all_groups",
        "update_connector_output",
        "reset_cache",
    }
)
"""The names of the calls in a trace."""

POOL_CALLS: Final = ("touch", "free_blocks", "evict_blocks")
"""The names of the pool's methods that change it from outside the scheduler."""


@dataclass(frozen=True)
class Add:
    """A request arrives."""

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    salt: str | None
    adapter: str | None
    skip_reading_prefix_cache: bool
    is_session: bool = False


@dataclass(frozen=True)
class NextTurn:
    """The next turn of a session arrives."""

    request_id: str
    prompt: tuple[int, ...]
    """The prompt of the next turn. Empty: the session is told to end."""
    max_tokens: int = 1


@dataclass(frozen=True)
class Schedule:
    """A step is scheduled."""

    step: int
    answer: bool = True
    """Whether the scheduler has work, and not only its connector."""
    keeps_room: bool = False
    """Whether a load waits that vLLM may begin, since requests before it need the blocks for their next chunks."""


@dataclass(frozen=True)
class Sampled:
    """What a request samples in a step."""

    tokens: tuple[int, ...]
    """As many tokens as the model samples; those after the request's last one are zeros that nobody uses."""
    ends: bool
    """Whether the request's last token is among them."""
    surplus: int = 0
    """How many tokens come after the last one: accepted drafts that are dropped."""


@dataclass(frozen=True)
class Process:
    """The output of a step comes back."""

    step: int
    sampled: dict[str, Sampled]
    report: dict[str, list[Any]]
    """The joined report of all workers."""
    shares_failed_blocks: bool = False
    """Whether several running requests share a block that a load failed to fill."""

    stops_preempted: bool = False
    """Whether a session that goes on stops while it is preempted, by the output of an earlier step."""

    is_told: bool = True
    """Whether the connector is told of the report: in one process not if the step computes and reports nothing."""

    @property
    def has_failed_loads(self) -> bool:
        """Whether a load is reported as failed."""
        return bool(self.report.get("invalid_block_ids") or self.report.get("failed_recving"))


@dataclass(frozen=True)
class Abort:
    """A request's client goes away."""

    request_id: str
    state: str
    """The state of the request at the abort."""


@dataclass(frozen=True)
class Reset:
    """``reset_prefix_cache``."""

    running: bool
    connector: bool
    answer: bool | None = None
    """None: the engine raised."""


@dataclass(frozen=True)
class Paused:
    """The engine pauses."""

    mode: Literal["abort", "wait", "keep"]


@dataclass(frozen=True)
class Resumed:
    """It goes on."""


Event = Add | NextTurn | Schedule | Process | Abort | Reset | Paused | Resumed


class PoolCall(NamedTuple):
    """A call of the pool of GPU blocks from outside the scheduler: by the connector, or by the world."""

    name: str
    blocks: tuple[int, ...]


class Call(NamedTuple):
    """One call of the connector."""

    name: str
    arguments: dict[str, Any]
    answer: Any
    pool_calls: tuple[PoolCall, ...] = ()
    """What was done to the pool meanwhile."""


@dataclass
class Turn:
    """An event, and the calls it led to."""

    event: Event
    calls: list[Call] = field(default_factory=list)


@dataclass
class Trace:
    """One history."""

    turns: list[Turn]
    all_groups: bool
    """The connector takes the end of requests for all groups at once (``SupportsHMA``)."""
    requires_delivery: bool
    cut_short_by: str | None = None
    """The violation that ended the history early, if any."""


def arguments_of(name: str, arguments: Sequence[Any]) -> dict[str, Any]:
    """Reduce the arguments of a call to plain values."""
    first = arguments[0] if arguments else None
    match name:
        case "on_new_request":
            return {**_request(first)}
        case "get_num_new_matched_tokens":
            return {**_request(first), "local": arguments[1]}
        case "get_loaded_kv_cache_group_ids":
            return {"request": first.request_id if first is not None else None}
        case "update_state_after_alloc":
            return {**_request(first), "blocks": _tables(arguments[1].get_block_ids()), "external": arguments[2]}
        case "build_connector_meta":
            return _step(first)
        case "request_finished":
            return {**_ended(first), "blocks": [list(arguments[1])]}
        case "request_finished_all_groups":
            return {**_ended(first), "blocks": _tables(arguments[1])}
        case "update_connector_output":
            return {"report": report_of(first)}
        case "has_pending_block_frees" | "reset_cache":
            return {}
    raise ValueError(f"unknown call {name!r}; known: {', '.join(sorted(COMPARED))}")


def report_of(output: Any) -> dict[str, list[Any]]:
    """The plain form of the workers' joined report; empty parts are left out."""
    names = ("finished_sending", "finished_recving", "failed_recving", "invalid_block_ids")
    return {name: sorted(value) for name in names if (value := getattr(output, name))}


def _request(request: Any) -> dict[str, Any]:
    return {
        "request": request.request_id,
        "tokens": request.num_tokens,
        "computed": request.num_computed_tokens,
        "hashes": len(request.block_hashes),
    }


def _ended(request: Any) -> dict[str, Any]:
    return {**_request(request), "status": request.status.name}


def _tables(tables: Iterable[Iterable[int]]) -> list[list[int]]:
    return [list(table) for table in tables]


def _step(output: Any) -> dict[str, Any]:
    cached = output.scheduled_cached_reqs
    return {
        "new": [
            {"request": r.req_id, "blocks": _tables(r.block_ids), "computed": r.num_computed_tokens}
            for r in output.scheduled_new_reqs
        ],
        "cached": [
            {
                "request": name,
                "new_blocks": None if new is None else _tables(new),
                "computed": computed,
                "output": output_tokens,
            }
            for name, new, computed, output_tokens in zip(
                cached.req_ids,
                cached.new_block_ids,
                cached.num_computed_tokens,
                cached.num_output_tokens,
                strict=True,
            )
        ],
        "resumed": sorted(cached.resumed_req_ids),
        "counts": dict(output.num_scheduled_tokens),
        "drafts": {name: len(tokens) for name, tokens in output.scheduled_spec_decode_tokens.items()},
        "finished": sorted(output.finished_req_ids),
        "preempted": sorted(output.preempted_req_ids or ()),
        "loads_in_step": output.has_sync_kv_loads,
    }
