"""``WorldWire``: a wire between engines that is made of the world's copies.

Two copies move each block: one from the held block to a page of host memory, which stands for sending, and one
from there to the pulled block. Both may fail, tear, get lost or be reported twice. In a world of two engines the
first is a copy of the engine that holds the blocks, whose worker is told of its end, and then the page moves to
the other engine's host memory.
"""

from dataclasses import dataclass, field

from kv_api import Direction
from kv_p2p.pulling.metadata import NULL_BLOCK, Hold, Pull, Source
from kv_p2p.pulling.wire import Ended
from kv_sim.memory.copy import Copy, State
from kv_sim.memory.device import Device
from kv_sim.violation import Invariant


@dataclass
class OnTheWay:
    """A pull: its blocks are sent, and then received."""

    pull: Pull
    to: "WorldWire"
    """The wire of the engine whose blocks are filled."""
    slots: range
    """Its pages of host memory at that engine."""
    sent_slots: range
    """Its pages of host memory at the engine that holds it; the same pages if that is the same engine."""


@dataclass
class WorldWire:
    """Implements ``kv_p2p.pulling.wire.Wire``."""

    device: Device
    holds: dict[str, Hold] = field(default_factory=dict)
    sent: dict[int, OnTheWay] = field(default_factory=dict)
    """Pulls by the copy from the held blocks."""
    received: dict[int, OnTheWay] = field(default_factory=dict)
    """Pulls by the copy to the pulled blocks."""
    ended: Ended = field(default_factory=Ended)
    closed: set[str] = field(default_factory=set)
    """Holds that were to end while they were read."""
    over: set[str] = field(default_factory=set)
    """Holds that were pulled or declined."""
    failed: set[str] = field(default_factory=set)
    """Requests whose pull failed, since it was last forgotten."""
    begun: dict[int, OnTheWay] = field(default_factory=dict)
    """All pulls by copy, whether or not the copy has ended; for the watch."""

    def __post_init__(self) -> None:
        self.copies = self.device.copies.open()
        self._number = len(self.device.wires)
        self.device.wires.append(self)

    @property
    def _reachable(self) -> list["WorldWire"]:
        """This wire and the other engines'. If connectors have several wires, each reaches its counterparts."""
        return [self, *(other.wires[self._number] for other in self.device.others)]

    def _at(self, hold_id: str) -> "WorldWire | None":
        """The wire of the engine that has the hold, if any does."""
        return next((wire for wire in self._reachable if hold_id in wire.holds), None)

    def serve(self, hold: Hold) -> None:
        """Let engines that pull find a hold."""
        self.holds[hold.hold_id] = hold

    def withdraw(self, hold_id: str) -> bool:
        """End a hold, if no copy reads it. A lost copy doesn't count, and is stopped for good."""
        if any(on_the_way.pull.source.hold_id == hold_id for on_the_way in self._that_move(self.sent)):
            self.closed.add(hold_id)
            return False
        self.copies.give_up(copy for copy, one in self.sent.items() if one.pull.source.hold_id == hold_id)
        self.holds.pop(hold_id, None)
        self.closed.discard(hold_id)
        return True

    def pull(self, pull: Pull) -> None:
        """Send the hold's blocks, if there is such a hold; otherwise receiving them fails at once."""
        hold_id, count = pull.source.hold_id, len(pull.block_ids)
        holder = self._at(hold_id)
        slots = _allocate(self.device, count)
        hold = holder.holds[hold_id] if holder is not None and hold_id not in holder.closed else None
        there = self._there(hold, pull) if hold is not None and hold.digest == pull.source.digest else None
        if holder is not None and there is not None:
            sent_slots = slots if holder is self else _allocate(holder.device, count)
            holder._send(there, OnTheWay(pull, self, slots, sent_slots))
        else:
            copy = self._receive(OnTheWay(pull, self, slots, slots))
            self.device.copies.fail(self.device.copies.running[copy])

    def _send(self, blocks: list[int], on_the_way: OnTheWay) -> None:
        copy = self.copies.submit(Direction.STORE, list(zip(blocks, on_the_way.sent_slots, strict=True)))
        self.sent[copy] = self.begun[copy] = on_the_way

    def _there(self, hold: Hold, pull: Pull) -> list[int] | None:
        """The blocks of the hold that fill those of the pull. None: not all are held, which its ticket denied."""
        there: list[int] = []
        for group, (part, table) in enumerate(zip(pull.parts, hold.tables, strict=True)):
            blocks = table[part.first : part.first + len(part.block_ids)]
            if len(blocks) < len(part.block_ids) or NULL_BLOCK in blocks:
                self.device.shadow.fail(
                    Invariant.PROTOCOL,
                    f"request {pull.request_id} pulls {len(part.block_ids)} blocks of group {group} from place "
                    f"{part.first} on, by a ticket of request {hold.request_id}, which holds {list(table)}",
                )
                return None
            there += blocks
        return there

    def give_up(self, request_id: str) -> bool:
        """Give a pull up, if no copy writes its blocks."""
        if any(on_the_way.pull.request_id == request_id for on_the_way in self._that_move(self.received)):
            return False
        for wire in self._reachable:
            for kind in (wire.sent, wire.received):
                for copy in [c for c, one in kind.items() if one.to is self and one.pull.request_id == request_id]:
                    wire.copies.give_up([copy])
                    del kind[copy]
        return True

    def decline(self, source: Source) -> None:
        """End the hold, if it is known and no copy reads it."""
        holder = self._at(source.hold_id)
        if holder is not None and holder.holds[source.hold_id].digest == source.digest:
            holder._end(source.hold_id)

    def _end(self, hold_id: str) -> None:
        """End a hold of this engine that was pulled or declined."""
        if self.withdraw(hold_id):
            self.ended.served.append(hold_id)

    def poll(self) -> Ended:
        """The holds and pulls that have ended. For blocks that were sent, receiving begins."""
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
        to = on_the_way.to
        if not success or not (to is self or self._carry(on_the_way)):
            to.ended.failed.append((on_the_way.pull.request_id, "it was not sent"))
            return
        to._receive(on_the_way)

    def _carry(self, on_the_way: OnTheWay) -> bool:
        """Move a pull's pages to the other engine's host memory. False: a restart lost some of them."""
        pages = [self.device.read_host(slot) for slot in on_the_way.sent_slots]
        for slot, page in zip(on_the_way.slots, pages, strict=True):
            if page is None:
                return False
            on_the_way.to.device.write_host(slot, page)
        return True

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
        if (holder := self._at(hold_id)) is not None:
            holder._end(hold_id)

    def _that_move(self, kind: dict[int, OnTheWay]) -> list[OnTheWay]:
        """The pulls with a copy that may still move bytes."""
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

    def has_filled(self, request_id: str) -> bool:
        """Whether all blocks of a pull have come. Call it before the pull is forgotten."""
        copies = [copy for copy, one in self.begun.items() if one.to is self and one.pull.request_id == request_id]
        return any(
            copy.copy_id in copies and copy.direction is Direction.LOAD and copy.state is State.DONE
            for copy in self.device.copies.ended
        )

    def wait(self, seconds: float) -> None:
        """Nothing to wait for: time is the world's."""

    def close(self) -> None:
        """Let all copies end."""
        self.copies.wait([*self.sent, *self.received])


def _allocate(device: Device, count: int) -> range:
    first = device.allocate_host(count)
    return range(first, first + count)
