"""Transcripts of Claude Code: a session a file, a line for each message or part of one, with its parent's name.

The prompt of an answer are all lines above it. An answer may be several lines, one for each part, and tool results
are below the part that called the tool: so all parts of an answer count, and all their results. After a compaction
a line has no parent, and neither has the first line of a subagent.

A request arrives when the last line above its answer was written. A session that continues in another file is
copied there, so a request that is in two files counts once.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kv_sim.replay.readers.chats.cached import cached_of
from kv_sim.replay.readers.chats.chat import chat
from kv_sim.replay.readers.chats.messages import Above, Heard, Said, unbroken
from kv_sim.replay.readers.fields import number_or_date, text_of, whole
from kv_sim.replay.readers.format import Asked, Line, kept_sessions
from kv_sim.replay.readers.json_values import inside, listed
from kv_sim.replay.readers.record import Record

_ANSWER: Final = "assistant"
_GIVEN_BACK: Final = "tool_result"
"""The type of a line of Qwen Code, whose transcripts differ only in this and in an answer's counts."""
_NOBODY: Final = "<synthetic>"
"""The model name of the program's own messages, which no model writes or reads."""
_READ: Final = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_BEGINS: Final = ("sessionId", "leafUuid", "snapshot")
"""Fields of lines with messages, with a summary, and with files."""


class _Transcript:
    """The lines of a file, and their parents."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._places = {line["uuid"]: place for place, line in enumerate(lines) if _is_text(line.get("uuid"))}
        self._parts: dict[str, list[int]] = {}
        """The lines of each answer."""
        self._given_back: dict[str, list[int]] = {}
        """Tool call -> the lines with its results."""
        self._above: dict[str, list[int]] = {}
        """The lines above each answer."""
        for place, line in enumerate(lines):
            if (answer := _answer_of(line)) is not None:
                self._parts.setdefault(answer, []).append(place)
            for call in _ids_in(line, "tool_result", "tool_use_id"):
                self._given_back.setdefault(call, []).append(place)

    def requests(self) -> Asked:
        """The number of the line at which each answer begins, and its request."""
        heard = Heard(lambda line: [_said(line)])
        for answer, parts in self._parts.items():
            first = parts[0]
            self._above[answer] = above = sorted({place for place in self._find(answer) if place < first})
            lines = [self._lines[place] for place in above]
            last = next(
                (line for line in reversed(lines) if line.get("timestamp") is not None), self._lines[first]
            )
            yield first, _request(heard.of(lines), last, [self._lines[place] for place in parts])

    def _find(self, answer: str) -> Iterator[int]:
        """The lines above an answer, and maybe some below it."""
        place = self._line_above(self._parts[answer][0])
        while place is not None:
            other = _answer_of(self._lines[place])
            if other in self._above:
                yield from self._above[other]
                yield from self._parts[other]
                calls = [call for part in self._parts[other] for call in _calls_in(self._lines[part])]
                yield from (back for call in calls for back in self._given_back.get(call, ()))
                return
            yield place
            place = self._line_above(place)

    def _line_above(self, place: int) -> int | None:
        if _compressed_in(self._lines[place]):
            return None
        above = self._places.get(text_of(self._lines[place], "parentUuid") or "")
        return above if above is not None and above < place else None


def _said(line: Line) -> Said:
    """The text of a line's message; nothing without a message."""
    if compressed := _compressed_in(line):
        return Said(chat({"messages": compressed})[:-1])
    message = line.get("message")
    if (
        line.get("type") not in ("user", _GIVEN_BACK, _ANSWER)
        or not isinstance(message, dict)
        or _is_nobodys(message)
    ):
        return Said(())
    told = {"role": line["type"], **message, "content": _plain(message.get("content"))}
    return Said(chat({"messages": [told]})[:-1])


def _compressed_in(line: Line) -> list[Any]:
    """The summary that replaces all lines above it, in a transcript of Qwen Code."""
    told = line.get("systemPayload") if line.get("subtype") == "chat_compression" else None
    return listed(inside(told, "compressedHistory"))


def _plain(content: Any) -> Any:
    """Thoughts as text, without their signatures."""
    if not isinstance(content, list):
        return content
    return [part["thinking"] if _is_thought(part) else part for part in content]


def _is_thought(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "thinking" and _is_text(part.get("thinking"))


def _answer_of(line: Line) -> str | None:
    """The name of the answer to which a line belongs."""
    message = line.get("message")
    if line.get("type") != _ANSWER or not isinstance(message, dict) or _is_nobodys(message):
        return None
    return text_of(message, "id") or text_of(line, "uuid")


def _is_nobodys(message: Mapping[str, Any]) -> bool:
    return message.get("model") == _NOBODY


def _calls_in(line: Line) -> list[str]:
    return _ids_in(line, "tool_use", "id")


def _ids_in(line: Line, kind: str, field: str) -> list[str]:
    """A field of the parts of one kind."""
    parts = listed(inside(line.get("message"), "content"))
    return [part[field] for part in parts if inside(part, "type") == kind and _is_text(part.get(field))]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _request(above: Above, last: Line, answer: Sequence[Line]) -> Iterator[Record]:
    """The request of an answer's lines; it arrives with the last line above them."""
    asked = [text for one in unbroken(above, "above it, ") for text in one.text]
    first, newest = answer[0], answer[-1]
    usage = newest["message"].get("usage")
    if isinstance(newest.get("usageMetadata"), dict):
        usage = _usual(newest["usageMetadata"])
    read = isinstance(usage, dict)
    yield Record(
        number_or_date(last, "timestamp"),
        0,
        whole(usage, "output_tokens", usual=0) if read else 0,
        None,
        session=text_of(first, "sessionId"),
        model=text_of(first["message"], "model") or text_of(first, "model"),
        text=[*asked, f"<|{_ANSWER}|>"],
        answer=None if read else "".join(text for line in answer for text in _said(line).text),
        told_tokens=sum(whole(usage, field, usual=0) for field in _READ) if read else None,
        cached_tokens=cached_of(usage),
        name=text_of(first["message"], "id"),
    )


def _usual(usage: Line) -> Line:
    """Qwen Code's counts under Claude Code's names."""
    said = whole(usage, "candidatesTokenCount", usual=0) + whole(usage, "thoughtsTokenCount", usual=0)
    return {
        "input_tokens": usage.get("promptTokenCount"),
        "output_tokens": said,
        "cached_tokens": cached_of(usage),
    }


CLAUDE_CODE = kept_sessions(
    "claude-code",
    (),
    lambda lines: _Transcript(lines).requests(),
    comes_once=True,
    matches=lambda record: "type" in record and any(field in record for field in _BEGINS),
    looked_for=f"type and {_BEGINS[0]}, {_BEGINS[1]} or {_BEGINS[2]}",
    assumes="system prompts and tools, which a transcript leaves out, are not counted",
)
