"""What the columns of a record that nobody here knows probably are: a line to paste behind ``--columns``."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.asked import BESIDE
from kv_sim.replay.readers.record import TIMES, MalformedError, ids_in, number_or_date, text_of, whole

_LIKELY: Final[Mapping[str, tuple[str, ...]]] = {
    "time": (
        *TIMES,
        *("arrival_time", "arrived_at", "arrival", "arrival_timestamp", "arrival_s"),
        *("timestamp_ms", "request_time"),
    ),
    "input": (
        *("input_length", "input_len", "input_tokens", "num_input_tokens", "prompt_tokens", "prompt_length"),
        *("prompt_len", "num_prompt_tokens", "num_prefill_tokens", "prefill_tokens", "context_tokens", "isl"),
    ),
    "output": (
        *("output_length", "output_len", "output_tokens", "num_output_tokens", "completion_tokens"),
        *("num_completion_tokens", "response_tokens", "generated_tokens", "num_decode_tokens"),
        *("decode_tokens", "osl"),
    ),
    "ids": ("hash_ids", "block_hashes", "block_ids", "prefix_hashes", "prefix_ids", "blocks", "hashes"),
    "session": ("session_id", "conversation_id", "chat_id", "session"),
    "model": ("model", "model_name"),
}
"""By part, the names that it has elsewhere, in any letters; the first that fits is the one."""
_READS: Final = {
    "time": number_or_date,
    "input": whole,
    "output": whole,
    "ids": ids_in,
    "session": text_of,
    "model": text_of,
}
_USAGE: Final = "usage"


def likely_columns(record: Mapping[str, Any]) -> str | None:
    """What to say of them, if one of them is how long a prompt was."""
    columns = dict(_values(record))
    names = {name.rpartition(".")[2].lower().replace(" ", "_"): name for name in reversed(columns)}
    found = {
        part: names[one]
        for part, likely in _LIKELY.items()
        if (one := next((one for one in likely if _fits(part, names.get(one, ""), columns)), None))
    }
    if "input" not in found:
        return None
    outer, dot, name = found["input"].rpartition(".")
    beside = [f"{outer}{dot}{one}" for one in BESIDE if name == "input_tokens"]
    found["input"] = "+".join([found["input"], *(one for one in beside if one in columns)])
    return ",".join(f"{part}={column}" for part, column in found.items())


def _values(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What its columns have, and what is said of its tokens; none that can't be named there."""
    usage = record.get(_USAGE)
    inner = {f"{_USAGE}.{name}": value for name, value in usage.items()} if isinstance(usage, dict) else {}
    for name, value in {**record, **inner}.items():
        if name and "," not in name:
            yield name, value


def _fits(part: str, column: str, columns: Mapping[str, Any]) -> bool:
    """Whether there is such a column, with what the part may be."""
    try:
        return _READS[part](columns, column) is not None
    except MalformedError:
        return False
