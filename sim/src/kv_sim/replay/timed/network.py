"""``Network``: what pulls between servers take. Each server sends and receives at full bandwidth at the same time.

A pull takes a time on the sender's side and the same one on the receiver's, as long as its bytes take. Who asks
first is given the earliest that both have free; who comes later may fill a gap before it. So when a pull ends is
known when it is asked for, and nobody who comes later moves it.

**Invariants** (``check``): the times that a side has given out don't overlap, and stand in their order.
"""

from bisect import insort
from dataclasses import dataclass

from kv_sim.replay.timed.timing import LinkCosts


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A time that is given out, in nanoseconds."""

    begin: int
    end: int


class Side:
    """One direction of one server: the times that are given out, but for those that have passed."""

    def __init__(self) -> None:
        self.given: list[Span] = []

    def pass_to(self, moment: int) -> None:
        """Forget what has passed."""
        while self.given and self.given[0].end <= moment:
            del self.given[0]

    def earliest(self, moment: int, duration: int) -> int:
        """From when on, at that moment or later, so long a time is free."""
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
    """Both sides of so many servers. It is asked in the order of time."""

    def __init__(self, costs: LinkCosts, latency_ns: int, servers: int) -> None:
        self.costs = costs
        self._latency_ns = latency_ns
        self._sends = [Side() for _ in range(servers)]
        self._receives = [Side() for _ in range(servers)]

    def give(self, sender: int, receiver: int, blocks: int, now: int) -> Span:
        """The time in which one server sends another one so many blocks."""
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
        """That time isn't needed."""
        self._sends[sender].given.remove(given)
        self._receives[receiver].given.remove(given)

    def check(self) -> None:
        """Recount."""
        for side in (*self._sends, *self._receives):
            side.check()
