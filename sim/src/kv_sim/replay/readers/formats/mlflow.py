"""What MLflow says of a span, in the words of OpenTelemetry: its attributes are JSON, of names of its own."""

from collections.abc import Mapping
from typing import Any, Final

from kv_sim.replay.readers.asked import count_in, counted_beside, inside, json_in
from kv_sim.replay.readers.cached import cached_of

_KIND: Final = "mlflow.spanType"
_ASKED: Final = "mlflow.spanInputs"
_ANSWERED: Final = "mlflow.spanOutputs"
"""Which has an API's own counts, where MLflow makes none of them."""
_COUNTS: Final = "mlflow.chat.tokenUsage"
_OF_WHOM: Final = "mlflow.message.format"
_APART: Final = "anthropic"
"""Whose counts are kept as they came: a prompt's length is without what a cache had, or took."""
_INPUT: Final = "gen_ai.usage.input_tokens"
_ASKS: Final = ("CHAT_MODEL", "LLM")


def as_usual(named: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with what is usual besides; of a span of somebody else, as it is."""
    return {**_usual(named), **named} if _KIND in named else dict(named)


def _usual(named: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(named[_KIND]).strip('"')
    found: dict[str, Any] = {"gen_ai.operation.name": "chat" if kind in _ASKS else kind.lower()}
    asked, answered = json_in(named.get(_ASKED)), json_in(named.get(_ANSWERED))
    counts = json_in(named.get(_COUNTS)) or inside(answered, "usage")
    for field in ("input_tokens", "output_tokens", "prompt_tokens", "completion_tokens"):
        if (count := inside(counts, field)) is not None:
            found[f"gen_ai.usage.{field}"] = count
    if (cached := cached_of(counts)) is not None:
        found["gen_ai.usage.cache_read_input_tokens"] = cached
    if str(named.get(_OF_WHOM)).strip('"') == _APART and found.get(_INPUT) is not None:
        found[_INPUT] += sum(count_in(counts, one) or 0 for one in counted_beside(_INPUT.rpartition(".")[2]))
    messages = next((one for name in ("messages", "prompt", "input") if (one := inside(asked, name))), None)
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    more = {
        "gen_ai.input.messages": messages,
        "gen_ai.tool.definitions": inside(asked, "tools"),
        "gen_ai.system_instructions": inside(asked, "system") or inside(asked, "instructions"),
        "gen_ai.request.model": inside(asked, "model"),
    }
    return found | {name: value for name, value in more.items() if value}
