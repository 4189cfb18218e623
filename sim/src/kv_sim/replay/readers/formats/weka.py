"""WEKA kv-cache-tester: one agent session a file, or a line. Ids are the session's own, subagents nest in it.

Times count from the begin of the session, so all sessions of a trace begin together, unless an option lets them
begin one after another. Within a subagent times count from its begin; some writers count them from the begin of
the session there, too: then none is earlier than the subagent.

A request names its model, or the object around it names the only one.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kv_sim.replay.readers.fields import id_list, number, positive, text_of, whole
from kv_sim.replay.readers.format import Container, Format
from kv_sim.replay.readers.record import MalformedError, Record
from kv_sim.replay.readers.required import errors_at, objects_at


class _Around(NamedTuple):
    """Values that a request takes from the objects around it."""

    block_tokens: int
    is_local: bool
    begin: int | float = 0
    model: str | None = None

    def within(self, node: Mapping[str, Any], begin: int | float) -> "_Around":
        """The values for requests in a node, which begins ``begin`` later."""
        models = node.get("models")
        model = str(models[0]) if isinstance(models, list) and len(models) == 1 else None
        return self._replace(begin=self.begin + begin, model=model or self.model)


def _parse(record: Mapping[str, Any]) -> Iterator[Record]:
    block_tokens = positive(record, "block_size")
    scope = record.get("hash_id_scope", "local")
    if scope not in ("local", "global"):
        raise MalformedError(f"hash_id_scope: expected 'local' or 'global', got {scope!r}")
    yield from _requests(record, _Around(block_tokens, scope == "local").within(record, 0), "requests")


def _requests(node: Mapping[str, Any], around: _Around, where: str) -> Iterator[Record]:
    for place, request in objects_at(node.get("requests"), where):
        if request.get("type") == "subagent":
            inner = around.within(request, _begin_within(request))
            yield from _requests(request, inner, f"{place}.requests")
            continue
        with errors_at(place):
            yield _request(request, around)


def _request(request: Mapping[str, Any], around: _Around) -> Record:
    return Record(
        around.begin + number(request, "t"),
        whole(request, "in"),
        whole(request, "out", usual=0),
        id_list(request, "hash_ids"),
        block_tokens=around.block_tokens,
        is_session_local=around.is_local,
        model=text_of(request, "model") or around.model,
    )


def _begin_within(subagent: Mapping[str, Any]) -> int | float:
    """The moment from which times within a subagent count."""
    own, inside = _time_of(subagent), subagent.get("requests")
    if own is None or not isinstance(inside, list):
        return 0
    times = [time for one in inside if (time := _time_of(one)) is not None]
    return own if min(times, default=own) < own else 0


def _time_of(request: Any) -> int | float | None:
    """Its time, if it has one; a wrong time is reported when the request itself is read."""
    try:
        return number(request, "t") if isinstance(request, dict) else None
    except MalformedError:
        return None


WEKA = Format("weka", Container.JSON, ("id", "block_size", "requests"), _parse, merges_sessions=True)
