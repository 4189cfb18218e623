"""Transcripts of Qwen Code, which are those of Claude Code but for some words."""

import pytest
from kv_sim_foreign_traces import SAID, lengths

from kv_api import ConfigError


def line(uuid, above, kind, second, *parts, **more):
    role = "model" if kind == "assistant" else "user"
    time = f"2026-01-31T10:00:{second:02}.000Z"
    names = {"uuid": uuid, "parentUuid": above, "sessionId": "s", "timestamp": time, "type": kind}
    return {**names, "message": {"role": role, "parts": [*parts]}, **more}


def test_qwen_code_s_transcripts_have_other_words(read):
    usage = {"promptTokenCount": 500, "candidatesTokenCount": 4, "thoughtsTokenCount": 3}
    called, came = ({"functionCall": {"name": "ls"}}, {"functionResponse": {"name": "ls"}})
    requests, notes = read(
        line("a", None, "user", 0, {"text": SAID}),
        line("b", "a", "assistant", 1, {"text": "z" * 28}, called, model="m", usageMetadata=usage),
        {"uuid": "t", "parentUuid": "b", "sessionId": "s", "type": "system", "subtype": "ui_telemetry"},
        line("c", "t", "tool_result", 3, came),
        line("d", "c", "assistant", 4, {"text": "z" * 28}, model="m"),
    )
    # The second has 128 characters, 28 and the call, and 8, what came and 13.
    whole = (
        128 + 28 + len('{"functionCall": {"name": "ls"}}') + 8 + len('{"functionResponse": {"name": "ls"}}') + 13
    )
    assert lengths(requests) == [(0, 32, 7), (3, -(-whole // 4), 11)]
    assert any(note.startswith("usage says 500 prompt tokens where 32 are counted here") for note in notes)


TALK = [
    line("a", None, "user", 0, {"text": "x" * 4000}),
    line("b", "a", "assistant", 1, {"text": "z" * 28}),
    {"uuid": "s", "parentUuid": "b", "sessionId": "s", "type": "system", "subtype": "chat_compression"},
    line("c", "s", "user", 3, {"text": "y" * 43}),
    line("d", "c", "assistant", 4, {"text": "z" * 28}),
]


def compressed(payload):
    return [{**one, "systemPayload": payload} if one["type"] == "system" else one for one in TALK]


def test_what_was_compressed_is_asked_in_the_place_of_what_was_above(read):
    kept = [{"role": "user", "parts": [{"text": SAID}]}, {"role": "model", "parts": [{"text": "z" * 15}]}]
    requests, _ = read(*compressed({"compressedHistory": kept}))
    # 8 + 107 characters, 13 + 15, 8 + 43 and 13.
    assert [one.input_tokens for one in requests] == [-(-4021 // 4), -(-207 // 4)]
    with pytest.raises(ConfigError, match=r"above it, messages\[0\]: expected an object, got int"):
        read(*compressed({"compressedHistory": [5]}))


@pytest.mark.parametrize("payload", [None, {}, 5, {"compressedHistory": None}, {"compressedHistory": []}])
def test_what_could_not_be_compressed_is_asked_on(read, payload):
    requests, _ = read(*compressed(payload))
    assert requests[1].input_tokens == -(-(8 + 4000 + 13 + 28 + 8 + 43 + 13) // 4)
