"""``WorldWire``: the world as a wire between engines.

Blocks are moved by two copies of the world's: from a block that is held to a page of host memory, as if it had
been sent, and from there to the block that it is for. Both fail, tear, get lost or are reported twice as the world
likes.
"""

from dataclasses import dataclass, field

from kv_api import Direction
from kv_p2p.pulling.metadata import NULL_BLOCK, Hold, Pull, Source
from kv_p2p.pulling.wire import Ended
from kv_sim.memory.copies import Copy, State
from kv_sim.memory.device import Device
from kv_sim.violation import Invariant


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
    closed: set[str] = field(default_factory=set)
    """Holds that were to end while they were read."""
    over: set[str] = field(default_factory=set)
    """Holds that were pulled or declined."""
    failed: set[str] = field(default_factory=set)
    """Requests whose pull failed, since it was last forgotten."""
    begun: dict[int, OnTheWay] = field(default_factory=dict)
    """By copy, whatever became of it since: what the watch goes by."""

    def __post_init__(self) -> None:
        self.copies = self.device.copies.open()

    def serve(self, hold: Hold) -> None:
        """Know it."""
        self.holds[hold.hold_id] = hold

    def withdraw(self, hold_id: str) -> bool:
        """Forget it, if no copy reads it. One that was lost doesn't, and never will."""
        if any(on_the_way.pull.source.hold_id == hold_id for on_the_way in self._that_move(self.sent)):
            self.closed.add(hold_id)
            return False
        self.copies.give_up(copy for copy, one in self.sent.items() if one.pull.source.hold_id == hold_id)
        self.holds.pop(hold_id, None)
        self.closed.discard(hold_id)
        return True

    def pull(self, pull: Pull) -> None:
        """Send the blocks of the hold, if it is known and what is meant; else receiving them fails at once."""
        hold = self.holds.get(pull.source.hold_id) if pull.source.hold_id not in self.closed else None
        count = len(pull.block_ids)
        slot = self.device.allocate_host(count)
        on_the_way = OnTheWay(pull, range(slot, slot + count))
        is_meant = hold is not None and hold.digest == pull.source.digest
        there = self._there(hold, pull) if hold is not None and is_meant else None
        if there is not None:
            pairs = list(zip(there, on_the_way.slots, strict=True))
            copy = self.copies.submit(Direction.STORE, pairs)
            self.sent[copy] = self.begun[copy] = on_the_way
        else:
            copy = self._receive(on_the_way)
            self.device.copies.fail(self.device.copies.running[copy])

    def _there(self, hold: Hold, pull: Pull) -> list[int] | None:
        """The blocks of the hold that fill those of the pull. None: not all are held, which its ticket denied."""
        there: list[int] = []
        for group, (part, table) in enumerate(zip(pull.parts, hold.tables, strict=True)):
            blocks = table[part.first : part.first + len(part.block_ids)]
            if len(blocks) < len(part.block_ids) or NULL_BLOCK in blocks:
                self.device.shadow.violation(
                    Invariant.PROTOCOL,
                    f"request {pull.request_id} pulls {len(part.block_ids)} blocks of group {group} from place "
                    f"{part.first} on, by a ticket of request {hold.request_id}, which holds {list(table)}",
                )
                return None
            there += blocks
        return there

    def give_up(self, request_id: str) -> bool:
        """Forget it, if no copy writes its blocks."""
        if any(on_the_way.pull.request_id == request_id for on_the_way in self._that_move(self.received)):
            return False
        for kind in (self.sent, self.received):
            for copy in [copy for copy, one in kind.items() if one.pull.request_id == request_id]:
                self.copies.give_up([copy])
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
        self.received[copy] = self.begun[copy] = on_the_way
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

    def forget(self, direction: Direction, name: str) -> list[Copy]:
        """Forget what was begun: what is sent of a hold, or what is received for a request.

        Returns the copies among it that may still move something. One that was lost may, unless it is so for good.
        """
        running: dict[int, Copy] = self.device.copies.running
        left = []
        for copy_id, one in list(self.begun.items()):
            copy = running.get(copy_id)
            whose = one.pull.source.hold_id if direction is Direction.STORE else one.pull.request_id
            if copy is None or (copy.direction is direction and whose == name):
                del self.begun[copy_id]
                left += [copy] if copy is not None and not copy.is_over else []
        return left

    def wait(self, seconds: float) -> None:
        """Time is the world's."""

    def close(self) -> None:
        """Let everything end."""
        self.copies.wait([*self.sent, *self.received])
