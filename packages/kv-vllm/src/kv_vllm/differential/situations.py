"""Counts the situations of a trace by name, and has the least count of each that makes an agreement significant.

Counts are of what the connector and the scheduler did (answers, allocations, ends), not of a world's actions.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from kv_sim.config import WorldConfig
from kv_vllm.differential.trace import Abort, Add, Call, NextTurn, Paused, Process, Reset, Trace, Turn

PER: Final = 500
"""The number of histories that ``MINIMA`` are for; fewer histories need proportionally less."""

MINIMA: Final[Mapping[str, int]] = {
    "asynchronous hit": 100,
    "in-step hit": 500,
    "ask again": 2000,
    "failed allocation": 2000,
    "preempted": 500,
    "resumed": 300,
    "abort: waiting": 500,
    "abort: waiting for a load": 10,
    "abort: load reported": 2,
    "abort: running": 500,
    "abort: preempted": 10,
    "abort: waiting for its next turn": 20,
    "failed load, recompute": 4,
    "failed load, fail": 4,
    "reset: done": 200,
    "reset: refused": 200,
    "reset: raised": 100,
    "reset with running requests": 300,
    "reset with the connector": 100,
    "an id comes back": 500,
    "an id is finished and new in one step": 4,
    "blocks held after the end": 500,
    "a store is reported": 500,
    "drafts are scheduled": 150,
    "accepted drafts go to waste": 200,
    "several groups": 50,
    "a session goes on": 300,
    "a session is told to end": 200,
    "a pause: abort": 200,
    "a pause: wait": 200,
    "a pause: keep": 200,
}
"""The least of each situation in a cell of the matrix, over the usual subjects with ``PER`` histories each."""


def situations_of(trace: Trace, config: WorldConfig) -> Counter[str]:
    """Count the situations of one trace."""
    counts: Counter[str] = Counter({"several groups": int(len(config.groups) > 1)})
    seen: set[str] = set()
    preempted: set[str] = set()
    begun: set[str] = set()
    for turn in trace.turns:
        match turn.event:
            case Add(request_id):
                counts["an id comes back"] += request_id in seen
                seen.add(request_id)
            case NextTurn(_, prompt):
                counts["a session is told to end"] += not prompt
            case Abort(_, state):
                counts[f"abort: {state}"] += 1
            case Reset(running, connector, answer):
                counts["reset: raised" if answer is None else "reset: done" if answer else "reset: refused"] += 1
                counts["reset with running requests"] += running
                counts["reset with the connector"] += connector
            case Paused(mode):
                counts[f"a pause: {mode}"] += 1
            case Process(_, sampled, report):
                counts[f"failed load, {config.failure_policy}"] += turn.event.has_failed_loads
                counts["a store is reported"] += len(report.get("finished_sending", ()))
                counts["accepted drafts go to waste"] += sum(tokens.surplus > 0 for tokens in sampled.values())
        _count_calls(turn, counts, preempted, begun)
    return counts


def _count_calls(turn: Turn, counts: Counter[str], preempted: set[str], begun: set[str]) -> None:
    for index, call in enumerate(turn.calls):
        match call.name:
            case "get_num_new_matched_tokens":
                tokens, is_async = call.answer
                if tokens is None:
                    counts["ask again"] += 1
                elif _is_refused(turn, index):
                    counts["failed allocation"] += 1
                elif tokens:
                    counts["asynchronous hit" if is_async else "in-step hit"] += 1
            case "request_finished" | "request_finished_all_groups":
                counts["blocks held after the end"] += bool(call.answer[0])
            case "build_connector_meta":
                _count_step(call, counts, preempted, begun)


def _is_refused(turn: Turn, index: int) -> bool:
    """Whether a match was followed by no allocation for its request."""
    request = turn.calls[index].arguments["request"]
    later = turn.calls[index + 1 :]
    return not any(c.name == "update_state_after_alloc" and c.arguments["request"] == request for c in later)


def _count_step(call: Call, counts: Counter[str], preempted: set[str], begun: set[str]) -> None:
    step = call.arguments
    new = {request["request"] for request in step["new"]}
    cached = {request["request"] for request in step["cached"]}
    counts["preempted"] += len(step["preempted"])
    counts["resumed"] += len((new | set(step["resumed"])) & preempted)
    counts["an id is finished and new in one step"] += len(new & set(step["finished"]))
    begun.difference_update(step["finished"], preempted)
    counts["a session goes on"] += len(new & begun)
    begun |= new | cached
    counts["drafts are scheduled"] += len(step["drafts"])
    preempted -= new | cached
    preempted.difference_update(step["finished"])
    preempted.update(step["preempted"])


def wanted(histories: int) -> dict[str, int]:
    """How often each situation must occur in ``histories`` histories of each subject."""
    return {name: least * histories // PER for name, least in MINIMA.items()}
