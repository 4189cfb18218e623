"""Trajectories in ATIF, the interchange format of agents: a run of an agent a record, of ``steps``; dates.

Each step of the agent is a request. Its prompt is the tools and all steps before it, with what the tools gave
back; thoughts aren't sent again. A step in which no model was called, or that was copied from an earlier
trajectory, is only a part of later prompts. Trajectories of subagents may be within that of the agent that began
them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.cached import cached_of
from kv_sim.replay.readers.chats.chat import ANSWERS, chat
from kv_sim.replay.readers.chats.messages import Said, counted_in, placed, request, said, time_in
from kv_sim.replay.readers.chats.parts import as_json
from kv_sim.replay.readers.fields import text_of
from kv_sim.replay.readers.format import kept_chats
from kv_sim.replay.readers.json_values import inside, json_in, object_in
from kv_sim.replay.readers.record import MalformedError, Record

_VERSION: Final = "schema_version"
_STEPS: Final = "steps"
_TOOLS: Final = "tool_definitions"
_SUBAGENTS: Final = "subagent_trajectories"
_METRICS: Final = "metrics"
_IDS: Final = "prompt_token_ids"
_MODEL: Final = "model_name"
_TIME: Final = "timestamp"
_AGENT: Final = "agent"
_ROLES: Final = {"system": "system", "user": "user", _AGENT: ANSWERS}


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    agent = object_in(record.get(_AGENT)) or {}
    session = text_of(record, "trajectory_id")
    steps = placed(json_in(record[_STEPS]), _STEPS)
    has_times = any(step.get(_TIME) is not None for _, step in steps)
    above = [_tools(agent)]
    for place, step in steps:
        message = _message(step, place)
        if step["source"] == _AGENT and not step.get("is_copied_context") and step.get("llm_call_count") != 0:
            counts, where = object_in(step.get(_METRICS)), f"{place}.{_METRICS}"
            for asked in request(
                above,
                place if has_times else None,
                message.time,
                session,
                text_of(step, _MODEL) or text_of(agent, _MODEL),
                counted_in(counts, ("completion_tokens",), where),
                (text_of(step, "reasoning_content") or "") + message.words,
                counted_in(counts, ("prompt_tokens",), where) or None,
                cached_tokens=cached_of(counts, "cached_tokens"),
            ):
                yield _by_tokens(asked, inside(counts, _IDS), where)
        above += [message, *_given_back(step, place)]
    for place, subagent in placed(json_in(record.get(_SUBAGENTS)) or [], _SUBAGENTS):
        if _STEPS not in subagent:
            raise MalformedError(f"{place}.{_STEPS}: expected a list of steps, got no such field")
        yield from _parse(subagent)


def _by_tokens(asked: Record, ids: Any, where: str) -> Record:
    """The request with the token ids of its prompt, if there are some, in place of its text."""
    if ids:
        if not isinstance(ids, list) or not {int}.issuperset(map(type, ids)):
            raise MalformedError(f"{where}.{_IDS}: expected a list of token ids, got {ids!r:.40}")
        asked.text, asked.tokens = None, ids
    return asked


def _tools(agent: Mapping[str, Any]) -> Said:
    """What the model is told of its tools."""
    tools = json_in(agent.get(_TOOLS))
    try:
        return Said(chat({"tools": tools, "messages": []})[:-1])
    except MalformedError as error:
        raise MalformedError(f"{_AGENT}.{_TOOLS}{str(error).removeprefix('tools')}") from None


def _message(step: Mapping[str, Any], place: str) -> Said:
    """A step's message, of an agent with its calls of tools."""
    source, told = step.get("source"), step.get("message")
    if not isinstance(source, str) or source not in _ROLES:
        raise MalformedError(f"{place}.source: expected {', '.join(_ROLES)}, got {source!r:.40}")
    calls = (
        as_json([call.get("function_name"), call.get("arguments")])
        for _, call in placed(step.get("tool_calls") or [], f"{place}.tool_calls")
    )
    content = [*(told if isinstance(told, list) else [told or ""]), *calls]
    return said(_ROLES[source], content, place, time_in(step, _TIME, place))


def _given_back(step: Mapping[str, Any], place: str) -> Iterator[Said]:
    """What a step's tools gave back."""
    results = inside(step.get("observation"), "results") or []
    for where, one in placed(results, f"{place}.observation.results"):
        yield said("tool", one.get("content"), where)


ATIF = kept_chats(
    "atif",
    (_VERSION, _STEPS),
    _parse,
    matches=lambda record: str(record[_VERSION]).startswith("ATIF"),
    looked_for="a version that begins with ATIF",
)
