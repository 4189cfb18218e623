"""What SGLang's own API is asked, a line a request: text, or token ids, which are exact."""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_sim.replay.readers.asked import for_each, own_request
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import MalformedError, Record, prompts_of
from kv_sim.replay.readers.text import ASSUMED


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    field = "text" if record.get("text") is not None else "input_ids"
    try:
        prompts = prompts_of({"prompt": record.get(field)})
    except MalformedError as error:
        raise MalformedError(str(error).replace("prompt", field, 1)) from None
    yield from for_each(prompts, own_request(record))


SGLANG = Format(
    "sglang",
    f"JSON lines of SGLang's /generate: text or input_ids, sampling_params, maybe timestamp; {ASSUMED}",
    Container.JSON,
    ("sampling_params",),
    _parse,
    matches=lambda record: any(isinstance(record.get(field), (str, list)) for field in ("text", "input_ids")),
    looked_for="text or input_ids",
    is_text=True,
)
