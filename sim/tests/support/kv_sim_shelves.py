"""A medium that answers what it is told to, chunks to ask it for, and a referee that writes down what is found."""

from collections.abc import Collection
from typing import Any

from kv_api import (
    BlockIDsLoadStoreSpec,
    LoadStoreSpec,
    LookupResult,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    make_offload_key,
)
from kv_sim.violation import Invariant, Referee

A, B, C, D = (make_offload_key(bytes([number]), 0) for number in range(4))
REQUEST = ReqContext("r")


class Taken(Referee):
    """Writes down what is found instead of raising it."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[Invariant, str]] = []

    def fail(self, invariant: Invariant, message: str) -> None:
        self.taken.append((invariant, message))


class Shelves(OffloadingManager):
    """Does as it is told, and answers what it is told to."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.heard: list[tuple[str, Any]] = []

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        return self.answer  # type: ignore[no-any-return]

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return self.answer  # type: ignore[no-any-return]

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        return self.answer  # type: ignore[no-any-return]

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        return self.answer  # type: ignore[no-any-return]

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self.heard.append(("complete_load", keys))

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        self.heard.append(("complete_store", (keys, success)))

    def take_events(self) -> Any:
        return self.answer

    def reset_cache(self) -> None:
        self.heard.append(("reset_cache", None))

    def on_reset_flushed(self) -> None:
        self.heard.append(("on_reset_flushed", None))


def stored(
    keys: list[OffloadKey], places: list[int], evicted: list[OffloadKey] | None = None
) -> PrepareStoreOutput:
    return PrepareStoreOutput(keys, BlockIDsLoadStoreSpec(places), evicted or [])
