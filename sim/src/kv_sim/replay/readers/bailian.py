"""Qwen-Bailian JSON lines: chats of Alibaba's service, ids of 16-token blocks, seconds."""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import Record, id_list, number, session_of, whole


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    yield Record(
        number(record, "timestamp"),
        whole(record, "input_length"),
        whole(record, "output_length"),
        id_list(record, "hash_ids"),
        session_of(record, "chat_id"),
    )


BAILIAN = Format(
    "bailian",
    "Qwen-Bailian JSON lines: chat_id, parent_chat_id, timestamp (s), hash_ids of 16 tokens",
    Container.JSON,
    ("chat_id", "parent_chat_id", "timestamp", "input_length", "hash_ids"),
    _parse,
    block_tokens=16,
)
