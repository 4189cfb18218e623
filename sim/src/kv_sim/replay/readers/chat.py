"""Chats as text: the prompt that an API was asked with, and what each answer of a conversation was given to.

A prompt is written down as its messages, one after the other, each behind its role, and the role of who answers.
So the next turn begins with all of it, whatever a model's own template looks like. Tools that are offered come
first, where most templates have them. ``parts`` says what messages are as text.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.asked import PATHS, asked_in, json_in
from kv_sim.replay.readers.parts import as_json, said
from kv_sim.replay.readers.record import (
    TIMES,
    MalformedError,
    Prompt,
    Record,
    prompts_of,
    text_of,
)
from kv_sim.replay.readers.usual import KEPT

ANSWERS: Final = "assistant"
"""The role of who answers."""
_ROLES: Final = dict.fromkeys(("gpt", "chatgpt", "bard", "bing", "model", "bot", "ai"), ANSWERS) | {
    "human": "user"
}
"""Other words for roles."""
_TYPES: Final = ("human", "ai", "system", "tool")
"""What LangChain calls roles, in place of such."""
_CLASSES: Final = {"SystemMessage": "system", "HumanMessage": "user", "AIMessage": ANSWERS, "ToolMessage": "tool"}
"""What it calls them where it keeps messages as what makes them: ``id`` of a class, and its ``kwargs``."""
_WITHIN: Final = ("data", "kwargs")
"""Where a message of LangChain's has what it says."""
_SAID: Final = ("content", "value", "text", "parts", "items")
"""Where a message says what it says; the last one is Semantic Kernel's."""
_CONVERSATIONS: Final = ("conversations", "conversation")
_SYSTEM: Final = ("system", "instructions", "system_prompt")
"""Where what a model is told first may stand, when it isn't a message."""
_OF_CHATS: Final = "createdAt"
"""The time that a chat has in a database, too, and not only a request in a log."""
_REDACTED: Final = "redacted-by-litellm"
"""What LiteLLM puts in place of messages that aren't to be logged."""
_TRAJECTORY: Final = "trajectory_format"
"""What mini-swe-agent says of its conversations, which don't end with an answer."""
_OF_RESPONSES: Final = (
    *("max_output_tokens", "reasoning", "tool_choice", "temperature", "top_p", "truncation"),
    *("tools", "instructions", "previous_response_id", "conversation", "store", "stream", "prompt_cache_key"),
)
"""What a request for a response may have beside a text, and one for an embedding hasn't."""
_OF_SPEECH: Final = "voice"
"""What a request for speech has, which may have instructions, too."""


# -- requests ------------------------------------------------------------------------------------


def prompts_in(record: Mapping[str, Any], asked: Mapping[str, Any]) -> list[Prompt]:
    """What an API was asked, in pieces or as token ids; of a completion there may be several prompts."""
    if record.get("message_mode") == "delta":
        raise MalformedError(
            "message_mode: expected messages that are a whole prompt, got 'delta': what a turn adds"
        )
    if asked.get("previous_response_id") is not None:
        raise MalformedError(
            "previous_response_id: expected a whole prompt, got what is added to another response"
        )
    if "input" in asked and asked.get("conversation") is not None:
        raise MalformedError(
            "conversation: expected a whole prompt, got what is added to one that is kept elsewhere"
        )
    if asked.get(KEPT) is not None:
        raise MalformedError(f"{KEPT}: expected a whole prompt, got what is added to {asked[KEPT]!r:.40}")
    if (field := _embedded(record, asked)) is not None:
        raise MalformedError(f"{field}: expected what a model goes on with, got what is embedded")
    kept = asked.get("prompt")
    if isinstance(kept, dict) and "id" in kept:
        raise MalformedError(f"prompt: expected a whole prompt, got what is kept elsewhere, {kept['id']!r:.40}")
    return behind_system(asked, prompts_of(asked)) if _is_completion(asked) else [(chat(asked), None)]


def behind_system(asked: Mapping[str, Any], prompts: list[Prompt]) -> list[Prompt]:
    """Prompts that are no chats, each behind what the model was told first; token ids have it."""
    texts = {field: asked[field] for field in _SYSTEM if isinstance(asked.get(field), str)}
    told = [f"<|{field}|>{text}" for field, text in texts.items() if text]
    return [(text if text is None else [*told, *text], tokens) for text, tokens in prompts]


def _embedded(record: Mapping[str, Any], asked: Mapping[str, Any]) -> str | None:
    """What is embedded, where a log says so of what looks like what a response, or a chat, is asked with."""
    field = next((field for field in ("messages", "input") if field in asked), None)
    by_name = field == "input" and "embed" in str(asked.get("model"))
    return field if by_name or any("/embeddings" in str(record.get(path, "")) for path in PATHS) else None


def chat(asked: Mapping[str, Any]) -> list[str]:
    """The prompt that a chat is, in pieces."""
    field = "input" if "input" in asked and "messages" not in asked else "messages"
    if isinstance(asked.get(field), str):
        asked = {**asked, field: _said(asked[field], field)}
    spoken = [f"<|{role}|>{content}" for role, content in _messages(asked, field)]
    return [*_before(asked), *spoken, f"<|{ANSWERS}|>"]


def are_messages(value: Any) -> bool:
    """Whether it is a list of what is said by somebody each."""
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) and role_of(one) for one in value)


def user(text: str) -> Mapping[str, Any]:
    """What an API is asked, where a user says one thing."""
    return {"messages": [{"role": "user", "content": text}]}


def _said(text: str, field: str) -> Any:
    """Messages that are written as JSON; as ``input`` also what a user says."""
    found = json_in(text)
    if isinstance(found, list) and all(isinstance(one, dict) for one in found):
        return found
    return user(text)["messages"] if field == "input" else text


def _is_completion(asked: Mapping[str, Any]) -> bool:
    """Whether it was asked to go on with a prompt that isn't a chat."""
    is_there = "prompt" in asked and not isinstance(asked["prompt"], dict)
    return is_there and "messages" not in asked and "input" not in asked


def is_request(record: Mapping[str, Any]) -> bool:
    """Whether an API was asked for an answer in it."""
    asked = asked_in(record)
    if isinstance(asked.get("messages"), list) or _is_completion(asked):
        return True
    if isinstance(asked.get("input"), list):  # of messages: embeddings are asked with a list of texts
        return all(isinstance(one, dict) for one in asked["input"])
    is_response = "/responses" in str(record.get("url", "")) or any(field in asked for field in _OF_RESPONSES)
    return isinstance(asked.get("input"), str) and is_response and _OF_SPEECH not in asked


def _before(asked: Mapping[str, Any]) -> Iterator[str]:
    """What comes before the messages. A log that has a ``system_prompt`` may have it as the first of them, too."""
    for field in ("tools", "functions", *_SYSTEM):
        if (value := asked.get(field)) and not (field == _SYSTEM[-1] and _begins_with_system(asked)):
            yield f"<|{field}|>{said(value, field)}"


def _begins_with_system(asked: Mapping[str, Any]) -> bool:
    messages = asked.get(spoken_in(asked))
    first = messages[0] if isinstance(messages, list) and messages else None
    return isinstance(first, dict) and role_of(first) in ("system", "developer")


# -- conversations -------------------------------------------------------------------------------


def spoken_in(record: Mapping[str, Any]) -> str:
    """The field with what was said."""
    return next((field for field in (*_CONVERSATIONS, "messages") if field in record), _CONVERSATIONS[0])


def answers_in(record: Mapping[str, Any], field: str) -> Iterator[tuple[int, Record]]:
    """Each answer: its place in the field, and the request that it was given to, when that arrived left open."""
    spoken, model = [*_before(record)], text_of(record, "model")
    for place, (role, content) in enumerate(_messages(record, field)):
        if role == ANSWERS and spoken:
            yield place, Record(None, 0, 0, None, model=model, text=[*spoken, f"<|{role}|>"], answer=content)
        spoken.append(f"<|{role}|>{content}")


def is_conversation(record: Mapping[str, Any]) -> bool:
    """Whether it was said what each answer is given to."""
    if any(isinstance(record.get(field), list) for field in _CONVERSATIONS):
        return True
    messages = record.get("messages")
    is_logged = any(field in record for field in TIMES if field != _OF_CHATS)
    if not isinstance(messages, list) or not messages or is_logged:
        return False
    last = messages[-1]
    return _TRAJECTORY in record or (isinstance(last, dict) and role_of(last) == ANSWERS)


# -- messages ------------------------------------------------------------------------------------


def _messages(record: Mapping[str, Any], field: str) -> Iterator[tuple[str, str]]:
    """Roles, and what they say."""
    messages = record.get(field)
    if not isinstance(messages, list):
        raise MalformedError(f"{field}: expected a list of messages, got {_kind(record, field)}")
    for index, message in enumerate(messages):
        place = f"{field}[{index}]"
        if not isinstance(message, dict):
            raise MalformedError(f"{place}: expected an object, got {type(message).__name__}")
        role = role_of(message)
        if role is None and field == "input" and isinstance(message.get("type"), str):
            yield message["type"], as_json(message)  # a tool's call, or what it answered
            continue
        if role is None:
            raise MalformedError(f"{place}: expected a role (or from) that is text, got none")
        for within in _WITHIN:
            if isinstance(message.get(within), dict) and "content" in message[within]:
                message = {**message, **message[within]}
        where = next((name for name in _SAID if message.get(name) is not None), _SAID[0])
        text = said(message.get(where), f"{place}.{where}")
        if text == _REDACTED:
            raise MalformedError(f"{place}.{where}: expected what was said, got {text!r}, which stands for it")
        for more in ("tool_calls", "function_call", "images"):
            text += as_json(value) if (value := message.get(more)) else ""
        yield role, text


def role_of(message: Mapping[str, Any]) -> str | None:
    """Who says a message, under one name for each role; None: it doesn't say."""
    role = message.get("role", message.get("from"))
    if role is None and message.get("type") in _TYPES:
        role = message["type"]
    names = message.get("id")
    if role is None and isinstance(message.get("kwargs"), dict) and isinstance(names, list) and names:
        role = _CLASSES.get(str(names[-1]), str(names[-1]))
    return _ROLES.get(role, role) if isinstance(role, str) else None


def _kind(record: Mapping[str, Any], field: str) -> str:
    return type(record[field]).__name__ if field in record else "no such field"
