"""``Shadow``, the rights over memory: who may read and write each GPU block and host slot now, on each rank.

A copy that touches a block without a right fails even if the bytes happen to be right. Rights come from the
engine (blocks that a load was announced for), from the queue of launched steps (blocks that running kernels read
or write) and from running copies (pages they have yet to move).
"""

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import index
from typing import Any, Final, NamedTuple, Protocol

from kv_api import Direction
from kv_sim.memory.content import POISON, ZERO, Words
from kv_sim.memory.copy import Copy, State
from kv_sim.violation import Invariant, Referee

UNWRITTEN: Final = "not written"
NOT_SINCE: Final = f"{UNWRITTEN} since it was allocated"
"""For messages, in the place of a writer."""


class UsesBlocks(Protocol):
    """A launched step, and the blocks that it reads and writes."""

    number: int
    reads: set[int]
    writes: set[int]


class Part(NamedTuple):
    """A written part of a block, and its writer."""

    writer: str
    slots: slice
    layer: int | None
    """None: all layers."""

    def has(self, layer: int, slot: int) -> bool:
        """Whether a slot of a layer is in it."""
        return self.layer in (None, layer) and self.slots.start <= slot < self.slots.stop

    def hides(self, other: "Part") -> bool:
        """Whether it overwrites all of an earlier part."""
        within = self.slots.start <= other.slots.start and other.slots.stop <= self.slots.stop
        return within and self.layer in (None, other.layer)


def _always(*where: Any) -> bool:
    return True


def _forget(rights: dict[int, Any], owner: Any) -> None:
    for block in [block for block, other in rights.items() if other == owner]:
        del rights[block]


class Shadow:
    """Rights over the blocks of all ranks."""

    def __init__(self, ranks: int, referee: Referee) -> None:
        self.load_rights: dict[int, str] = {}
        """GPU block -> the request whose load may write it; kept by the engine."""
        self.step_rights: dict[int, int] = {}
        """GPU block -> the step whose own loads may write it, until that step has come back."""
        self.owners: dict[int, str] = {}
        """GPU block -> the request that got it last, for messages."""
        self.hashes_of: dict[str, Words] = {}
        """Request -> the hashes of its tokens, for messages."""
        self.ranks_that_failed: set[int] = set()
        """Ranks that reported a failed load, or lost bytes on the way to a file: their blocks may differ from
        those of other ranks."""
        self.last_writer: list[dict[int, str]] = [{} for _ in range(ranks)]
        """By rank, GPU block -> the last writer of the block or a part of it."""
        self._parts: list[dict[int, list[Part]]] = [{} for _ in range(ranks)]
        """By rank, GPU block -> the parts written since the block was last written as a whole, the latest last."""
        self.fail = referee.fail
        self.hits_must_load: Callable[[], bool] = lambda: False
        """Whether each load of a hit must succeed if no copy fails, and so each load from a tier."""

    def must_be_one_of(self, rank: int, block: int, blocks: int, who: str) -> None:
        """Report a GPU block that doesn't exist."""
        try:
            is_there = 0 <= index(block) < blocks
        except TypeError:
            is_there = False
        if not is_there:
            self.fail(
                Invariant.GEOMETRY,
                f"rank {rank}: {who} names GPU block {block!r}; there are 0 to {blocks - 1}",
            )

    def own(self, request_id: str, blocks: Iterable[int]) -> None:
        """Note that these are a request's blocks now."""
        self.owners.update(dict.fromkeys(blocks, request_id))

    # -- loads ---------------------------------------------------------------------------------

    def expect_load(
        self,
        request_id: str,
        tables: Sequence[list[int]],
        tokens: range,
        block_size: int,
        step: int | None,
        parts: Sequence[int] = (),
    ) -> list[int]:
        """A load of a request's tokens was announced: it may write their blocks in ``tables``.

        Returns these blocks. The load belongs to ``step``, or, if that is None, goes on until it is reported.
        ``parts``: into how many blocks of each table ``block_size`` is divided; empty: into none.
        """
        targets = []
        for table, count in zip(tables, parts or [1] * len(tables), strict=True):
            size = block_size // count
            targets += [block for block in table[tokens.start // size : -(-tokens.stop // size)] if block]
        if step is None:
            self.load_rights.update(dict.fromkeys(targets, request_id))
        else:
            self.step_rights.update(dict.fromkeys(targets, step))
        return targets

    def end_load(self, request_id: str) -> None:
        """The load of a request is over."""
        _forget(self.load_rights, request_id)

    def end_step(self, step: int) -> None:
        """The loads of a step are over."""
        _forget(self.step_rights, step)

    # -- compute -------------------------------------------------------------------------------

    def about_to_write(
        self,
        rank: int,
        blocks: Collection[int],
        what: str,
        copies: Iterable[Copy],
        changes: Callable[[Copy, int], bool] = _always,
    ) -> None:
        """A kernel writes ``blocks``: no copy may be using them, except to read bytes that don't change."""
        copies = list(copies)
        if not copies or not blocks:
            return
        self._no_copy_uses(rank, blocks, what, copies, (Direction.LOAD,))
        for copy in copies:
            if copy.direction is Direction.STORE:
                changed = {block for block in copy.blocks_left if block in blocks and changes(copy, block)}
                self._no_copy_uses(rank, changed, what, [copy], (Direction.STORE,))

    def about_to_read(self, rank: int, blocks: Collection[int], what: str, copies: Iterable[Copy]) -> None:
        """A kernel or the connector reads ``blocks``: no load may be writing them."""
        self._no_copy_uses(rank, blocks, what, copies, (Direction.LOAD,))

    def about_to_load(self, rank: int, block: int, what: str, copies: Iterable[Copy]) -> None:
        """A connector writes ``block`` from the host: it needs the right, and nothing else may be using it."""
        if not self._may_load(block):
            self._has_no_load_right(rank, block, what)
        self._no_copy_uses(rank, [block], what, copies, (Direction.STORE, Direction.LOAD))

    def _no_copy_uses(
        self,
        rank: int,
        blocks: Collection[int],
        what: str,
        copies: Iterable[Copy],
        directions: Iterable[Direction],
    ) -> None:
        for copy in copies:
            if copy.direction in directions and copy.state is not State.LOST:  # that one moves nothing more
                for block in copy.blocks_left:
                    if block in blocks:
                        self.fail(
                            Invariant.OWNERSHIP,
                            f"rank {rank} block {block} (of {self.owner(block)}): {what} "
                            f"while {copy} (begun for {', '.join(copy.owners) or 'no request'}) is under way",
                        )

    # -- sleep ---------------------------------------------------------------------------------

    def about_to_sleep(self, rank: int, copies: Iterable[Copy]) -> None:
        """The GPU memory is freed: no copy may be running."""
        for copy in copies:
            # An errand has no blocks, and is judged when it reads.
            if copy.state is not State.LOST and copy.blocks_left:
                whose = f"rank {rank} block {copy.blocks_left[0]} (of {self.owner(copy.blocks_left[0])})"
                begun = f"(begun for {', '.join(copy.owners) or 'no request'})"
                self.fail(
                    Invariant.OWNERSHIP, f"{whose}: the engine goes to sleep while {copy} {begun} is under way"
                )

    def misses(self, rank: int, block: int, who: str) -> None:
        """A block is used while there is no GPU memory."""
        whose = f"rank {rank} block {block} (of {self.owner(block)})"
        self.fail(Invariant.OWNERSHIP, f"{whose}: {who} uses it while the engine sleeps")

    def comes_late(self, rank: int, block: int, copy: Copy) -> None:
        """A copy or an errand uses a block after its worker said that nothing of the job is left to do."""
        self.fail(
            Invariant.OWNERSHIP,
            f"rank {rank} block {block} (of {self.owner(block)}): {copy} uses it, but {copy.over} before it was "
            "done: whoever gets the block next doesn't wait for it",
        )

    # -- copies --------------------------------------------------------------------------------

    def about_to_move(
        self,
        rank: int,
        copy: Copy,
        block: int,
        slot: int,
        slots: int,
        queue: Iterable[UsesBlocks],
        copies: Collection[Copy],
        changes: Callable[[Any, Copy, int], bool] = _always,
    ) -> None:
        """A copy moves one page: it needs the right to the block, and nothing else may be using block or slot."""
        if not 0 <= slot < slots:
            self.fail(Invariant.GEOMETRY, f"rank {rank}: {copy} uses host slot {slot} of {slots}")
        if block == 0:
            self.fail(Invariant.OWNERSHIP, f"rank {rank}: {copy} touches the null block 0")
        for step in queue:
            reads, writes, number = step.reads, step.writes, step.number
            if copy.direction is Direction.LOAD and (block in reads or block in writes):
                self.fail(
                    Invariant.OWNERSHIP,
                    f"rank {rank} block {block} (of {self.owner(block)}): {copy} writes it "
                    f"while step {number} is still using it",
                )
            if copy.direction is Direction.STORE and block in writes and changes(step, copy, block):
                self.fail(
                    Invariant.OWNERSHIP,
                    f"rank {rank} block {block} (of {self.owner(block)}): {copy} reads it "
                    f"before step {number}, which writes it, has retired",
                )
        if copy.direction is Direction.LOAD and block not in copy.given_up_to and not self._may_load(block):
            self._has_no_load_right(rank, block, f"{copy} writes it")
        self._host_slot_is_free(rank, copy, slot, copies)
        for other in copies:
            one_loads = Direction.LOAD in (copy.direction, other.direction)
            if other is copy or other.state is State.LOST:
                continue
            if one_loads and block in other.blocks_left:
                whose = f"rank {rank} block {block} (of {self.owner(block)})"
                self.fail(Invariant.OWNERSHIP, f"{whose}: {copy} and {other} use it at the same time")

    def _may_load(self, block: int) -> bool:
        return block in self.load_rights or block in self.step_rights

    def _has_no_load_right(self, rank: int, block: int, what: str) -> None:
        self.fail(
            Invariant.OWNERSHIP,
            f"rank {rank} block {block} (of {self.owner(block)}): {what}, "
            "but no load into it is under way: none was announced, or it has ended",
        )

    def about_to_use_host(self, rank: int, slot: int, way: Direction, slots: int, copies: Iterable[Copy]) -> None:
        """The connector itself reads a host slot (as a load does), or writes it."""
        what = f"the connector {'reads' if way is Direction.LOAD else 'writes'} it"
        if not 0 <= slot < slots:
            self.fail(Invariant.GEOMETRY, f"rank {rank}: {what}: host slot {slot} of {slots}")
        for other in self._at_host_slot(slot, way, copies):
            self.fail(Invariant.OWNERSHIP, f"rank {rank} host slot {slot}: {what} while {other} is under way")

    def _host_slot_is_free(self, rank: int, copy: Copy, slot: int, copies: Iterable[Copy]) -> None:
        for other in self._at_host_slot(slot, copy.direction, (other for other in copies if other is not copy)):
            self.fail(
                Invariant.OWNERSHIP,
                f"rank {rank} host slot {slot}: {copy} and {other} use it at the same time",
            )

    def _at_host_slot(self, slot: int, way: Direction, copies: Iterable[Copy]) -> Iterable[Copy]:
        """Copies that have yet to use a host slot, in conflict with this use."""
        for other in copies:
            is_in_the_way = Direction.STORE in (way, other.direction) and other.state is not State.LOST
            if is_in_the_way and any(slot == left for _, left in other.pairs[other.copied :]):
                yield other

    # -- content -------------------------------------------------------------------------------

    def wrote_part(self, rank: int, block: int, writer: str, slots: slice, layer: int | None = None) -> None:
        """Note the writer of slots of a block, in one layer or all; of a whole block it is in ``last_writer``."""
        written, part = self.last_writer[rank], Part(writer, slots, layer)
        parts = self._parts_of(rank, block)
        self._parts[rank][block] = [*(before for before in parts if not part.hides(before)), part]
        written[block] = writer

    def _parts_of(self, rank: int, block: int) -> list[Part]:
        """The first is the whole block."""
        last, parts = self.last_writer[rank].get(block, UNWRITTEN), self._parts[rank].get(block)
        if parts is None or parts[-1].writer != last:  # the whole block was written since
            return [Part(last, slice(0, sys.maxsize), None)]
        return parts

    def explain_content(
        self,
        rank: int,
        request_id: str,
        token: int,
        slot: tuple[int, int, int],
        value: int,
        whose: str | None = None,
    ) -> str:
        """The message for wrong bytes that a kernel read, in a slot of (block, layer, position in it)."""
        block, layer, place = slot
        held = {int(POISON): "poison", int(ZERO): "zeroes"}.get(value, whose or f"{value:#x}")
        parts = self._parts_of(rank, block)
        writer = next((part.writer for part in reversed(parts) if part.has(layer, place)), UNWRITTEN)
        is_written = not writer.startswith(UNWRITTEN)
        written = f"last written by {writer}" if is_written else writer
        others = "by" if is_written else "last written by"
        elsewhere = "" if writer == parts[-1].writer else f", and elsewhere {others} {parts[-1].writer}"
        return f"request {request_id} token {token}: rank {rank} block {block} holds {held}, {written}{elsewhere}"

    def owner(self, block: int) -> str:
        """The request that got the block last."""
        return f"request {self.owners[block]}" if block in self.owners else "no request"
