"""``Network``: how long pulls between servers take. A server can send and receive at full bandwidth at once.

A pull occupies the sender's sending side and the receiver's receiving side for the same span, as long as its bytes
take. It gets the earliest span that is free on both sides; a later pull may fill a gap before it. So the end of a
pull is known when it is asked for, and later pulls don't move it.

**Invariants** (``check``): the spans of a side don't overlap, and are in order of time.
"""

from bisect import insort
from dataclasses import dataclass

from kv_sim.replay.timed.durations.timing import LinkCosts


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A time that a pull occupies, in nanoseconds."""

    begin: int
    end: int


class Side:
    """One direction of one server: the spans of its pulls, except those that have passed."""

    def __init__(self) -> None:
        self.given: list[Span] = []

    def pass_to(self, moment: int) -> None:
        """Forget the spans that have passed."""
        while self.given and self.given[0].end <= moment:
            del self.given[0]

    def earliest(self, moment: int, duration: int) -> int:
        """The first time, at ``moment`` or later, from which ``duration`` is free."""
        for one in self.given:
            if one.begin >= moment + duration:
                break
            moment = max(moment, one.end)
        return moment

    def check(self) -> None:
        """Recount."""
        for one, following in zip(self.given, self.given[1:], strict=False):
            assert one.end <= following.begin, f"{one} and {following} overlap"


class Network:
    """Both sides of all servers. Calls come in the order of time."""

    def __init__(self, costs: LinkCosts, latency_ns: int, servers: int) -> None:
        self.costs = costs
        self._latency_ns = latency_ns
        self._sends = [Side() for _ in range(servers)]
        self._receives = [Side() for _ in range(servers)]

    def give(self, sender: int, receiver: int, blocks: int, now: int) -> Span:
        """Reserve the span in which ``sender`` sends ``receiver`` this many blocks."""
        duration = self._latency_ns + self.costs.job_ns(blocks)
        sends, receives = self._sends[sender], self._receives[receiver]
        for side in (sends, receives):
            side.pass_to(now)
        begin = now
        while (later := receives.earliest(sends.earliest(begin, duration), duration)) > begin:
            begin = later
        given = Span(begin, begin + duration)
        for side in (sends, receives):
            insort(side.given, given)
        return given

    def take_back(self, sender: int, receiver: int, given: Span) -> None:
        """Free a span that isn't needed any more."""
        self._sends[sender].given.remove(given)
        self._receives[receiver].given.remove(given)

    def check(self) -> None:
        """Recount."""
        for side in (*self._sends, *self._receives):
            side.check()
