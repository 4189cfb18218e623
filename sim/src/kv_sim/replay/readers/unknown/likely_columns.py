"""Guesses the columns of a record of an unknown format: a text to paste after ``--columns``."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.chats.chat import ANSWERS, answers_in, are_messages, is_request, role_of, speaker_of
from kv_sim.replay.readers.chats.counts import counted_beside
from kv_sim.replay.readers.chats.usual import PROMPTS
from kv_sim.replay.readers.fields import TIMES, ids_in, number_or_date, text_of, whole
from kv_sim.replay.readers.json_values import json_in, object_in
from kv_sim.replay.readers.record import MalformedError
from kv_sim.replay.readers.unknown.own_prompts import messages_of, prompts_in_column

_SURELY_TEXT: Final = ("prompt", "prompttext", "fullprompt", "userprompt")
_SURELY_TOKENS: Final = (
    *("prompttokenids", "inputids", "inputtokids", "inputtokenids"),
    *("inputtokens", "prompttokens"),
)
"""Names of token ids, which like text are the whole prompt and show what is shared; the last two may be counts."""
_SURELY: Final = (*_SURELY_TEXT, *_SURELY_TOKENS, "tokens", "tokenids")
_HOW_MANY: Final = "(n|num|number|numberof|total|llm|ai)?({})(tokens?|toks)(count)?"
_UNIT: Final = "utc|s|sec|seconds|ms|millis|us|micros|ns|nanos?"
_LIKELY: Final[Mapping[str, tuple[str, ...]]] = {
    "time": (
        *(re.sub("[^a-z0-9]", "", one.lower()) for one in TIMES),
        *("arrivaltime", "arrivedat", "arrived", "arrival", "launchtime", "requeststarttime", "timegenerated"),
        "(request|arrival|start|created?|creation|received|submitted|sent|event|log|unix)"
        f"(at|on|date|datetime|time|timestamp|ts)({_UNIT})?|(arrival|start)({_UNIT})",
        *(f"(time|timestamp|ts)({_UNIT})", "date|datetime|gmtcreate"),
    ),
    "input": (
        *("(input|prompt)(length|len)|isl", _HOW_MANY.format("input|prompt|context|prefill|request")),
        "(genai)?tokens?(prompt|input|in)",
    ),
    "output": (
        *("(output|completion|response)(length|len)|osl",),
        _HOW_MANY.format("output|completion|response|generated|generation|decode|candidates"),
        "(genai)?tokens?(completion|output|out)",
    ),
    "cached": (
        "(num|prompt|input|prefix)*cache(d|read|hit)(input|prompt|content)?tokens?(count)?|(genai)?tokenscached",
    ),
    "ids": ("hashids", "blockhashes", "blockids", "prefixhashes", "prefixids", "blocks", "hashes"),
    "session": ("sessionid", "conversationid", "chatid", "threadid", "session"),
    "model": ("model", "modelname", "modelid", "genaimodelname", "modelpermaslug", "llmmodel"),
    "prompt": (
        *(*_SURELY_TEXT, *_SURELY_TOKENS),
        *("question", "query", "instruction", "inputtext", "request", "input", "message", "context", "text"),
        *("content", "chosen", "tokens", "tokenids"),
    ),
    "answer": (
        *("answer", "response", "responsetext", "completion", "output", "outputtext", "generatedtext"),
        "generation",
    ),
    "conversation": (
        *("messages", "trajectory", "history", "chat", "dialog", "dialogue", "turns", "conversationa", "data"),
    ),
}
"""The names of each part in other formats, by their letters and figures; the first that fits is taken."""
_USAGE: Final = "usage"
"""Fields inside this object count as near as fields beside it."""
_DEEPEST: Final = 4
_SAID: Final = ("prompt", "answer", "conversation")
"""Parts that aren't searched inside objects, where text may be anything, unless a name surely is a prompt's."""
_EARLIER: Final = ("history", "chathistory", "previousmessages")
"""Names of messages that may be those before the prompt."""
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
    columns, found = _by_name(record)
    if "prompt" not in found and (asked := next(filter(_is_asked(columns), columns), None)) is not None:
        found["prompt"] = asked
    if not _is_within(found.get("cached"), found.get("input"), columns):
        found.pop("cached", None)
    is_sure = _plain(found.get("prompt", "")) in _SURELY or _is_asked(columns)(found.get("prompt", ""))
    if not is_sure and (chat := _chat_among(columns)) is not None:
        is_sure = _is_a_prompt(columns, chat, found)
        found["prompt" if is_sure else "conversation"] = chat
        found.pop("conversation" if is_sure else "prompt", None)
    parts = _OF_PROMPTS if is_sure else _parts_of(found)
    if not is_sure and parts is _OF_PROMPTS and speaker_of(record) is not None:
        return None  # it is a message
    if "input" in parts and "input" in found:
        beside = (one for one in counted_beside(found["input"]) if one in columns)
        found["input"] = "+".join([found["input"], *beside])
    if found.get("prompt") == _INSTRUCTION and isinstance(columns.get(_ABOUT), str):
        found["prompt"] += f"+{_ABOUT}"
    is_text = isinstance(json_in(columns.get(found.get("prompt", ""))), str)
    if "prompt" in parts and is_text and (told := _told_before(columns)) is not None:
        found["prompt"] = f"{told}+{found['prompt']}"
    if "answer" in parts and "output" in found:
        found.pop("answer", None)
    return ",".join(f"{part}={found[part]}" for part in parts if part in found) or None


def unsure_prompt(record: Mapping[str, Any]) -> str | None:
    """A column of words that may be whole prompts, where lengths alone are proposed."""
    said, parts = _by_name(record)[1].get("prompt"), re.split("[,=]", likely_columns(record) or "")
    return said if "input" in parts and {"prompt", "ids"}.isdisjoint(parts) else None


def _by_name(record: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, str]]:
    """The columns with their values, and the column of each part, as far as names and values tell."""
    found: dict[str, str] = {}
    values = dict(_values(record, ""))
    columns, depths = ({name: both[at] for name, both in values.items()} for at in (1, 0))
    is_of_a_program = not _LEVELS.isdisjoint(map(str.lower, columns))
    plain = {name: _plain(name) for name in columns}
    for part, likely in _LIKELY.items():
        if part == "prompt" and is_of_a_program:
            likely = _SURELY
        called = [name for one in likely for name in columns if re.fullmatch(one, plain[name])]
        if part in _SAID:
            called = [
                name for name in called if not depths[name] or plain[name] in (*_SURELY_TEXT, *_SURELY_TOKENS)
            ]
        called.sort(key=lambda name: depths[name])  # of equally deep ones the first
        if (column := next((name for name in called if _fits(part, name, columns)), None)) is not None:
            found[part] = column
    return columns, found


def _chat_among(columns: Mapping[str, Any]) -> str | None:
    """The first column with messages, unless a model begins, or what they say may have been said before."""
    for name, value in columns.items():
        messages = json_in(value)
        if not are_messages(messages) or role_of(messages[0]) == ANSWERS:
            continue
        if _plain(name) not in _EARLIER or role_of(messages[-1]) == ANSWERS:
            return name
    return None


def _is_a_prompt(columns: Mapping[str, Any], chat: str, found: Mapping[str, str]) -> bool:
    """Whether messages are a prompt: nothing is answered in them, or it is said apart what was answered last."""
    roles = [*map(role_of, json_in(columns[chat]))]
    return ANSWERS not in roles or (roles[-1] != ANSWERS and not found.keys().isdisjoint(("output", "answer")))


def _is_asked(columns: Mapping[str, Any]) -> Callable[[str], bool]:
    """Whether a column has what an API was asked, which is surely a prompt; as a rule it lies further in."""

    def is_asked(name: str) -> bool:
        found = object_in(columns.get(name)) or {}
        return not found.keys().isdisjoint(PROMPTS) and is_request(found) and not has_counts(found)

    return is_asked


def has_counts(found: Mapping[str, Any]) -> bool:
    """Whether it has a prompt's length, under a name that other formats use for its text."""
    return isinstance(found.get("prompt"), (int, float))


def unread_time(record: Mapping[str, Any]) -> str | None:
    """A column that is named like a time but whose date can't be read, such as an ambiguous one."""
    times = "|".join(_LIKELY["time"])
    called = [name for name, value in record.items() if value and re.fullmatch(times, _plain(name))]
    if not called or not isinstance(record[called[0]], str) or any(_fits("time", one, record) for one in called):
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
    """The parts to propose where no text surely is a prompt: those of text if there is no length."""
    kinds = {"conversation": _OF_CONVERSATIONS, "input": _OF_LENGTHS, "prompt": _OF_PROMPTS}
    return next((parts for part, parts in kinds.items() if part in found), ())


def _plain(name: str) -> str:
    """A column's own name in one spelling: usage.promptTokens becomes prompttokens, without a unit in brackets."""
    return re.sub("[^a-z0-9]", "", re.split(r"[\[(]", name)[0].rpartition(".")[2].lower())


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
    return prompts_in_column(columns, column, {})


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
