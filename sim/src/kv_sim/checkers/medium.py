"""A guard between kv-offload's connector and the manager of its medium, which judges the manager's answers.

The manager must answer as ``kv_api.OffloadingManager`` says (PROTOCOL). It must not evict a chunk that a job reads
or writes, nor give its place to another chunk; after a reset not before ``on_reset_flushed`` says that earlier
jobs have ended (OWNERSHIP). Places are checked if they are numbers, one for each chunk. A chunk whose last store
is under way or failed is no hit (HITS), unless an engine that shares the store has stored it as well.

The connector is judged, too. It must begin each request once (``on_new_request``), and end it once
(``on_request_finished``), with the same context. In between it may look chunks up and prepare jobs for it, and
must not begin another one of its id, by which a manager may know it (PROTOCOL). It must not offer a chunk again
and again (WORK).

State: for each chunk in use its place and how many jobs use it; the places of jobs from before the last reset;
which chunks aren't stored, and why; and which requests have begun.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from kv_api import (
    BlockIDsLoadStoreSpec,
    LoadStoreSpec,
    LookupResult,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrefixLookup,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    StoreOffer,
)
from kv_sim.checkers.answers import shown
from kv_sim.violation import Invariant, Referee

MOST_OFFERS: Final = 50
"""How often a request may offer one chunk and be answered. Preempted requests offer chunks again, but far less."""

UNDER_WAY: Final = "hasn't ended"


class MediumGuard:
    """One manager, guarded. Unknown attributes are the manager's."""

    def __init__(self, manager: OffloadingManager, referee: Referee, room: Counter[str] | None = None) -> None:
        self.manager = manager
        self._referee = referee
        self._room = Counter() if room is None else room
        self._name = type(manager).__name__
        self._users: Counter[OffloadKey] = Counter()
        """Jobs that read or write a chunk."""
        self._place_of: dict[OffloadKey, int] = {}
        """The places of these chunks, as far as they are known."""
        self._withheld: set[int] = set()
        """Places of jobs from before the last reset."""
        self._not_there: dict[OffloadKey, str] = {}
        """Chunks with a place that aren't stored: whether the store failed or hasn't ended."""
        self.others: list[MediumGuard] = []
        """The guards of the same store at other engines."""
        self._has_stored: set[OffloadKey] = set()
        """If the store is shared: all chunks whose store succeeded here."""
        self._begun: dict[str, ReqContext] = {}
        """The requests that have begun and not ended."""
        self._offers: dict[int, Counter[OffloadKey]] = {}
        """By request: how often it offered each chunk and was answered."""
        self._dropped: set[OffloadKey] = set()
        """Chunks that were dropped while jobs used them, and have jobs left."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.manager, name)
        if name == "limit_chunks":  # vLLM's managers have neither
            return partial(self._limit, found)
        return partial(self._drop, found) if name == "drop" else found

    # -- questions -----------------------------------------------------------------------------

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Ask, and check the answer."""
        name = req_context.req_id
        if name in self._begun:
            self._fail(f"on_new_request is called for request {name}, and one of this id hasn't ended")
        answer = self.manager.on_new_request(req_context)
        self._begun[name] = req_context
        self._expect("on_new_request", answer, RequestOffloadingContext)
        return answer

    def on_request_finished(self, req_context: ReqContext) -> None:
        """The request has ended: no job may be prepared for it any more."""
        self._check_begun("on_request_finished", req_context)
        self.manager.on_request_finished(req_context)
        self._begun.pop(req_context.req_id, None)
        self._offers.pop(id(req_context), None)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Ask, and check the answer."""
        self._check_begun("lookup", req_context)
        answer = self.manager.lookup(key, req_context)
        self._expect("lookup", answer, LookupResult)
        if answer is LookupResult.HIT:
            self._check_hits("lookup", [key])
        return answer

    def lookup_prefix(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrefixLookup:
        """Ask, and check the answer; chunk by chunk if the manager has no method of its own."""
        if type(self.manager).lookup_prefix is OffloadingManager.lookup_prefix:
            return OffloadingManager.lookup_prefix(self, keys, req_context)  # type: ignore[arg-type]
        self._check_begun("lookup_prefix", req_context)
        answer = self.manager.lookup_prefix(keys, req_context)
        self._expect("lookup_prefix", answer, PrefixLookup)
        self._expect("lookup_prefix", answer.rest, LookupResult)
        if not 0 <= answer.hits <= len(keys):
            self._fail(f"lookup_prefix answered {answer.hits} hits of {len(keys)} chunks")
        elif (answer.rest is LookupResult.HIT) is not (answer.hits == len(keys)):
            self._fail(f"lookup_prefix answered {answer.hits} hits of {len(keys)} chunks, and then {answer.rest}")
        else:
            self._check_hits("lookup_prefix", islice(keys, answer.hits))
        return answer

    # -- jobs ----------------------------------------------------------------------------------

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """Pin the chunks, and note their places."""
        self._check_begun("prepare_load", req_context)
        answer = self.manager.prepare_load(keys, req_context)
        self._expect("prepare_load", answer, LoadStoreSpec)
        self._use(keys, answer)
        return answer

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """A load has ended."""
        self.manager.complete_load(keys, req_context)
        self._release(keys)

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """Make room, and check which chunks are evicted."""
        self._check_begun("prepare_store", req_context)
        answer = self.manager.prepare_store(keys, req_context)
        if answer is None:
            self._room["full"] += 1
        else:
            self._count_offers(keys, req_context)
            self._check_store("prepare_store", keys, answer)
        return answer

    def prepare_stores(self, stores: Sequence[StoreOffer]) -> list[PrepareStoreOutput]:
        """The same for several stores; one by one if the manager has no method of its own."""
        if type(self.manager).prepare_stores is OffloadingManager.prepare_stores:
            return OffloadingManager.prepare_stores(self, stores)  # type: ignore[arg-type]
        for _, req_context in stores:
            self._check_begun("prepare_stores", req_context)
        answers = self.manager.prepare_stores(stores)
        if len(answers) > len(stores):
            self._fail(f"prepare_stores answered {len(answers)} times to {len(stores)} stores")
        self._room["full"] += len(answers) < len(stores)
        for (keys, req_context), answer in zip(stores, answers, strict=False):
            self._count_offers(keys, req_context)
            self._check_store("prepare_stores", keys, answer)
        return answers

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        """A store has ended."""
        self.manager.complete_store(keys, req_context, success)
        self._release(keys)
        for key in keys:
            if success:
                self._not_there.pop(key, None)
                self._has_stored.update([key] if self.others else [])
            elif key in self._not_there:
                self._not_there[key] = "failed"

    def reset_cache(self) -> None:
        """All chunks are forgotten, but jobs under way keep their places."""
        self.manager.reset_cache()
        self._withheld.update(self._place_of.values())
        self._offers.clear()
        self._users.clear()
        self._dropped.clear()
        self._place_of.clear()
        self._not_there.clear()

    def on_reset_flushed(self) -> None:
        """Jobs from before the reset have ended."""
        self.manager.on_reset_flushed()
        self._withheld.clear()

    def take_events(self) -> Iterable[OffloadingEvent]:
        """Ask, and check the answer."""
        answer: Any = self.manager.take_events()
        if not isinstance(answer, Iterable):
            self._fail(f"take_events answered {shown(answer)}, expected OffloadingEvents; () for none")
        return answer  # type: ignore[no-any-return]

    def check_ended(self) -> None:
        """Every request has ended: the manager must have been told of each."""
        if self._begun:
            self._fail(
                f"on_request_finished was not called for {', '.join(sorted(self._begun))}: they have ended, and a "
                "medium keeps what it knows of them"
            )

    def _limit(self, limit_chunks: Callable[[int], bool], num_chunks: int) -> bool:
        answer = limit_chunks(num_chunks)
        self._expect("limit_chunks", answer, bool)
        return answer

    def _drop(self, drop: Callable[[Collection[OffloadKey]], None], keys: Collection[OffloadKey]) -> None:
        drop(keys)
        self._dropped.update(key for key in keys if key in self._users)

    # -- parts of these ------------------------------------------------------------------------

    def _check_begun(self, method: str, req_context: ReqContext) -> None:
        if self._begun.get(req_context.req_id) is not req_context:
            self._fail(
                f"{method} is called for request {req_context.req_id} before on_new_request or after "
                "on_request_finished, when a medium may not know it"
            )

    def _count_offers(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """A request may offer a chunk again after a preemption or a loss, but not again and again."""
        offers = self._offers.setdefault(id(req_context), Counter())
        offered = set(keys)
        offers.update(offered)
        most = max((offers[key] for key in offered), default=0)
        if most > MOST_OFFERS:
            self._fail(
                f"prepare_store was offered one chunk of request {req_context.req_id} {most} times, and answered "
                "each time",
                Invariant.WORK,
            )

    def _check_hits(self, method: str, hits: Iterable[OffloadKey]) -> None:
        for key in hits:
            if key in self._not_there and not any(key in other._has_stored for other in self.others):
                self._fail(f"{method} finds a chunk whose store {self._not_there[key]}", Invariant.HITS)

    def _check_store(self, method: str, keys: Collection[OffloadKey], answer: PrepareStoreOutput) -> None:
        self._expect(method, answer, PrepareStoreOutput)
        for name in ("keys_to_store", "evicted_keys"):
            some = getattr(answer, name)
            if not isinstance(some, Collection) or not all(isinstance(key, bytes) for key in some):
                self._fail(f"{method} answered {name}={shown(some)}, expected a list of keys, which are bytes")
                return
        stored, evicted, offered = list(answer.keys_to_store), set(answer.evicted_keys), set(keys)
        strange = [key for key in stored if key not in offered]
        if strange or len(set(stored)) < len(stored):
            what = f"{len(strange)} that weren't offered" if strange else "some of them twice"
            self._fail(f"{method} stores {len(stored)} chunks of {len(keys)} that were offered, {what}")
        again = [key for key in stored if self._not_there.get(key) == UNDER_WAY]
        if again:
            why = ", although drop was called meanwhile" if self._dropped.intersection(again) else ""
            self._fail(f"{method} stores {len(again)} chunks whose store {UNDER_WAY}{why}: leave them out")
        if evicted.intersection(keys):
            self._fail(f"{method} evicts {len(evicted.intersection(keys))} chunks that are in the same offer")
        used = [key for key in evicted if key in self._users]
        if used:
            where = [self._place_of[key] for key in used if key in self._place_of]
            which = _places(where) if where else f"{len(used)} of them"
            self._fail(f"{method} evicts chunks that jobs read or write: {which}", Invariant.OWNERSHIP)
        self._room["full" if evicted else "free"] += 1
        places = set(_places_in(answer.store_spec, stored))
        if taken := places.intersection(self._place_of.values()):
            self._fail(
                f"{method} gives a new chunk a place that a job still uses: {_places(taken)}", Invariant.OWNERSHIP
            )
        if taken := places & self._withheld:
            self._fail(
                f"{method} gives a new chunk a place that a job from before the reset may still use, since "
                f"on_reset_flushed was not called: {_places(taken)}",
                Invariant.OWNERSHIP,
            )
        self._use(stored, answer.store_spec)
        self._not_there.update(dict.fromkeys(stored, UNDER_WAY))

    def _use(self, keys: Collection[OffloadKey], spec: LoadStoreSpec) -> None:
        self._users.update(keys)
        self._place_of.update(zip(keys, _places_in(spec, keys), strict=False))

    def _release(self, keys: Collection[OffloadKey]) -> None:
        for key in keys:
            if self._users[key] > 1:
                self._users[key] -= 1
            else:
                self._users.pop(key, None)
                self._dropped.discard(key)
                self._place_of.pop(key, None)

    def _expect(self, method: str, answer: object, kind: type) -> None:
        if not isinstance(answer, kind):
            self._fail(f"{method} answered {shown(answer)}, expected a {kind.__name__}")

    def _fail(self, message: str, invariant: Invariant = Invariant.PROTOCOL) -> None:
        self._referee.fail(invariant, f"the medium's {self._name}.{message}")


def _places_in(spec: object, keys: Collection[OffloadKey]) -> Sequence[int]:
    """The place of each chunk, if places are numbers."""
    if isinstance(spec, BlockIDsLoadStoreSpec) and len(spec.block_ids) == len(keys):
        return spec.block_ids
    return ()


def _places(places: Collection[int]) -> str:
    return f"{'place' if len(places) == 1 else 'places'} {', '.join(map(str, sorted(places)))}"
