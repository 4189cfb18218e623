"""``TimedWire``: a server's wire to the other servers of a replay, in the form that kv-p2p's workers use.

All wires know every hold and every pull (``Wires``); the ``network`` decides when a pull runs. The workers of both
sides learn of its end when they poll: the receiver's that its blocks are filled, the sender's that its blocks are
not read any more. A worker may give up a hold or a pull in a step in which nothing else ends, so these times count
as ends, too (``next_end``).

**Invariants** (``check``): a pull waits only for a hold that is neither served nor over; every pull has news to
come, or waits for its hold.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from kv_p2p.pulling.metadata import Hold, Pull, Source
from kv_p2p.pulling.options import Options
from kv_p2p.pulling.wire import Ended
from kv_sim.replay.timed.durations.link import Traffic
from kv_sim.replay.timed.durations.network import Network, Span
from kv_sim.replay.timed.durations.timing import SECOND, Clock

GONE: Final = "the other server holds it no longer"


@dataclass(eq=False)
class Pulling:
    """A pull that hasn't ended."""

    pull: Pull
    receiver: "TimedWire"
    gives_up: int
    sender: "TimedWire | None" = None
    span: Span | None = None
    """When its bytes move. None: its hold isn't served yet."""

    @property
    def hold_id(self) -> str:
        """The hold that it pulls."""
        return self.pull.source.hold_id

    def has_begun(self, now: int) -> bool:
        """Whether its bytes are moving, so that it can't be stopped."""
        return self.span is not None and self.span.begin <= now


@dataclass(frozen=True)
class Told:
    """One piece of news for a worker; one field is set."""

    served: str | None = None
    """A hold that was read, or that its consumer declined."""
    pulled: Pulling | None = None
    failed: Pulling | None = None


class Wires:
    """The wires of all servers, and the holds and pulls between them."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._wires: list[TimedWire] = []
        self.holders: dict[str, TimedWire] = {}
        """The wire that serves each hold."""
        self.waiting: dict[str, Pulling] = {}
        """The pulls that wait for their hold to be served, by hold."""
        self.over: set[str] = set()
        """Holds that ended, or that end as soon as they are served."""

    def open(self, clock: Clock) -> "TimedWire":
        """Make the wire of one more server."""
        self._wires.append(TimedWire(self, len(self._wires), clock))
        return self._wires[-1]


class TimedWire:
    """One server's wire. It implements ``kv_p2p.pulling.wire.Wire``."""

    def __init__(self, wires: Wires, number: int, clock: Clock) -> None:
        self._wires = wires
        self.number = number
        self._clock = clock
        self._hold_seconds = self._pull_seconds = 0.0
        self.activity = 0
        """A number that grows whenever a hold or pull begins or is reported."""
        self.traffic = Traffic()
        """What this server pulled."""
        self.log: Callable[[Pulling, int], None] = lambda pulling, now: None
        """Called with every pull of this server that is reported, and the time."""
        self._holds: dict[str, int] = {}
        """The holds that are served, and when their time is over."""
        self._readers: dict[str, Pulling] = {}
        """The pull that reads each served hold."""
        self._pulls: dict[str, Pulling] = {}
        """This server's pulls, by request."""
        self._news: list[tuple[int, int, Told]] = []
        self._told = 0

    def set_patience(self, options: Options) -> None:
        """Note after how long the worker gives up a hold or a pull."""
        self._hold_seconds, self._pull_seconds = options.hold_seconds, options.pull_seconds

    # -- what the engine asks ------------------------------------------------------------------

    def next_end(self) -> int | None:
        """When a hold or pull next ends or is given up, as far as is known."""
        moments = [self._news[0][0]] if self._news else []
        if self._holds:
            moments.append(next(iter(self._holds.values())))  # all have the same time, so the oldest is over first
        if self._pulls:
            moments.append(next(iter(self._pulls.values())).gives_up)
        return min(moments) if moments else None

    @property
    def is_idle(self) -> bool:
        """Whether there is no hold, no pull and no news."""
        return not (self._holds or self._pulls or self._news)

    @property
    def awaits_others(self) -> bool:
        """Whether another server may cause an end here that ``next_end`` doesn't know of.

        It may pull or decline a hold of this server, serve a hold that a pull here waits for, or withdraw a hold
        before its pull has begun.
        """
        return bool(self._holds) or not all(one.has_begun(self._clock.now) for one in self._pulls.values())

    def check(self) -> None:
        """Recount."""
        wires = self._wires
        for hold_id, one in wires.waiting.items():
            assert hold_id not in wires.holders and hold_id not in wires.over, f"{one} waits for a known hold"
        told = [news.pulled or news.failed for _, _, news in self._news]
        for one in self._pulls.values():
            assert one in told or wires.waiting.get(one.hold_id) is one, f"{one} neither waits nor has news"
        wires.network.check()

    # -- what the worker asks: holds -------------------------------------------------------------

    def serve(self, hold: Hold) -> None:
        """Let a hold be pulled; a pull that waits for it begins."""
        self.activity += 1
        if hold.hold_id in self._wires.over:
            self._tell(self._clock.now, Told(served=hold.hold_id))
            return
        self._holds[hold.hold_id] = self._over(self._hold_seconds)
        self._wires.holders[hold.hold_id] = self
        waiting = self._wires.waiting.pop(hold.hold_id, None)
        if waiting is not None:
            self._send(waiting, self._clock.now)

    def withdraw(self, hold_id: str) -> bool:
        """End a hold, so that it can't be pulled any more. False: it is being read."""
        reader, now = self._readers.get(hold_id), self._clock.now
        if reader is not None and reader.has_begun(now):
            return False
        if reader is not None:
            self._stop(reader)
            reader.receiver._tell(now, Told(failed=reader))
        self.activity += 1
        self._end(hold_id)
        return True

    def _end(self, hold_id: str) -> None:
        self._holds.pop(hold_id, None)
        self._readers.pop(hold_id, None)
        self._wires.holders.pop(hold_id, None)
        self._wires.over.add(hold_id)

    # -- what the worker asks: pulls ---------------------------------------------------------------

    def pull(self, pull: Pull) -> None:
        """Begin a pull, or let it wait until its hold is served."""
        self.activity += 1
        one = Pulling(pull, self, self._over(self._pull_seconds))
        self._pulls[pull.request_id] = one
        holder = self._wires.holders.get(one.hold_id)
        if holder is not None:
            holder._send(one, self._clock.now)
        elif one.hold_id in self._wires.over:
            self._tell(self._clock.now, Told(failed=one))
        else:
            self._wires.waiting[one.hold_id] = one

    def _send(self, one: Pulling, now: int) -> None:
        """Schedule a pull of this server's hold on the network."""
        one.sender = self
        self._readers[one.hold_id] = one
        one.span = self._wires.network.give(self.number, one.receiver.number, len(one.pull.block_ids), now)
        one.receiver._tell(one.span.end, Told(pulled=one))
        self._tell(one.span.end, Told(served=one.hold_id))

    def _stop(self, one: Pulling) -> None:
        """Cancel a pull that hasn't begun: its span, its news, its place as a reader."""
        self._wires.waiting.pop(one.hold_id, None)
        if one.span is None or one.sender is None:
            return
        self._wires.network.take_back(one.sender.number, one.receiver.number, one.span)
        one.receiver._forget(Told(pulled=one))
        one.sender._forget(Told(served=one.hold_id))
        del one.sender._readers[one.hold_id]

    def give_up(self, request_id: str) -> bool:
        """Stop a pull. False: its bytes are moving."""
        one = self._pulls[request_id]
        if one.has_begun(self._clock.now):
            return False
        self._stop(one)
        del self._pulls[request_id]
        return True

    def decline(self, source: Source) -> None:
        """Tell the other server that its hold won't be pulled."""
        self.activity += 1
        holder = self._wires.holders.get(source.hold_id)
        if holder is not None:
            holder._tell(self._clock.now, Told(served=source.hold_id))
        self._wires.over.add(source.hold_id)

    # -- news ----------------------------------------------------------------------------------

    def poll(self) -> Ended:
        """The holds and pulls that have ended since the last call."""
        ended, now = Ended(), self._clock.now
        while self._news and self._news[0][0] <= now:
            self.activity += 1
            told = heappop(self._news)[-1]
            if told.served is not None:
                self._end(told.served)
                ended.served.append(told.served)
            elif told.pulled is not None:
                self._take(told.pulled, ended, now)
            elif told.failed is not None:
                del self._pulls[told.failed.pull.request_id]
                ended.failed.append((told.failed.pull.request_id, GONE))
        return ended

    def _take(self, one: Pulling, ended: Ended, now: int) -> None:
        """A pull has filled its blocks."""
        assert one.span is not None, f"{one} ended without having run"
        blocks = len(one.pull.block_ids)
        del self._pulls[one.pull.request_id]
        ended.pulled.append(one.pull.request_id)
        ended.pulled_bytes += blocks * self._wires.network.costs.block_bytes
        self.traffic.jobs += 1
        self.traffic.blocks += blocks
        self.traffic.busy_ns += one.span.end - one.span.begin
        self.log(one, now)

    def _tell(self, moment: int, told: Told) -> None:
        self._told += 1
        heappush(self._news, (moment, self._told, told))

    def _forget(self, told: Told) -> None:
        self._news = sorted(news for news in self._news if news[-1] != told)

    def _over(self, seconds: float) -> int:
        """The time ``seconds`` from now, rounded down to a nanosecond."""
        return int((self._clock.now / SECOND + seconds) * SECOND)

    def wait(self, seconds: float) -> None:
        """Return at once: time is the replay's."""

    def close(self) -> None:
        """Nothing to stop: a replay has no threads."""
