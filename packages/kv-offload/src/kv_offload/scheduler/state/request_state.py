"""What the scheduler's side knows of one request, in one life of its id.

A request id may be reused: one request may end and another begin with the same id within one step. So a life is
this object. Jobs refer to the object, and the table from ids to lives has only lives that go on.

A *promise* is the last answer to a query, and is replaced by the next one. It pins nothing: from the query to the
allocation the manager's lock is held, and what was a hit is asked for once more before it is pinned. ``refused``
are chunks that a load of this life couldn't deliver; they are misses for it from then on, whatever the medium
says.

Who changes a life: ``matching`` what belongs to queries and loads (``promise`` to ``awaited``, ``supplies``); of
these ``side`` clears ``deferrals`` when there are blocks, and ``outcomes`` adds to ``refused`` or clears it.
``books`` changes what belongs to offers without room, and ``jobs`` the sets of jobs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kv_api import (
    Locality,
    Medium,
    OffloadingManager,
    OffloadKey,
    OffloadPolicy,
    ReqContext,
    Request,
    TierFilter,
    TierMatcher,
)
from kv_offload.log import warn
from kv_offload.scheduler.state.block_index import BlockIndex
from kv_offload.scheduler.state.progress import Progress
from kv_offload.scheduler.state.sources import Supply
from kv_offload.shape.layout import Layout

_MOST_SHOWN: Final = 100
"""Characters of what a client sends and nobody can use."""


class Promise(NamedTuple):
    """The answer to a query."""

    local: int
    """Tokens that the request has on the GPU."""
    tokens: int
    in_step: bool = False
    is_tail: bool = False
    """The promised tokens end within a block, with a tail."""


@dataclass(slots=True, eq=False)
class RequestState:
    """One life of one request."""

    request: Request
    context: ReqContext
    progress: Progress
    offers_loaded: bool = False
    """Loaded chunks are offered for storing, too."""
    max_load_tokens: int | None = None
    max_offload_tokens: int | None = None
    promise: Promise = field(default=Promise(0, 0))
    refused: set[OffloadKey] = field(default_factory=set)
    deferrals: int = 0
    """Queries that were answered "ask again", since it last got blocks."""
    deferred_since: float | None = None
    awaited: tuple[int, OffloadKey] | None = None
    """A chunk that isn't readable yet, and the tokens of its own with which the request waits for it."""
    store_refusals: int = 0
    """Offers in a row for which the medium had no room."""
    retry_step: int = 0
    """The step, by the agenda, of the next offer at the earliest."""
    loads: set[int] = field(default_factory=set)
    """Jobs of asynchronous loads in flight."""
    stores: set[int] = field(default_factory=set)
    """Live jobs that store its chunks."""
    supplies: list[Supply] = field(default_factory=list)
    """For the last load, the tokens that the chunks of each group bring."""

    def refuse_store(self, next_step: int) -> None:
        """There was no room: pass over 1, 2, 4, … steps before the next try, so that waiting costs little."""
        self.retry_step = next_step + (1 << min(self.store_refusals, 16))
        self.store_refusals += 1

    def accept_store(self) -> None:
        """The medium had room for what it offered."""
        self.retry_step = self.store_refusals = 0

    def check(self) -> None:
        """Recount."""
        self.progress.check()
        assert len(self.loads) <= 1, f"{self.context.req_id} has loads {sorted(self.loads)} in flight at once"
        assert self.deferrals >= 0 and self.store_refusals >= 0, "counts below zero"


def begin_life(
    request: Request, layout: Layout, manager: OffloadingManager, block_index: BlockIndex | None
) -> RequestState:
    """A request arrived: read what its sender wishes, and ask how it is offloaded."""
    sent: Any = request.kv_transfer_params
    name = request.request_id
    if sent is not None and not isinstance(sent, dict):  # a client of vLLM's can send anything (vllm_xargs)
        warn("request %s: kv_transfer_params: expected an object, got %.100r; it is ignored", name, sent)
        sent = None
    params = sent or {}
    tiers = _tier_filter(params, name)
    context = ReqContext(name, sent, getattr(request, "kv_hints", None), tiers)
    return RequestState(
        request,
        context,
        Progress(layout, context, block_index),
        offers_loaded=manager.on_new_request(context).policy is OffloadPolicy.REQUEST_LEVEL,
        max_load_tokens=_tokens(params, "max_load_tokens", name),
        max_offload_tokens=_tokens(params, "max_offload_tokens", name),
    )


def _tokens(params: Mapping[str, Any], key: str, name: str) -> int | None:
    """A wish of the sender of request ``name``, who can't be answered with an error; a wrong one is ignored."""
    value = params.get(key)
    if value is None or (type(value) is int and value >= 0):
        return value
    _ignore(name, f"{key}: expected a whole number of at least 0, got {value!r:.{_MOST_SHOWN}}")
    return None


def _tier_filter(params: Mapping[str, Any], name: str) -> TierFilter:
    """``kv_load_tiers``: which tiers the request may load from. Wrong entries are ignored."""
    tiers = params.get("kv_load_tiers")
    if tiers is None:
        return TierFilter.ALL
    if not isinstance(tiers, list):
        _ignore(name, f"kv_load_tiers: expected a list, got {tiers!r:.{_MOST_SHOWN}}")
        return TierFilter.ALL
    found = [_matcher(tier) for tier in tiers]
    wrong = [tier for tier, matcher in zip(tiers, found, strict=True) if matcher is None]
    if wrong:
        media, localities = (" or ".join(one.value for one in kind) for kind in (Medium, Locality))
        expected = f"{{medium: {media}, locality: {localities}}}"
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        _ignore(name, f"kv_load_tiers: expected {expected}, got {wrong[0]!r:.{_MOST_SHOWN}}{more}")
    matchers = tuple(matcher for matcher in found if matcher is not None)
    return TierFilter.ALL if tiers and not matchers else TierFilter(matchers)


def _matcher(entry: object) -> TierMatcher | None:
    """What an entry names; None if it is none."""
    if isinstance(entry, dict):
        medium, locality = entry.get("medium"), entry.get("locality")
        try:
            return TierMatcher(
                None if medium is None else Medium(str(medium).upper()),
                None if locality is None else Locality(str(locality).upper()),
            )
        except ValueError:
            pass
    return None


def _ignore(name: str, wish: str) -> None:
    warn("request %s: kv_transfer_params.%s; it is ignored", name, wish)
