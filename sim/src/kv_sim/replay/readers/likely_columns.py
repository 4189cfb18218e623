"""Guesses the columns of a record of an unknown format: a text to paste after ``--columns``."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.asked import counted_beside, json_in, object_in
from kv_sim.replay.readers.chat import answers_in, is_request
from kv_sim.replay.readers.own_prompts import messages_of, prompts_in_column
from kv_sim.replay.readers.record import TIMES, MalformedError, ids_in, number_or_date, text_of, whole
from kv_sim.replay.readers.usual import PROMPTS

_SURELY_TEXT: Final = ("prompt", "prompt_text", "full_prompt", "user_prompt")
_TOKENS: Final = ("tokens", "token_ids", "input_ids", "input_tok_ids", "input_token_ids")
"""Names of token ids, which like text are the whole prompt and show what is shared."""
_CHAT: Final = "messages"
"""Messages; if they end with an answer they are a conversation."""
_LIKELY: Final[Mapping[str, tuple[str, ...]]] = {
    "time": (
        *TIMES,
        *("arrival_time", "arrived_at", "arrived", "arrival", "arrival_timestamp", "arrival_s"),
        *("timestamp_ms", "request_time", "launch_time", "request_start_time", "created_time", "event_time"),
        *("time_generated", "arrival_time_s", "arrival_time_ms", "arrival_time_us", "arrival_time_ns"),
        *("arrival_ms", "arrival_us", "arrival_ns", "timestamp_s", "timestamp_us", "timestamp_ns"),
        *("start_time_ms", "start_time_us", "start_time_ns", "start_ns", "gmt_create"),
    ),
    "input": (
        *("input_length", "input_len", "input_tokens", "num_input_tokens", "prompt_tokens", "prompt_length"),
        *("prompt_len", "num_prompt_tokens", "num_prefill_tokens", "prefill_tokens", "context_tokens", "isl"),
        *("number_input_tokens", "input_token_count", "prompt_token_count", "genai_tokens_input"),
        *("tokens_prompt", "tokens_in", "input_toks", "prompt_toks", "llm_prompt_tokens"),
    ),
    "output": (
        *("output_length", "output_len", "output_tokens", "num_output_tokens", "completion_tokens"),
        *("num_completion_tokens", "response_tokens", "generated_tokens", "num_decode_tokens"),
        *("decode_tokens", "osl", "generation_tokens", "number_output_tokens", "output_token_count"),
        *("candidates_token_count", "genai_tokens_output", "tokens_completion", "tokens_out"),
        *("output_toks", "llm_completion_tokens"),
    ),
    "cached": (
        *("cached_tokens", "num_cached_tokens", "cached_input_tokens", "cached_prompt_tokens"),
        *("prompt_cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens", "tokens_cached"),
        *("cached_content_token_count", "input_cached_tokens"),
    ),
    "ids": ("hash_ids", "block_hashes", "block_ids", "prefix_hashes", "prefix_ids", "blocks", "hashes"),
    "session": ("session_id", "conversation_id", "chat_id", "session"),
    "model": ("model", "model_name", "genai_model_name", "model_permaslug", "llm_model"),
    "prompt": (
        *_SURELY_TEXT,
        *("question", "query", "instruction", "inputtext"),
        *("input_text", "request", "input", "message", "context", "text", "content", "chosen"),
        *(*_TOKENS, _CHAT),
    ),
    "answer": (
        *("answer", "response", "response_text", "completion", "output", "outputtext", "output_text"),
        *("generated_text", "generation"),
    ),
    "conversation": (
        *("messages", "trajectory", "history", "chat", "dialog", "dialogue", "turns", "conversation_a", "data"),
    ),
}
"""The names of each part in other formats, ignoring case; the first that fits is taken."""
_USAGE: Final = "usage"
"""Fields inside this object count as near as fields beside it."""
_DEEPEST: Final = 4
_SAID: Final = ("prompt", "answer", "conversation")
"""Parts that aren't searched inside objects, where text may be anything."""
_FEW: Final = 3
"""A text of fewer words may be a name."""
_LEVELS: Final = frozenset(("level", "levelname", "severity", "loglevel", "log_level"))
"""What only the log of a program has, in which a message, or a request, is what that says of itself."""
_OF_HTTP: Final = re.compile(r"[A-Z]+ \S+ HTTP/[\d.]+")
_TOLD: Final = ("systemprompt", "system", "systemmessage")
"""Names of a system prompt."""
_INSTRUCTION, _ABOUT = "instruction", "input"
"""The two parts of a prompt in data sets for tuning: the task, and its input."""
_OF_LENGTHS: Final = ("time", "input", "cached", "output", "ids", "session", "model")
_OF_PROMPTS: Final = ("time", "prompt", "input", "cached", "answer", "output", "session", "model")
_OF_CONVERSATIONS: Final = ("time", "conversation", "model")


def likely_columns(record: Mapping[str, Any]) -> str | None:
    """The value for ``--columns``, if a column has a prompt's length or its text."""
    if are_records(record):
        return None
    depths = dict(_values(record, ""))
    columns = {name: value for name, (_, value) in depths.items()}
    named: dict[str, list[str]] = {}
    for name in columns:
        named.setdefault(_plain(name.rpartition(".")[2]), []).append(name)
    found: dict[str, str] = {}
    is_of_a_program = not _LEVELS.isdisjoint(map(str.lower, record))
    for part, likely in _LIKELY.items():
        if part == "prompt" and is_of_a_program:
            likely = (*_SURELY_TEXT, *_TOKENS, _CHAT)
        called = [name for one in likely for name in named.get(_plain(one), ())]
        called = [name for name in called if part not in _SAID or not depths[name][0]]
        called.sort(key=lambda name: depths[name][0])  # of equally deep ones the first
        if (column := next((name for name in called if _fits(part, name, columns)), None)) is not None:
            found[part] = column
    if "prompt" not in found and (asked := next(filter(_is_asked(columns), columns), None)) is not None:
        found["prompt"] = asked
    if not _is_within(found.get("cached"), found.get("input"), columns):
        found.pop("cached", None)
    parts = _OF_PROMPTS if _is_asked(columns)(found.get("prompt", "")) else _parts_of(found)
    if "input" in parts and "input" in found:
        beside = (one for one in counted_beside(found["input"]) if one in columns)
        found["input"] = "+".join([found["input"], *beside])
    if found.get("prompt") == _INSTRUCTION and isinstance(columns.get(_ABOUT), str):
        found["prompt"] += f"+{_ABOUT}"
    if "prompt" in parts and "prompt" in found and (told := _told_before(columns)) is not None:
        found["prompt"] = f"{told}+{found['prompt']}"
    if "answer" in parts and "output" in found:
        found.pop("answer", None)
    return ",".join(f"{part}={found[part]}" for part in parts if part in found) or None


def _is_asked(columns: Mapping[str, Any]) -> Callable[[str], bool]:
    """Whether a column has what an API was asked, which is surely a prompt; as a rule it lies further in."""

    def is_asked(name: str) -> bool:
        found = object_in(columns.get(name)) or {}
        return not found.keys().isdisjoint(PROMPTS) and is_request(found)

    return is_asked


def unread_time(record: Mapping[str, Any]) -> str | None:
    """A column that is named like a time but whose date can't be read, such as an ambiguous one."""
    times = {_plain(name) for name in _LIKELY["time"]}
    called = [name for name in record if _plain(name) in times and record[name] not in (None, "")]
    if not called or any(_fits("time", name, record) for name in called):
        return None
    return f"{called[0]} ({record[called[0]]!r:.40})"


def are_records(record: Mapping[str, Any]) -> bool:
    """Whether it is an object of several records by name."""
    values = list(record.values())
    return len(values) > 1 and all(isinstance(one, dict) and one.keys() == values[0].keys() for one in values)


def _told_before(columns: Mapping[str, Any]) -> str | None:
    """The column with the system prompt, if prompts are text."""
    return next((name for name in columns if _plain(name) in _TOLD and isinstance(columns[name], str)), None)


def _is_within(cached: str | None, length: str | None, columns: Mapping[str, Any]) -> bool:
    """Whether a cached count can be a part of the prompt's length, by their values."""
    if cached is None or length is None:
        return False
    return cached in counted_beside(length) or whole(columns, cached) <= whole(columns, length)


def _parts_of(found: Mapping[str, str]) -> tuple[str, ...]:
    """The parts to propose: those of text if it surely is a prompt or there is no length, otherwise lengths."""
    if found.get("prompt", "").lower() in (*_SURELY_TEXT, *_TOKENS):
        return _OF_PROMPTS
    if found.get("prompt") == _CHAT:
        return _OF_PROMPTS if found.get("conversation") != _CHAT else _OF_CONVERSATIONS
    kinds = {"input": _OF_LENGTHS, "conversation": _OF_CONVERSATIONS, "prompt": _OF_PROMPTS}
    return next((parts for part, parts in kinds.items() if part in found), ())


def _plain(name: str) -> str:
    """A name in one spelling: promptTokens becomes prompt_tokens; a unit in brackets after it is dropped."""
    return name.partition("[")[0].lower().replace("_", "").replace(" ", "")


def _values(record: Mapping[str, Any], outer: str, depth: int = 0) -> Iterator[tuple[str, tuple[int, Any]]]:
    """The columns with their depth and value, also those within objects, if ``--columns`` can name them."""
    for name, value in record.items():
        if name and "," not in name and "+" not in name:
            yield f"{outer}{name}", (depth, value)
            if isinstance(value, dict) and depth < _DEEPEST:
                yield from _values(value, f"{outer}{name}.", depth + (name != _USAGE))


def _fits(part: str, column: str, columns: Mapping[str, Any]) -> bool:
    """Whether there is such a column, with a value that fits the part."""
    try:
        return column in columns and _READS[part](columns, column) is not None
    except MalformedError:
        return False


def _words(columns: Mapping[str, Any], column: str) -> Any:
    """A text of several words, but no first line of HTTP, or a value that isn't text. A single word is a name."""
    value = json_in(columns[column])
    if isinstance(value, str) and (len(value.split()) < _FEW or _OF_HTTP.fullmatch(value)):
        return None
    return prompts_in_column(columns, column)


def _text(columns: Mapping[str, Any], column: str) -> str | None:
    value = columns.get(column)
    return value if isinstance(value, str) and not value.strip().isdigit() else None


def _turns(columns: Mapping[str, Any], column: str) -> Any:
    """Messages, one of which is an answer."""
    return next(answers_in({column: messages_of(columns.get(column))}, column), None)


_READS: Final = {
    "time": number_or_date,
    "input": whole,
    "output": whole,
    "cached": whole,
    "ids": ids_in,
    "session": text_of,
    "model": text_of,
    "prompt": _words,
    "answer": _text,
    "conversation": _turns,
}
