"""AIBrix's workloads: a time, and the prompts that are sent then; milliseconds.

Its client sends the earlier turns of a session with each prompt, so a later prompt in the file is only the new
part.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_sim.replay.readers.chats.chat import chat, user
from kv_sim.replay.readers.fields import number, text_of, whole
from kv_sim.replay.readers.format import Container, Format, Turns
from kv_sim.replay.readers.record import MalformedError, Record
from kv_sim.replay.readers.requests.text import ASSUMED


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    time, requests = number(record, "timestamp"), record["requests"]
    if not isinstance(requests, list):
        raise MalformedError(f"requests: expected a list, got {type(requests).__name__}")
    for index, request in enumerate(requests):
        if not isinstance(request, dict):
            raise MalformedError(f"requests[{index}]: expected an object, got {type(request).__name__}")
        prompt = request.get("prompt")
        if not isinstance(prompt, str):
            raise MalformedError(f"requests[{index}].prompt: expected text, got {type(prompt).__name__}")
        try:
            answer = whole(request, "output_length", usual=0)
        except MalformedError as error:
            raise MalformedError(f"requests[{index}].{error}") from None
        text = chat(user(prompt))
        yield Record(time, 0, answer, None, text_of(request, "session_id"), text=text)


AIBRIX = Format(
    "aibrix",
    f"AIBrix workloads, JSON: timestamp (ms), requests of prompt, output_length, maybe session_id; {ASSUMED}",
    Container.JSON,
    ("timestamp", "requests"),
    _parse,
    unit_seconds=1e-3,
    turns=Turns.ADDED,
    is_text=True,
)
