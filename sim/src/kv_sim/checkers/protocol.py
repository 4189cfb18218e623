"""PROTOCOL: a connector's answers and reports are those that the contract allows.

An answer to a match is a number of tokens within the request, and never an asynchronous load of 0 tokens. The end
of a load is reported once, for a request whose load was announced; the end of a store once, for a request that is
held. Blocks that a load didn't fill are reported while the load is under way: later they may be blocks of requests
whose loads succeeded. A failed load is reported while it is under way, too: later the engine would take the
request's next load for the failed one. And a connector must not change the step (``SchedulerOutput``). A real
engine asserts some of these, and silently frees the wrong blocks on others.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Final, Protocol

import numpy as np

from kv_api import KVConnectorOutput, KVConnectorTransferResults
from kv_sim.checkers.answers import is_count, shown
from kv_sim.engine.output import SchedulerOutput, Step
from kv_sim.engine.request import SimRequest
from kv_sim.memory.shadow import Shadow
from kv_sim.violation import Invariant, Referee


class KnowsRequests(Protocol):
    """The part of a scheduler that is used here."""

    @property
    def requests(self) -> Mapping[str, SimRequest]:
        """The requests that it has not forgotten, by id."""
        ...


_NO_REQUEST: Final = "but the engine has no such request any more"


def check_match(request: SimRequest, local: int, answer: object, referee: Referee) -> tuple[int | None, bool]:
    """Check an answer of ``get_num_new_matched_tokens``, and return a legal one."""

    def refuse(why: str) -> tuple[int, bool]:
        asked = f"request {request.request_id}: get_num_new_matched_tokens(…, {local})"
        referee.fail(Invariant.PROTOCOL, f"{asked} answered {shown(answer)}, {why}")
        return 0, False

    if not (isinstance(answer, tuple) and len(answer) == 2):
        is_list = isinstance(answer, list)
        return refuse(f"which is no {'tuple' if is_list else 'pair'} (tokens, is asynchronous)")
    count, is_async = answer
    if not isinstance(is_async, bool):
        return refuse("whose second part is neither True nor False")
    if count is None:
        return (None, False) if not is_async else refuse("which is 'ask again' and asynchronous at once")
    if not is_count(count):
        return refuse("whose first part is neither an int of 0 or more nor None")
    if count == 0 and is_async:
        return refuse("which is an asynchronous load of 0 tokens")
    most = request.num_tokens - local - (0 if is_async else 1)
    if count > most:
        leaves = "" if is_async else ": a load within the step leaves a token to compute"
        return refuse(f"but at most {most} of its {request.num_tokens} tokens can be loaded{leaves}")
    return count, is_async


def check_reports(scheduler: KnowsRequests, results: KVConnectorTransferResults, referee: Referee) -> None:
    """Check the joined report of ended transfers, and remove illegal entries."""
    for request_id in sorted(results.finished_recving):
        request = scheduler.requests.get(request_id)
        if request is None or not request.awaits_load:
            referee.fail(
                Invariant.PROTOCOL,
                f"request {request_id}: finished_recving reports the end of its load, "
                + (_NO_REQUEST if request is None else "but none is under way, or its end was reported before"),
            )
            results.finished_recving.discard(request_id)
        else:
            request.awaits_load = False
    for request_id in sorted(results.finished_sending):
        request = scheduler.requests.get(request_id)
        # An aborted request is held for its load; either report frees it, and a MultiConnector passes on the last.
        aborted_load = request is not None and request.awaits_load and request.status.is_finished
        if request is None or not (request.is_held or aborted_load):
            referee.fail(
                Invariant.PROTOCOL,
                f"request {request_id}: finished_sending reports the end of its store, "
                + (_NO_REQUEST if request is None else "but its blocks are not held"),
            )
            results.finished_sending.discard(request_id)
        else:
            request.is_held = request.awaits_load = False


def check_joined(reports: Iterable[KVConnectorOutput], joined: KVConnectorOutput, referee: Referee) -> None:
    """Check that joining the stats and the metadata of several workers doesn't lose them."""
    told = list(reports)
    for name in ("kv_connector_stats", "kv_connector_worker_meta"):
        said = next((part for report in told if (part := getattr(report, name)) is not None), None)
        if said is not None and getattr(joined, name) is None:
            referee.fail(
                Invariant.PROTOCOL,
                f"{type(said).__name__}.aggregate answered None, expected the reports of two workers as one",
            )


def check_lists(request: SimRequest, referee: Referee) -> None:
    """Check that the connector has changed none of the lists of a request that has ended."""
    if request.unlike:
        referee.fail(
            Invariant.PROTOCOL,
            f"request {request.request_id}: the connector changed its {request.unlike}, which are the engine's",
        )


def check_failed_blocks(rank: int, failed: Iterable[int], step: Step, shadow: Shadow, referee: Referee) -> None:
    """Check a rank's report of unfilled blocks, before the ends of loads in the same report are processed.

    A load within a step ends with the step. An asynchronous one is under way until all ranks have reported its
    end, even if its request ends before. Who reports a block of a load may report others that its request got for
    what follows, which is computed from that block: an engine computes all of it again, or ends the request.
    """
    failed = set(failed)
    if not failed:
        return
    filled = {*shadow.load_rights, *(block for blocks in step.sync_targets.values() for block in blocks)}
    ended = {name for name, blocks in step.sync_targets.items() if not failed.isdisjoint(blocks)}
    for block in sorted(failed):
        if block not in filled and shadow.owners.get(block) not in ended:
            known = ", ".join(map(str, sorted(filled))) or "none"
            referee.fail(
                Invariant.PROTOCOL,
                f"worker {rank} side, get_block_ids_with_load_errors reports block {block} (of "
                f"{shadow.owner(block)}), which no load under way fills; blocks that loads fill: {known}",
            )


def check_failed_loads(
    rank: int, failed: Iterable[str], requests: Mapping[str, SimRequest], referee: Referee
) -> None:
    """Check a rank's report of failed loads, before the ends of loads in the same report are processed.

    A load is under way until all ranks have reported its end. A load within a step can't be reported here, since
    its request doesn't wait for a report.
    """
    for request_id in sorted(failed):
        request = requests.get(request_id)
        if request is None or not request.awaits_load:
            known = ", ".join(sorted(name for name, one in requests.items() if one.awaits_load)) or "none"
            referee.fail(
                Invariant.PROTOCOL,
                f"worker {rank} side, get_transfer_results reports in failed_recving that the load of request "
                f"{request_id} failed, "
                + (_NO_REQUEST if request is None else "but it has no asynchronous load under way")
                + f"; requests that have one: {known}",
            )


def step_as_it_is(output: object) -> dict[str, Any]:
    """A copy of a step, to compare the step with later; empty for a step of another package's engine."""
    if not isinstance(output, SchedulerOutput):
        return {}
    return _fields_as_they_are(output, _names(SchedulerOutput))


_NEVER_CHANGES: Final = frozenset({int, str, bool, type(None)})


def _as_it_is(value: Any) -> Any:
    """A copy, as deep as a connector can change it; lists of numbers are copied whole."""
    kind = type(value)
    if kind in _NEVER_CHANGES:
        return value
    if isinstance(value, dict):
        return {key: item if type(item) in _NEVER_CHANGES else _as_it_is(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_it_is(item) for item in value] if value and not isinstance(value[0], int) else list(value)
    if isinstance(value, set):
        return set(value)
    names = _names(value.__class__)
    return _fields_as_they_are(value, names) if names else value


def _fields_as_they_are(value: Any, names: Iterable[str]) -> dict[str, Any]:
    return {
        name: item if type(item := getattr(value, name)) in _NEVER_CHANGES else _as_it_is(item) for name in names
    }


@cache
def _names(kind: Any) -> tuple[str, ...]:
    """The fields of a dataclass, none of another class; cached, since each step needs them."""
    return tuple(part.name for part in fields(kind)) if is_dataclass(kind) else ()


def check_step(before: Mapping[str, Any], output: object, referee: Referee) -> None:
    """Check that the connector didn't change the step, which the workers and other children get, too."""
    for name, value in step_as_it_is(output).items():
        if before[name] != value:
            referee.fail(
                Invariant.PROTOCOL,
                f"scheduler side, build_connector_meta changed the step: {name} was {_in_order(before[name])} and "
                f"is {_in_order(value)}",
            )


def _in_order(value: Any) -> str:
    """A field's value as text; entries of a set in an order that is the same in every process."""
    if isinstance(value, set) and value:
        return f"{{{', '.join(sorted(map(repr, value)))}}}"
    return str(value)


PLAIN: Final = (str, bytes, bool, int, float, Enum, type(None))
"""Types of values that can be sent to the client's process; so can containers and dataclasses of them, and
arrays.
"""


def check_params(request_id: str, params: object, referee: Referee) -> None:
    """Check the params of ``request_finished``, which go to another process, and from there to a client."""
    foreign = next(_foreign(params), None)
    if foreign is not None:
        referee.fail(
            Invariant.PROTOCOL,
            f"request {request_id}: request_finished puts a {type(foreign).__name__} into kv_transfer_params, "
            "which can't be sent to the process that answers the client",
        )


def _foreign(value: Any) -> Iterator[Any]:
    """The parts of a value that can't be sent."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from (*_foreign(key), *_foreign(item))
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _foreign(item)
    elif isinstance(value, np.generic) or not (
        isinstance(value, PLAIN) or is_dataclass(value) or hasattr(value, "__array__")
    ):  # no number that vLLM's messages can have, though some are floats
        yield value
