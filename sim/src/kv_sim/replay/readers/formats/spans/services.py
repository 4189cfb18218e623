"""Translates span attributes of MLflow, Langfuse and ADK, which have JSON of their own, to OpenTelemetry's."""

from collections.abc import Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.cached import cached_of
from kv_sim.replay.readers.chats.counts import count_in, counted_beside
from kv_sim.replay.readers.chats.usual import as_usual as usual
from kv_sim.replay.readers.json_values import inside, json_in, object_in

_MLFLOW: Final = "mlflow.spanType"
_ASKS: Final = ("CHAT_MODEL", "LLM")
_OF_WHOM: Final = "mlflow.message.format"
_APART: Final = "anthropic"
"""A provider whose counts are kept as they are: a prompt's length excludes tokens read from and written to a
cache."""
_LANGFUSE: Final = "langfuse.observation.type"
_GENERATION: Final = "generation"
_ADK: Final = "gcp.vertex.agent.llm_request"
_INPUT: Final = "gen_ai.usage.input_tokens"
_COUNTS: Final = {
    **{name: name for name in ("input_tokens", "output_tokens", "prompt_tokens", "completion_tokens")},
    **{"input": "input_tokens", "output": "output_tokens"},
}
"""Names of token counts; the last ones are Langfuse's."""


def as_usual(named: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes with OpenTelemetry's added; those of any other service as they are."""
    if _MLFLOW in named:
        return {**_of_mlflow(named), **named}
    if _LANGFUSE in named:
        return {**_of_langfuse(named), **named}
    if (asked := object_in(named.get(_ADK))) is not None:
        return {**_asked(usual({**(object_in(asked.get("config")) or {}), **asked})), **named}
    return dict(named)


def _of_mlflow(named: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(named[_MLFLOW]).strip('"')
    answered = json_in(named.get("mlflow.spanOutputs"))
    # If MLflow has no counts of its own, the API's are in the answer.
    counts = json_in(named.get("mlflow.chat.tokenUsage")) or inside(answered, "usage")
    found = {"gen_ai.operation.name": "chat" if kind in _ASKS else kind.lower(), **_counted(counts)}
    if str(named.get(_OF_WHOM)).strip('"') == _APART and found.get(_INPUT) is not None:
        found[_INPUT] += sum(count_in(counts, one) or 0 for one in counted_beside(_INPUT.rpartition(".")[2]))
    return found | _asked(json_in(named.get("mlflow.spanInputs")))


def _of_langfuse(named: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(named[_LANGFUSE])
    asked = json_in(named.get("langfuse.observation.input"))
    return {
        "gen_ai.operation.name": "chat" if kind == _GENERATION else kind,
        **_counted(json_in(named.get("langfuse.observation.usage_details"))),
        **_asked(asked if isinstance(asked, dict) else {"messages": asked}),
        "gen_ai.request.model": named.get("langfuse.observation.model.name"),
    }


def _counted(counts: Any) -> dict[str, Any]:
    """The tokens of a prompt and its answer, and those found in a cache."""
    told = [(field, inside(counts, name)) for name, field in _COUNTS.items()]
    told.append(("cache_read_input_tokens", cached_of(counts)))
    return {f"gen_ai.usage.{field}": count for field, count in told if count is not None}


def _asked(asked: Any) -> dict[str, Any]:
    """The request in an object."""
    messages = next((one for name in ("messages", "prompt", "input") if (one := inside(asked, name))), None)
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    said = {
        "gen_ai.input.messages": messages,
        "gen_ai.tool.definitions": inside(asked, "tools"),
        "gen_ai.system_instructions": inside(asked, "system") or inside(asked, "instructions"),
        "gen_ai.request.model": inside(asked, "model"),
    }
    return {name: value for name, value in said.items() if value}
