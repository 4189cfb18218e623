"""KV events of vLLM's own connectors, as the testbed reads them.

They have vLLM's classes, with the same names as kv-api's, and name a block by the end of its hash, unless vLLM is
set to use the whole hash.
"""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any, Final

from kv_api import AllBlocksCleared, BlockRemoved, BlockStored
from kv_sim.engine.request import SimRequest

KINDS: Final[dict[str, type[Any]]] = {
    kind.__name__: kind for kind in (AllBlocksCleared, BlockRemoved, BlockStored)
}
TOLD_BYTES: Final = 8
"""Bytes from the end of a hash that an event has as a number."""


class EventReader:
    """Translates events, by the block hashes of the requests that have arrived."""

    def __init__(self) -> None:
        self._whole: dict[int, bytes] = {}
        """The number of a block in vLLM's events -> the block's hash."""

    def know(self, request: SimRequest) -> None:
        """A request arrives: events may name its blocks."""
        hashes = {name for story in request.stories for name in story.block_hashes}
        self._whole |= {int.from_bytes(name[-TOLD_BYTES:]): name for name in hashes}

    def read(self, events: Iterable[Any]) -> Iterator[Any]:
        """The events as kv-api's classes; others stay as they are."""
        for event in events:
            kind = KINDS.get(type(event).__name__)
            yield event if kind is None or isinstance(event, kind) else kind(**self._values(event, kind))

    def _values(self, event: Any, kind: type[Any]) -> dict[str, Any]:
        names = [field.name for field in fields(kind)]
        values = {name: getattr(event, name) for name in names if hasattr(event, name)}
        if "block_hashes" in values:
            values["block_hashes"] = [self._whole.get(name, name) for name in values["block_hashes"]]
        before = values.get("parent_block_hash")
        return values if before is None else {**values, "parent_block_hash": self._whole.get(before, before)}
