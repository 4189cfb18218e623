"""What stands first in a chat, and from which turn a later one goes on."""

import pytest

from kv_sim.replay.readers.chats.chat import chat
from kv_sim.replay.readers.record import Record
from kv_sim.replay.readers.requests.turns import look_apart

RULES, ASKED = "Answer in one word.", {"role": "user", "content": "What is it?"}


@pytest.mark.parametrize("role", ["system", "developer"])
def test_what_a_log_repeats_beside_its_messages_is_there_once(role: str) -> None:
    spoken = {"messages": [{"role": role, "content": RULES}, ASKED]}
    assert chat({"system_prompt": RULES, **spoken}) == chat(spoken)
    assert len(chat({"system_prompt": RULES, "messages": [ASKED]})) == len(chat(spoken))


@pytest.mark.parametrize(
    ("texts", "apart"),
    [
        (["A", "B", "C"], True),
        (["A", "B", "BC"], False),  # the third one goes on from the second
        (["AB", "A"], False),  # the newest came first
        (["A", "AB"], False),
        (["A"], False),
    ],
)
def test_turns_that_go_on_from_the_one_before_are_not_apart(texts: list[str], *, apart: bool) -> None:
    records = [Record(None, 1, 1, None, session="one", text=[text]) for text in texts]
    assert look_apart(records) is apart
