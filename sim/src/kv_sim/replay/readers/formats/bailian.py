"""Qwen-Bailian JSON lines: chats of Alibaba's service, ids of 16-token blocks, seconds.

Each turn is a chat of its own, and names the chat that it continues: a conversation is a chain of chats.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kv_sim.replay.readers.fields import id_list, number, text_of, whole
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import Record

_NO_PARENT: Final = (-1, "-1", None)


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    yield Record(
        number(record, "timestamp"),
        whole(record, "input_length"),
        whole(record, "output_length"),
        id_list(record, "hash_ids"),
        text_of(record, "chat_id"),
        parent=None if record.get("parent_chat_id") in _NO_PARENT else text_of(record, "parent_chat_id"),
    )


BAILIAN = Format(
    "bailian",
    Container.JSON,
    ("chat_id", "timestamp", "input_length", "hash_ids"),
    _parse,
    block_tokens=16,
    matches=lambda record: "parent_chat_id" in record or ("type" in record and "turn" in record),
    looked_for="parent_chat_id, or type and turn",
)
