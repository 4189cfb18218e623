"""WEKA kv-cache-tester: one agent session a file, or a line. Ids are the session's own, subagents nest in it.

Times count from the begin of the session, those within a subagent, too. So sessions of one trace all begin
together unless they are told to begin one after another.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import MalformedError, Record, id_list, number, whole


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    block_tokens = whole(record, "block_size")
    if not block_tokens:
        raise MalformedError("block_size: expected at least 1, got 0")
    scope = record.get("hash_id_scope", "local")
    if scope not in ("local", "global"):
        raise MalformedError(f"hash_id_scope: expected 'local' or 'global', got {scope!r}")
    yield from _requests(record, str(record["id"]), block_tokens, scope == "local", "requests")


def _requests(
    node: Mapping[str, Any], session: str, block_tokens: int, is_local: bool, where: str
) -> Iterator[Record]:
    requests = node.get("requests")
    if not isinstance(requests, list):
        raise MalformedError(f"{where}: expected a list, got {type(requests).__name__}")
    for index, request in enumerate(requests):
        place = f"{where}[{index}]"
        if not isinstance(request, dict):
            raise MalformedError(f"{place}: expected an object, got {type(request).__name__}")
        if request.get("type") == "subagent":
            yield from _requests(request, session, block_tokens, is_local, f"{place}.requests")
            continue
        try:
            yield Record(
                number(request, "t"),
                whole(request, "in"),
                whole(request, "out", usual=0),
                id_list(request, "hash_ids"),
                session,
                block_tokens,
                is_local,
            )
        except MalformedError as error:
            raise MalformedError(f"{place}.{error}") from None


WEKA = Format(
    "weka",
    "WEKA kv-cache-tester JSON: one session a file or line, 64-token blocks, ids local, subagents nest",
    Container.JSON,
    ("id", "block_size", "requests"),
    _parse,
    is_session_local=True,
    merges_sessions=True,
)
