"""Lines of coding agents' transcripts, and the tokens of what was said in them."""

import json

from kv_sim_foreign_traces import rolled, transcribed

ROLE = {"user": len("<|user|>"), "assistant": len("<|assistant|>")}


def tokens(*said):
    """Of a prompt of messages, each a role and its characters, and of who answers."""
    return -(-sum(ROLE[role] + characters for role, characters in (*said, ("assistant", 0))) // 4)


# -- Claude Code ---------------------------------------------------------------------------------


def user(uuid, above, second, content, **more):
    return transcribed(uuid, above, "user", second, {"content": content}, **more)


def answer(uuid, above, second, content, message, **more):
    model = {"id": message, "model": "m", "content": content}
    return transcribed(uuid, above, "assistant", second, {**model, **more})


def call(name):
    return [{"type": "tool_use", "id": name, "name": "ls", "input": {}}]


def result(name, said):
    return [{"type": "tool_result", "tool_use_id": name, "content": said}]


def characters(part):
    return len(json.dumps(part[0], sort_keys=True))


# -- Codex ---------------------------------------------------------------------------------------


def item(second, kind, **more):
    return rolled(second, "response_item", type=kind, **more)


def told(second, text, role="user"):
    return item(second, "message", role=role, content=[{"type": "input_text", "text": text}])


def counted(second, **usage):
    return rolled(second, "event_msg", type="token_count", info={"last_token_usage": usage} if usage else None)
