"""CONSERVATION of a medium's room: whenever no job is under way, a medium has room for the same number of chunks.

The room is measured: it is the largest number of new chunks that one ``prepare_store`` accepts, all or nothing.
Each try is undone by reporting the store as failed. It may evict stored chunks, so this is the last check at rest.

There are four rules. At rest there is as much room as after a reset: a pin that was never removed shows as
missing room. A reset frees every place, whether its chunk was stored, being stored or being read, once the medium
is told that no earlier job is under way. And a store that is refused for lack of room changes nothing: all chunks
that were found before are found (HITS). And a store is all or nothing: an empty medium that stores a part of an
offer must not have left out the rest for lack of room (PROTOCOL). It has, if it stores chunks of the rest when
they are offered alone, and if it also stores all of any other offer that is as small.

Some media give each chunk only as much room as it needs. How many fit then depends on the stored chunks and their
places. So such a medium is only checked when empty, with offers of the same chunks.
"""

from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from itertools import count
from typing import Any, Final

from kv_api import LookupResult, OffloadingManager, OffloadKey, ReqContext, make_offload_key
from kv_sim.checkers.media import sides_of
from kv_sim.guard import crashes
from kv_sim.violation import Invariant, Referee

MOST_CHUNKS: Final = 256
"""The largest offer; worlds have room for less."""
OTHER_CHUNKS: Final = 8
"""How often other chunks are offered to an empty medium, to see whether all chunks take the same room."""


def check_room(connector: Any, referee: Referee) -> None:
    """Check the media of a connector that can be reset, at rest. Afterwards their chunks are gone."""
    for side in sides_of(connector):
        with crashes(referee, "the medium, at rest"):
            _Room(side.manager, side.group_ids, referee).check()


class _Room:
    def __init__(self, manager: OffloadingManager, group_ids: Sequence[int], referee: Referee) -> None:
        self._manager = manager
        self._group_ids = group_ids
        self._referee = referee
        self._name = type(getattr(manager, "manager", manager)).__name__
        self._context = ReqContext("room")
        self._offers = count(1)
        self._has_equal_places = True
        self._leaves_some_out = False

    def check(self) -> None:
        self._manager.on_new_request(self._context)
        self._count()
        self._manager.on_request_finished(self._context)

    def _count(self) -> None:
        before = self._most()
        self._reset()
        self._check_all_or_nothing()
        most = self._most(before)
        self._has_equal_places = all(self._fits(most) for _ in range(OTHER_CHUNKS)) and (
            most == MOST_CHUNKS or not any(self._fits(most + 1) for _ in range(OTHER_CHUNKS))
        )
        if not self._has_equal_places:
            if self._leaves_some_out:
                return  # it may accept another number of chunks the next time
            most = self._most()
        elif before != most:
            why = "some are still in use" if before < most else "the reset lost some"
            self._fail(f"has room for {before} more chunks, but after a reset for {most}: {why}")
        for what, use in (("stored", self._stored), ("being stored", self._in_flight), ("being read", self._read)):
            used = use(most)
            if use == self._stored:
                self._check_refusal(used or [])
            self._reset()
            left = self._most(most)
            if left != most:
                self._fail(f"has room for {most} chunks, but for {left} after a reset while {most} were {what}")

    def _most(self, expected: int | None = None) -> int:
        """The most chunks that one store may have; ``expected`` is tried first, with one chunk more."""
        fits, too_many = 0, MOST_CHUNKS + 1
        first = [] if expected is None else [expected, expected + 1]
        while too_many - fits > 1:
            tried = next((chunks for chunks in first if fits < chunks < too_many), (fits + too_many) // 2)
            if self._fits(tried):
                fits = tried
            else:
                too_many = tried
        return fits

    def _fits(self, chunks: int) -> bool:
        stored = self._in_flight(chunks)
        if stored is not None:
            self._manager.complete_store(stored, self._context, success=False)
        return stored is not None

    # -- the states of chunks at a reset --------------------------------------------------------

    def _stored(self, chunks: int) -> list[OffloadKey]:
        stored = self._in_flight(chunks) or []
        self._manager.complete_store(stored, self._context, success=True)
        return stored

    def _check_refusal(self, stored: list[OffloadKey]) -> None:
        """Offer more chunks than there is room for; nothing is checked if the medium accepts some of them."""
        before = self._found(stored)
        output = self._manager.prepare_store(self._some(MOST_CHUNKS, next(self._offers)), self._context)
        if output is not None:
            self._manager.complete_store(output.keys_to_store, self._context, success=False)
            return
        after = self._found(before)
        if len(after) < len(before):
            self._fail(
                f"finds {len(before)} chunks, but only {len(after)} of them after prepare_store refused "
                f"{MOST_CHUNKS} more: a refused store must change nothing",
                Invariant.HITS,
            )

    def _check_all_or_nothing(self) -> None:
        """Offer more chunks to the empty medium than it has room for."""
        offered = self._some(MOST_CHUNKS, next(self._offers))
        kept = self._kept_of(offered)
        left_out = [key for key in offered if key not in kept][: len(kept)]
        small = [left_out, *(self._some(len(kept), next(self._offers)) for _ in range(OTHER_CHUNKS))]
        if left_out and all(len(self._kept_of(keys)) == len(keys) for keys in small):
            self._fail(
                f"was offered {MOST_CHUNKS} chunks, for which it has no room, and prepare_store stores "
                f"{len(kept)} of them, expected None: all or nothing",
                Invariant.PROTOCOL,
            )

    def _kept_of(self, keys: list[OffloadKey]) -> set[OffloadKey]:
        """Which of these chunks one store would keep. It is undone."""
        output = self._manager.prepare_store(keys, self._context)
        if output is None:
            return set()
        self._manager.complete_store(output.keys_to_store, self._context, success=False)
        return {*output.keys_to_store}

    def _found(self, keys: list[OffloadKey]) -> list[OffloadKey]:
        return [key for key in keys if self._manager.lookup(key, self._context) is LookupResult.HIT]

    def _in_flight(self, chunks: int) -> list[OffloadKey] | None:
        output = self._manager.prepare_store(self._some(chunks), self._context)
        if output is None:
            return None
        self._leaves_some_out |= len(output.keys_to_store) < chunks
        return output.keys_to_store

    def _read(self, chunks: int) -> None:
        self._manager.prepare_load(self._stored(chunks), self._context)

    def _some(self, chunks: int, offer: int | None = None) -> list[OffloadKey]:
        """New chunks of all groups in turn; always the same ones if chunks differ in the room that they take."""
        if offer is None:
            offer = next(self._offers) if self._has_equal_places else 0
        groups = self._group_ids
        return [_new_chunk(offer, number, groups[number % len(groups)]) for number in range(chunks)]

    def _reset(self) -> None:
        self._manager.reset_cache()
        self._manager.on_reset_flushed()

    def _fail(self, message: str, invariant: Invariant = Invariant.CONSERVATION) -> None:
        self._referee.fail(invariant, f"at rest the medium's {self._name} {message}")


@cache
def _new_chunk(offer: int, number: int, group: int) -> OffloadKey:
    """The key of a chunk that no request has; each world at rest offers the same ones."""
    return make_offload_key(sha256(f"room {offer} {number}".encode()).digest(), group)
