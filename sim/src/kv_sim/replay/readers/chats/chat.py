"""Chats as text: the prompt of a request, and the prompt of each answer in a conversation.

A prompt is written as its messages one after the other, each after its role, and at the end the role that answers.
So the next turn begins with the whole prompt, whatever a model's own template looks like. Tool definitions come
first, as in most templates. ``parts`` turns messages into text.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kv_sim.replay.readers.chats.answered import answer_in
from kv_sim.replay.readers.chats.asked import asked_in, paths_in
from kv_sim.replay.readers.chats.counts import answered_in
from kv_sim.replay.readers.chats.parts import as_json, said
from kv_sim.replay.readers.chats.usual import KEPT
from kv_sim.replay.readers.fields import TIMES, prompts_of, text_of
from kv_sim.replay.readers.json_values import json_in
from kv_sim.replay.readers.record import MalformedError, Prompt, Record
from kv_sim.replay.readers.required import object_at

ANSWERS: Final = "assistant"
"""The role that answers."""
_ROLES: Final = dict.fromkeys(("gpt", "chatgpt", "bard", "bing", "model", "bot", "ai", "chatbot"), ANSWERS) | {
    "human": "user"
}
"""Other words for roles, in small letters."""
_TURNS: Final = ("user", ANSWERS)
"""Who speaks in turn where no message has a role."""
_TYPES: Final = ("human", "ai", "system", "tool")
"""LangChain's message types, which it has instead of roles."""
_CLASSES: Final = {"SystemMessage": "system", "HumanMessage": "user", "AIMessage": ANSWERS, "ToolMessage": "tool"}
"""LangChain's message classes, for messages that it keeps as an ``id`` of a class and its ``kwargs``."""
_WITHIN: Final = ("data", "kwargs")
"""Fields in which a message of LangChain's has its content."""
_SAID: Final = ("content", "value", "text", "parts", "items", "system_prompt")
"""Fields with a message's content; the last two are Semantic Kernel's and those of trajectories of SWE-agent."""
_MORE: Final = ("tool_calls", "function_call", "images")
"""Fields with what else a message has."""
_CONVERSATIONS: Final = ("conversations", "conversation")
_REPEATED: Final = ("system_prompt", "systemPrompt", "system_message", "systemMessage")
_SYSTEM: Final = ("system", "instructions", *_REPEATED)
"""Fields of a system prompt that isn't a message; some of them may be repeated as the first message."""
BEFORE: Final = ("tools", "functions", *_SYSTEM)
"""Fields of what a model is told before the messages."""
_OF_CHATS: Final = "createdAt"
"""A field of time that chats in databases have, as well as requests in logs."""
_REDACTED: Final = "redacted-by-litellm"
"""LiteLLM's placeholder for messages that must not be logged."""
_TRAJECTORY: Final = "trajectory_format"
"""A field of mini-swe-agent's conversations, which don't end with an answer."""
_OF_RESPONSES: Final = (
    *("max_output_tokens", "reasoning", "tool_choice", "temperature", "top_p", "truncation"),
    *("tools", "instructions", "previous_response_id", "conversation", "store", "stream", "prompt_cache_key"),
)
"""Fields that a request for a response may have beside a text, and one for an embedding never has."""
_OF_SPEECH: Final = "voice"
"""A field of requests for speech, which may also have instructions."""


# -- requests ------------------------------------------------------------------------------------


def prompts_in(record: Mapping[str, Any], asked: Mapping[str, Any]) -> list[Prompt]:
    """The prompts of a request, in pieces or as token ids; a completion may have several."""
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
    """Prompts that are no chats, each after the system prompt; prompts of token ids already include it."""
    texts = {field: asked[field] for field in _SYSTEM if isinstance(asked.get(field), str)}
    told = [f"<|{field}|>{text}" for field, text in texts.items() if text]
    return [(text if text is None else [*told, *text], tokens) for text, tokens in prompts]


def _embedded(record: Mapping[str, Any], asked: Mapping[str, Any]) -> str | None:
    """The field with a text to embed, if the log says that this request is for an embedding."""
    field = next((field for field in ("messages", "input") if field in asked), None)
    by_name = field == "input" and "embed" in str(asked.get("model"))
    return field if by_name or any("/embeddings" in path for path in paths_in(record)) else None


def chat(asked: Mapping[str, Any]) -> list[str]:
    """The prompt that a chat is, in pieces."""
    field = "input" if "input" in asked and "messages" not in asked else "messages"
    if isinstance(asked.get(field), str):
        asked = {**asked, field: _said(asked[field], field)}
    spoken = [f"<|{role}|>{content}" for role, content in _messages(asked, field)]
    return [*_before(asked), *spoken, f"<|{ANSWERS}|>"]


def are_messages(value: Any) -> bool:
    """Whether it is a list of messages, each with a role."""
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) and role_of(one) for one in value)


def user(text: str) -> Mapping[str, Any]:
    """A request with one message of a user."""
    return {"messages": [{"role": "user", "content": text}]}


def _said(text: str, field: str) -> Any:
    """Messages given as JSON; in ``input`` also the text of a user."""
    found = json_in(text)
    if isinstance(found, list) and all(isinstance(one, dict) for one in found):
        return found
    return user(text)["messages"] if field == "input" else text


def _is_completion(asked: Mapping[str, Any]) -> bool:
    """Whether it is a completion, whose prompt isn't a chat."""
    is_there = "prompt" in asked and not isinstance(asked["prompt"], dict)
    return is_there and "messages" not in asked and "input" not in asked


def is_request(record: Mapping[str, Any]) -> bool:
    """Whether a record has a request for generated text."""
    asked = asked_in(record)
    if isinstance(asked.get("messages"), list) or _is_completion(asked):
        return True
    if isinstance(asked.get("input"), list):  # of messages: a list of texts is for embeddings
        return all(isinstance(one, dict) for one in asked["input"])
    is_response = "/responses" in str(record.get("url", "")) or any(field in asked for field in _OF_RESPONSES)
    return isinstance(asked.get("input"), str) and is_response and _OF_SPEECH not in asked


def _before(asked: Mapping[str, Any]) -> Iterator[str]:
    """The texts before the messages."""
    for field in BEFORE:
        if (value := asked.get(field)) and not (field in _REPEATED and _begins_with_system(asked)):
            yield f"<|{field}|>{said(value, field)}"


def _begins_with_system(asked: Mapping[str, Any]) -> bool:
    messages = asked.get(spoken_in(asked))
    first = messages[0] if isinstance(messages, list) and messages else None
    return isinstance(first, dict) and role_of(first) in ("system", "developer")


# -- conversations -------------------------------------------------------------------------------


def spoken_in(record: Mapping[str, Any]) -> str:
    """The field with the messages of a conversation."""
    return next((field for field in (*_CONVERSATIONS, "messages") if field in record), _CONVERSATIONS[0])


def answers_in(record: Mapping[str, Any], field: str) -> Iterator[tuple[int, Record]]:
    """Each answer's place in the field, with the request that it answers, without a time."""
    spoken, model = [*_before(record)], text_of(record, "model")
    for place, (role, content) in enumerate(_messages(record, field)):
        if role == ANSWERS and spoken:
            yield place, Record(None, 0, 0, None, model=model, text=[*spoken, f"<|{role}|>"], answer=content)
        spoken.append(f"<|{role}|>{content}")


def in_turn(messages: Any) -> Any:
    """Messages of which none has a role, texts or objects of only a text, as a user's and a model's in turn."""
    if not isinstance(messages, list):
        return messages
    texts = [one if isinstance(one, str) else _alone(one) for one in messages]
    if None in texts:
        return messages
    return [{"role": _TURNS[turn % 2], "content": text} for turn, text in enumerate(texts)]


def _alone(message: Any) -> str | None:
    """The text that an object only has."""
    values = list(message.values()) if isinstance(message, dict) else []
    is_one = len(values) == 1 and isinstance(values[0], str) and not message.keys().isdisjoint(_SAID)
    return values[0] if is_one else None


def is_conversation(record: Mapping[str, Any]) -> bool:
    """Whether a record is a conversation that has the messages before each answer."""
    if (
        kept := next((found for one in _CONVERSATIONS if isinstance(found := record.get(one), list)), None)
    ) is not None:
        if _are_chats(kept):
            return False
        return not are_messages(kept) or role_of(kept[-1]) == ANSWERS or not _is_answered_apart(record)
    messages = record.get("messages")
    is_logged = any(field in record for field in TIMES if field != _OF_CHATS)
    if not isinstance(messages, list) or not messages or is_logged:
        return False
    last = messages[-1]
    return _TRAJECTORY in record or (isinstance(last, dict) and role_of(last) == ANSWERS)


def _are_chats(kept: Sequence[Any]) -> bool:
    """Whether these aren't the messages of a chat but several chats, each of which has a list of its own."""
    first = kept[0] if kept else None
    if not isinstance(first, dict) or role_of(first) is not None:
        return False
    lists = (value for name, value in first.items() if name not in _SAID and isinstance(value, list))
    return any(value and isinstance(value[0], dict) for value in lists)


def _is_answered_apart(record: Mapping[str, Any]) -> bool:
    """Whether a log has the answer, or its length, beside the messages."""
    return answered_in(record) is not None or answer_in(record) is not None


# -- messages ------------------------------------------------------------------------------------


def _messages(record: Mapping[str, Any], field: str) -> Iterator[tuple[str, str]]:
    """The messages as pairs of role and text."""
    messages = record.get(field)
    if field in _CONVERSATIONS:
        messages = in_turn(messages)
    if not isinstance(messages, list):
        raise MalformedError(f"{field}: expected a list of messages, got {_kind(record, field)}")
    for index, message in enumerate(messages):
        place = f"{field}[{index}]"
        role = role_of(object_at(message, place))
        if role is None and field == "input" and isinstance(message.get("type"), str):
            yield message["type"], as_json(message)  # a tool's call, or what it answered
            continue
        if role is None:
            raise MalformedError(f"{place}: expected a role (or from) that is text, got none")
        for within in _WITHIN:
            if isinstance(message.get(within), dict) and "content" in message[within]:
                message = {**message, **message[within]}
        where = next((name for name in _SAID if message.get(name) is not None), _SAID[0])
        if where not in message and message.keys().isdisjoint(_MORE) and _says_elsewhere(message):
            raise MalformedError(
                f"{place}.{where}: expected what was said, got no such field but {', '.join(message)}"
            )
        text = said(message.get(where), f"{place}.{where}")
        if text == _REDACTED:
            raise MalformedError(f"{place}.{where}: expected what was said, got {text!r}, which stands for it")
        for more in _MORE:
            text += as_json(value) if (value := message.get(more)) else ""
        yield role, text


def _says_elsewhere(message: Mapping[str, Any]) -> bool:
    """Whether a field of it, under whatever name, has words, or parts."""
    return any(isinstance(one, list) or (isinstance(one, str) and " " in one) for one in message.values())


def speaker_of(message: Mapping[str, Any]) -> str | None:
    """The role that a field of it has, under whatever name; None: none names one of the usual roles."""
    words = (one.lower() for one in message.values() if isinstance(one, str))
    return next((role for one in words if (role := _ROLES.get(one, one)) in (ANSWERS, "user", "system")), None)


def role_of(message: Mapping[str, Any]) -> str | None:
    """The role of a message, under one name for each role; None: it has none."""
    role = message.get("role", message.get("from"))
    if role is None and message.get("type") in _TYPES:
        role = message["type"]
    names = message.get("id")
    if role is None and isinstance(message.get("kwargs"), dict) and isinstance(names, list) and names:
        role = _CLASSES.get(str(names[-1]), str(names[-1]))
    return _ROLES.get(role.lower(), role.lower()) if isinstance(role, str) else None


def _kind(record: Mapping[str, Any], field: str) -> str:
    return type(record[field]).__name__ if field in record else "no such field"
