"""A world in which engines serve each other: kv-p2p's connector, with its router, and with a world as its wire.

There is one engine, which pulls from itself: what a request leaves behind another one pulls. That is no loss,
since neither half knows who is at the other end. ``WorldWire`` moves blocks by two copies of the world's, from a
block that is held to a page of host memory, as if it had been sent, and from there to the block that it is for;
both fail, tear, get lost or are reported twice as the world likes. ``RoutedP2PConnector`` is `P2PConnector` with
what stands between two engines: it gives each request a ticket of its prompt, or of the beginning of it, if there
ever was one. That may be long gone, or of another salt.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from kv_api import ForwardContext, KVCacheConfig, KVCaches, KVConnectorTransferResults, Request, VllmConfig
from kv_p2p import P2PConnector, P2PSchedulerSide, P2PWorkerSide
from kv_p2p.pulling.metadata import Hold, Pull, Source
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.ticket import WANTED
from kv_p2p.pulling.wire import Ended, Wire
from kv_sim.memory.copies import Copy, Direction, State
from kv_sim.memory.device import Device
from kv_sim.violation import Invariant

KNOWN_TICKETS: Final = 6
"""How many a router remembers."""
UNWANTED: Final = 4
"""One request of so many leaves no ticket."""
GIVEN_TWICE: Final = 3
"""One request of so many leaves the ticket that it gets for the next one, too."""


@dataclass
class OnTheWay:
    """A pull: its blocks are sent, and then received."""

    pull: Pull
    slots: range


@dataclass
class WorldWire:
    """Fits ``kv_p2p.pulling.wire.Wire``."""

    device: Device
    holds: dict[str, Hold] = field(default_factory=dict)
    sent: dict[int, OnTheWay] = field(default_factory=dict)
    """By the copy from the held blocks."""
    received: dict[int, OnTheWay] = field(default_factory=dict)
    """By the copy to the blocks that they are for."""
    ended: Ended = field(default_factory=Ended)
    over: set[str] = field(default_factory=set)
    """Holds that were pulled or declined."""
    failed: set[str] = field(default_factory=set)
    """Requests whose pull failed, since it was last forgotten."""

    def __post_init__(self) -> None:
        self.copies = self.device.copies.open()

    def serve(self, hold: Hold) -> None:
        """Know it."""
        self.holds[hold.hold_id] = hold

    def withdraw(self, hold_id: str) -> bool:
        """Forget it, if no copy reads it."""
        if any(on_the_way.pull.source.hold_id == hold_id for on_the_way in self._that_move(self.sent)):
            return False
        self.holds.pop(hold_id, None)
        return True

    def pull(self, pull: Pull) -> None:
        """Send the blocks of the hold, if it is known and what is meant; else receiving them fails at once."""
        hold = self.holds.get(pull.source.hold_id)
        count = len(pull.block_ids)
        slot = self.device.allocate_host(count)
        on_the_way = OnTheWay(pull, range(slot, slot + count))
        if hold is not None and hold.digest == pull.source.digest:
            there = hold.block_ids[pull.first : pull.first + count]
            pairs = list(zip(there, on_the_way.slots, strict=True))
            self.sent[self.copies.submit(Direction.STORE, pairs)] = on_the_way
        else:
            copy = self._receive(on_the_way)
            self.device.copies.fail(self.device.copies.running[copy])

    def give_up(self, request_id: str) -> bool:
        """Forget it, if no copy writes its blocks."""
        if any(on_the_way.pull.request_id == request_id for on_the_way in self._that_move(self.received)):
            return False
        for kind in (self.sent, self.received):
            for copy in [copy for copy, one in kind.items() if one.pull.request_id == request_id]:
                del kind[copy]
        return True

    def decline(self, source: Source) -> None:
        """End the hold, if it is known and no copy reads it."""
        hold = self.holds.get(source.hold_id)
        if hold is not None and hold.digest == source.digest and self.withdraw(source.hold_id):
            self.ended.served.append(source.hold_id)

    def poll(self) -> Ended:
        """What ended. What was sent is received next."""
        for result in self.copies.poll():
            if (on_the_way := self.sent.pop(result.copy_id, None)) is not None:
                self._sent(on_the_way, success=result.success)
            elif (on_the_way := self.received.pop(result.copy_id, None)) is not None:
                self._received(on_the_way, success=result.success)
        ended, self.ended = self.ended, Ended()
        self.over.update(ended.served)
        self.failed.update(request_id for request_id, _ in ended.failed)
        return ended

    def _sent(self, on_the_way: OnTheWay, *, success: bool) -> None:
        if not success:
            self.ended.failed.append((on_the_way.pull.request_id, "it was not sent"))
            return
        self._receive(on_the_way)

    def _receive(self, on_the_way: OnTheWay) -> int:
        pairs = list(zip(on_the_way.pull.block_ids, on_the_way.slots, strict=True))
        copy = self.copies.submit(Direction.LOAD, pairs, after_compute=False)
        self.received[copy] = on_the_way
        return copy

    def _received(self, on_the_way: OnTheWay, *, success: bool) -> None:
        request_id = on_the_way.pull.request_id
        if not success:
            self.ended.failed.append((request_id, "it was not received"))
            return
        self.ended.pulled.append(request_id)
        hold_id = on_the_way.pull.source.hold_id
        if hold_id in self.holds and self.withdraw(hold_id):
            self.ended.served.append(hold_id)

    def _that_move(self, kind: dict[int, OnTheWay]) -> list[OnTheWay]:
        """Those whose copy may still move something."""
        running: dict[int, Copy] = self.device.copies.running
        return [one for copy, one in kind.items() if copy in running and running[copy].state is not State.LOST]

    def wait(self, seconds: float) -> None:
        """Time is the world's."""

    def close(self) -> None:
        """Let everything end."""
        self.copies.wait([*self.sent, *self.received])


class Router:
    """Knows the tickets of requests that ended, by prompt; each is given to one that comes later, or to two."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], dict[str, Any]] = {}
        self._arrived = 0

    def params_for(self, tokens: tuple[int, ...]) -> dict[str, Any]:
        """What a request comes with: the newest ticket of its prompt or the beginning of it, and a wish."""
        self._arrived += 1
        wish = {WANTED: self._arrived % UNWANTED != 0}
        found = [prompt for prompt in self._known if prompt == tokens[: len(prompt)]]
        if not found:
            return wish
        ticket = self._known[found[-1]]
        if self._arrived % GIVEN_TWICE:
            del self._known[found[-1]]
        return {**ticket, **wish}

    def learn(self, tokens: tuple[int, ...], ticket: dict[str, Any]) -> None:
        """A request with this prompt has ended and is held."""
        self._known.pop(tokens, None)
        self._known[tokens] = ticket
        for oldest in list(self._known)[:-KNOWN_TICKETS]:
            del self._known[oldest]


class RoutedSchedulerSide(P2PSchedulerSide):
    """Has a router at its door."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None, options: Options) -> None:
        super().__init__(vllm_config, kv_cache_config, options)
        self._router = Router()

    def on_new_request(self, request: Request) -> None:
        # To the connector it is a client's: there is one before the request arrives.
        request.kv_transfer_params = self._router.params_for(tuple(request.all_token_ids))  # type: ignore[misc]
        super().on_new_request(request)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        hold, ticket = super().request_finished(request, block_ids)
        if ticket is not None:
            self._router.learn(tuple(request.all_token_ids[: request.num_prompt_tokens]), ticket)
        return hold, ticket


class TimedP2PWorkerSide(P2PWorkerSide):
    """Its time is the steps that computed nothing and in which no copy was under way that will ever end.

    It looks at its own reports: a hold that ends early serves nobody, a pull that fails without a reason is
    computed instead, and nothing else breaks.
    """

    _seconds = 0
    _waited_steps = 0

    def register_kv_caches(self, kv_caches: KVCaches) -> None:
        self._device: Device = next(iter(kv_caches.values())).device
        self._holds: dict[str, tuple[str, float]] = {}
        """By request: its hold, and when that may end unpulled."""
        self._pulls: dict[str, tuple[Pull, float]] = {}
        """By request: its pull, and when that may end unfilled."""
        self._lost: set[int] = set()
        """Blocks of pulls that failed in this step."""
        super().register_kv_caches(kv_caches)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        told = self._told()
        waited, self._waited_steps = self._waited_steps, self._device.waited_steps
        self._seconds += told.is_idle and waited < self._waited_steps
        options, now = self._kv_transfer_config.kv_connector_extra_config, self.clock()
        for hold in told.holds:
            self._holds[hold.request_id] = hold.hold_id, now + options["hold_seconds"]
        for pull in told.pulls:
            self._pulls[pull.request_id] = pull, now + options["pull_seconds"]
        for request_id in self._holds.keys() & set(told.revoked):
            self._holds[request_id] = self._holds[request_id][0], now
        super().start_load_kv(forward_context, **kwargs)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        results = super().get_transfer_results(finished_req_ids)
        wire, now = self.wire, self.clock()
        assert isinstance(wire, WorldWire), f"the wire is {wire!r}"
        self._lost.clear()
        for request_id in [name for name in self._holds if name not in self._held]:
            hold_id, end = self._holds.pop(request_id)
            if hold_id not in wire.over and now < end:
                what = f"request {request_id} is held no longer, but nobody pulled or declined it"
                self._refuse(what, end - now)
        for request_id in [name for name in self._pulls if name not in self._pulling]:
            pull, end = self._pulls.pop(request_id)
            if request_id in results.failed_recving:
                self._lost.update(pull.block_ids)
                if request_id not in wire.failed and now < end:
                    self._refuse(f"the pull of request {request_id} failed, but none of its copies did", end - now)
        wire.over.intersection_update(hold_id for hold_id, _ in self._holds.values())
        wire.failed.intersection_update(self._pulls)
        return results

    def get_block_ids_with_load_errors(self) -> set[int]:
        unfilled = super().get_block_ids_with_load_errors()
        if more := sorted(unfilled - self._lost):
            self._refuse(f"blocks {more} weren't filled, but no pull of them failed in this step")
        return unfilled

    def _refuse(self, what: str, seconds: float | None = None) -> None:
        left = f", and it had {seconds:g} seconds left" if seconds is not None else ""
        self._device.shadow.violation(Invariant.PROTOCOL, f"worker {self._device.rank} side reports: {what}{left}")

    def clock(self) -> float:
        """Those steps."""
        return float(self._seconds)


class RoutedP2PConnector(P2PConnector):
    """A producer, a consumer and the router between them."""

    scheduler_class = RoutedSchedulerSide
    worker_class = TimedP2PWorkerSide

    def make_wire(
        self, kv_caches: KVCaches, options: Options, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig | None
    ) -> Wire:
        return WorldWire(next(iter(kv_caches.values())).device)
