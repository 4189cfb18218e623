"""What chat front ends keep of their chats, and what can be exported of them: a small trace of each format."""

import json

from kv_sim_kept_chats import BEGIN, NEXT, SAID, date
from kv_sim_records import lines

NOBODY = "00000000-0000-0000-0000-000000000000"
_ANSWER = "z" * 28


def of_deepseek(*messages, **more):
    """Messages, each with its name, that of the one above, the second it was written, and what it has else."""
    root = {"id": "root", "parent": None, "children": ["1"], "message": None}
    told = {
        name: {
            "id": name,
            "parent": above,
            "message": {"files": [], "model": "deepseek-chat", "inserted_at": date(second), **rest},
        }
        for name, above, second, rest in messages
    }
    return {"id": "c", "title": "t", "inserted_at": date(0), "mapping": {"root": root, **told}, **more}


def fragments(*told):
    return {"fragments": [{"type": kind, "content": text} for kind, text in told]}


def of_librechat(name, above, second, text, *, by_user=False, **more):
    told = {"messageId": name, "parentMessageId": above, "conversationId": "c", "isCreatedByUser": by_user}
    return {**told, "text": text, "createdAt": date(second), **({} if by_user else {"model": "m"}), **more}


def block(text, second=None, *, stats=None, **more):
    name = "0123-abc" if second is None else f"{1000 * BEGIN + 1000 * second}-0.5"
    made = {} if stats is None else {"genInfo": {"identifier": "m", "stats": stats}}
    parts = [{"type": "text", "text": text}] if isinstance(text, str) else text
    return {"type": "contentBlock", "stepIdentifier": name, "content": parts, **made, **more}


def asked(text):
    return {"type": "singleStep", "role": "user", "content": [{"type": "text", "text": text}]}


def answered(*steps):
    return {"type": "multiStep", "role": "assistant", "senderInfo": {"senderName": "m"}, "steps": steps}


def of_lm_studio(*messages, **more):
    told = [{"versions": [*versions], "currentlySelected": chosen} for chosen, *versions in messages]
    return {"name": "t", "createdAt": 1000 * BEGIN, "messages": told, **more}


def event(kind, second, data, **more):
    return {
        "type": kind,
        "data": data,
        "id": f"{kind} {second}",
        "timestamp": date(second),
        "parentId": None,
        **more,
    }


START = event("session.start", 0, {"sessionId": "s", "selectedModel": "m"})


def item(role, said, **more):
    """One of Continue's history."""
    calls = {"toolCalls": more.pop("toolCalls")} if "toolCalls" in more else {}
    return {"message": {"role": role, "content": said, **calls}, "contextItems": [], **more}


def of_continue(*history):
    return {"sessionId": "s", "title": "t", "workspaceDirectory": "/w", "history": [*history]}


CASES: dict[str, tuple[str, int, list[float]]] = {
    "deepseek": (
        json.dumps(
            [
                of_deepseek(
                    ("1", "root", 1, fragments(("REQUEST", SAID))),
                    ("2", "1", 2, fragments(("RESPONSE", _ANSWER))),
                    ("3", "2", 4, fragments(("REQUEST", NEXT))),
                    ("4", "3", 5, fragments(("RESPONSE", _ANSWER))),
                )
            ]
        ),
        16,
        [0, 3],
    ),
    "librechat": (
        json.dumps(
            {
                "conversationId": "c",
                "messages": [
                    of_librechat("a", NOBODY, 1, SAID, by_user=True),
                    of_librechat("b", "a", 2, _ANSWER, tokenCount=7),
                    of_librechat("c", "b", 4, NEXT, by_user=True),
                    of_librechat("d", "c", 5, _ANSWER),
                ],
            },
            indent=2,
        ),
        16,
        [0, 3],
    ),
    "lm-studio": (
        json.dumps(
            of_lm_studio(
                (0, asked(SAID)),
                (0, answered(block(_ANSWER, 2))),
                (0, asked(NEXT)),
                (0, answered(block(_ANSWER, 5, stats={"predictedTokensCount": 7}))),
            )
        ),
        16,
        [0, 3],
    ),
    "copilot-cli": (
        lines(
            START,
            event("user.message", 1, {"content": SAID}),
            event("assistant.message", 2, {"content": _ANSWER}),
            event("user.message", 4, {"content": NEXT}),
            event("assistant.message", 5, {"content": _ANSWER, "outputTokens": 7}),
        ),
        16,
        [0, 3],
    ),
    "continue": (
        json.dumps(
            of_continue(
                item("user", SAID), item("assistant", _ANSWER), item("user", NEXT), item("assistant", _ANSWER)
            )
        ),
        16,
        [0, 60],
    ),
}
"""The text of a file, the tokens of its blocks, when its requests arrive."""

READ: dict[str, tuple[list[tuple[int, int]], int]] = {name: ([(32, 7), (55, 7)], 2) for name in CASES}
"""As those of programs' own chats are read."""
