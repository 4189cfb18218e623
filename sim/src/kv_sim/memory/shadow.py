"""The ledger of rights: who may read and write each GPU block and host slot now, on each rank.

It knows what bytes can't tell: a copy that touches a block outside its right fails even if the bytes happen to
be the right ones. Rights come from the engine (blocks that a load was announced for), from the queue of launched
steps (blocks that running kernels read or write) and from running copies (pages they have yet to move).
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from kv_sim.memory.content import POISON, ZERO
from kv_sim.memory.copies import Copy, CopyEngine, Direction, State
from kv_sim.violation import Invariant, Referee


class UsesBlocks(Protocol):
    """A launched step."""

    number: int
    reads: set[int]
    writes: set[int]


def _always(*where: Any) -> bool:
    return True


class Shadow:
    """Rights over the blocks of all ranks."""

    def __init__(self, ranks: int, referee: Referee) -> None:
        self.load_rights: dict[int, str] = {}
        """GPU block -> the request whose load may write it; kept by the engine."""
        self.step_rights: dict[int, int] = {}
        """GPU block -> the step whose own loads may write it, until that step has come back."""
        self.owners: dict[int, str] = {}
        """GPU block -> the request that got it last, for messages."""
        self.last_writer: list[dict[int, str]] = [{} for _ in range(ranks)]
        self.violation = referee.fail

    def end_step(self, step: int) -> None:
        """The loads of a step are over."""
        for block in [block for block, owner in self.step_rights.items() if owner == step]:
            del self.step_rights[block]

    def own(self, request_id: str, blocks: Iterable[int]) -> None:
        """These are a request's blocks now."""
        self.owners.update(dict.fromkeys(blocks, request_id))

    # -- compute -------------------------------------------------------------------------------

    def about_to_write(
        self,
        rank: int,
        blocks: Collection[int],
        what: str,
        copies: Iterable[Copy],
        changes: Callable[[Copy, int], bool] = _always,
    ) -> None:
        """A kernel writes ``blocks``: no copy may be using them, but to read what it doesn't change."""
        copies = list(copies)
        if not copies:
            return
        self._no_copy_uses(rank, blocks, what, copies, (Direction.LOAD,))
        for copy in copies:
            if copy.direction is Direction.STORE:
                changed = {block for block in copy.blocks_left if block in blocks and changes(copy, block)}
                self._no_copy_uses(rank, changed, what, [copy], (Direction.STORE,))

    def about_to_read(self, rank: int, blocks: Collection[int], what: str, copies: Iterable[Copy]) -> None:
        """Somebody reads ``blocks``: no load may be writing them."""
        self._no_copy_uses(rank, blocks, what, copies, (Direction.LOAD,))

    def about_to_load(self, rank: int, block: int, what: str, copies: Iterable[Copy]) -> None:
        """A connector writes ``block`` from the host: it needs the right to, and nobody else may be using it."""
        self._has_load_right(rank, block, what)
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
                        self.violation(
                            Invariant.OWNERSHIP,
                            f"rank {rank} block {block} (of {self.owner(block)}): {what} "
                            f"while {copy} (begun for {', '.join(copy.owners) or 'nobody'}) is under way",
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
        copies: CopyEngine,
        changes: Callable[[Any, Copy, int], bool] = _always,
    ) -> None:
        """A copy moves one page: is the block its, and is neither end in somebody else's use?"""
        if not 0 <= slot < slots:
            self.violation(Invariant.GEOMETRY, f"rank {rank}: {copy} uses host slot {slot} of {slots}")
        if block == 0:
            self.violation(Invariant.OWNERSHIP, f"rank {rank}: {copy} touches the null block 0")
        for step in queue:
            reads, writes, number = step.reads, step.writes, step.number
            if copy.direction is Direction.LOAD and (block in reads or block in writes):
                self.violation(
                    Invariant.OWNERSHIP,
                    f"rank {rank} block {block} (of {self.owner(block)}): {copy} writes it "
                    f"while step {number} is still using it",
                )
            if copy.direction is Direction.STORE and block in writes and changes(step, copy, block):
                self.violation(
                    Invariant.OWNERSHIP,
                    f"rank {rank} block {block} (of {self.owner(block)}): {copy} reads it "
                    f"before step {number}, which writes it, has retired",
                )
        if copy.direction is Direction.LOAD and block not in copy.given_up_to:
            self._has_load_right(rank, block, f"{copy} writes it")
        self._host_slot_is_free(rank, copy, slot, copies.running.values())
        for other in copies.running.values():
            one_loads = Direction.LOAD in (copy.direction, other.direction)
            if other is copy or other.state is State.LOST:
                continue
            if one_loads and block in other.blocks_left:
                whose = f"rank {rank} block {block} (of {self.owner(block)})"
                self.violation(Invariant.OWNERSHIP, f"{whose}: {copy} and {other} use it at the same time")

    def _has_load_right(self, rank: int, block: int, what: str) -> None:
        if block not in self.load_rights and block not in self.step_rights:
            self.violation(
                Invariant.OWNERSHIP,
                f"rank {rank} block {block} (of {self.owner(block)}): {what}, "
                "but no load into it is announced or going on",
            )

    def _host_slot_is_free(self, rank: int, copy: Copy, slot: int, copies: Iterable[Copy]) -> None:
        for other in copies:
            if (
                other is copy
                or other.state is State.LOST
                or slot not in {s for _, s in other.pairs[other.copied :]}
            ):
                continue
            if Direction.STORE in (copy.direction, other.direction):
                self.violation(
                    Invariant.OWNERSHIP,
                    f"rank {rank} host slot {slot}: {copy} and {other} use it at the same time",
                )

    # -- content -------------------------------------------------------------------------------

    def explain_content(self, rank: int, request_id: str, token: int, block: int, value: int) -> str:
        """Say what a kernel read in place of the request's prefix."""
        held = {int(POISON): "poison", int(ZERO): "zeroes"}.get(value, f"{value:#x}")
        writer = self.last_writer[rank].get(block, "nobody")
        return (
            f"request {request_id} token {token}: rank {rank} block {block} holds {held}, last written by {writer}"
        )

    def owner(self, block: int) -> str:
        """Who got the block last."""
        return f"request {self.owners[block]}" if block in self.owners else "nobody"
