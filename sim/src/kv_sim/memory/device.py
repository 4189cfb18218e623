"""The device of one rank: real GPU memory, a queue of launched steps, host memory, a copy engine.

A step is *launched* when the worker's hooks have run and *retires* when its kernels have: in between the host runs
ahead. Retiring a step poisons the blocks it got, writes the slots it computes, then reads every slot it attends to
and compares it with what it must hold. Who may touch a block is written down in ``shadow``.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from kv_sim.config import WorldConfig
from kv_sim.engine.pool import NULL
from kv_sim.memory.content import POISON, ZERO, Words, layer_keys
from kv_sim.memory.copies import Copy, CopyEngine, Direction, State
from kv_sim.memory.kv_cache import KVCache
from kv_sim.memory.settled import Offer, Settled
from kv_sim.memory.shadow import Shadow

Slot = tuple[int, int, int]
"""Block, layer, and the token's place in the block."""


@dataclass(frozen=True)
class Attention:
    """What one request does in one step: computes ``[start, end)`` and reads everything before, by group."""

    request_id: str
    start: int
    end: int
    tables: tuple[tuple[int, ...], ...]
    hashes: Words
    """What each position must hold, drafts included; at least ``end`` long."""


@dataclass(frozen=True)
class ContentProblem:
    """A kernel read something else than its request's prefix."""

    request_id: str
    block: int
    message: str


@dataclass
class LaunchedStep:
    """One step's work on this device."""

    number: int
    attentions: list[Attention]
    poison: list[int]
    problems: list[ContentProblem]
    block_size: int
    windows: tuple[int, ...]
    """Window of each group in tokens; 0: all of it."""
    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        for attention in self.attentions:
            for table, window in zip(attention.tables, self.windows, strict=True):
                first = self.first_read(attention, window)
                last = (attention.end - 1) // self.block_size
                self.reads.update(table[first : last + 1])
                self.writes.update(table[attention.start // self.block_size : last + 1])
        # An engine that keeps states only where it means to has no block for those between.
        self.reads.discard(NULL)
        self.writes.discard(NULL)

    def first_read(self, attention: Attention, window: int) -> int:
        """Index of the first block that the attention of a group reaches back to."""
        return max(0, attention.start - window + 1) // self.block_size if window else 0


class Device:
    """Memory and time of one rank."""

    def __init__(self, rank: int, config: WorldConfig, shadow: Shadow) -> None:
        self.rank = rank
        self.config = config
        self.shadow = shadow
        self.memory: Words = np.full(
            (config.num_blocks, config.layers, config.block_size), POISON, dtype=np.uint64
        )
        self.keys = layer_keys(rank, len(config.groups), config.layers)
        self._states = [group for group, spec in enumerate(config.groups) if spec.kind == "state"]
        self._tokens = [group for group in range(len(config.groups)) if group not in self._states]
        self.host: Words = np.empty((0, *self.memory.shape[1:]), dtype=np.uint64)
        self.queue: deque[LaunchedStep] = deque()
        self.waited_steps = 0
        """Steps that this rank's worker executed while no copy was under way that can end: what stands for time.
        A copy that is only late is none that a timeout may give up."""
        self.settled = Settled()
        self.copies = CopyEngine(self)

    # -- host memory, for connectors -----------------------------------------------------------

    def allocate_host(self, slots: int) -> int:
        """Get ``slots`` pages of host memory; returns the number of the first, as copies know it."""
        first = len(self.host)
        more = np.full((slots, *self.memory.shape[1:]), POISON, dtype=np.uint64)
        self.host = np.concatenate([self.host, more])
        return first

    def kv_cache(self, layer: int) -> KVCache:
        """The pages of a layer, for a connector."""
        cache = self.memory[:, layer].view(KVCache)
        cache._device, cache.layer = self, layer
        cache.flags.writeable = False
        return cache

    # -- compute -------------------------------------------------------------------------------

    @property
    def retired_steps(self) -> int:
        """How many of the launched steps have retired."""
        return self.copies.launched_steps - len(self.queue)

    def begin_step(self, new_blocks: Iterable[int], handed: Iterable[Offer]) -> None:
        """The rank's worker begins with a step, which gets new blocks and hands over ends of prompts."""
        self.waited_steps += all(copy.state is State.LOST for copy in self.copies.running.values())
        self.settled.begin_step(new_blocks, handed)

    def launch(self, step: LaunchedStep) -> None:
        """Queue a step behind those launched before."""
        self.queue.append(step)
        self.copies.launched_steps += 1

    def retire(self) -> LaunchedStep:
        """Run the oldest launched step."""
        step = self.queue[0]
        self.poison(step.poison)
        # Copies that wait for this step come after it by construction.
        others = [copy for copy in self.copies.running.values() if copy.after_step <= self.retired_steps]
        changed = partial(self._changes, step)
        self.shadow.about_to_write(self.rank, step.writes, f"step {step.number} computes into it", others, changed)
        self.shadow.about_to_read(self.rank, step.reads, f"step {step.number} attends to it", others)
        for attention in step.attentions:
            for group in self._states:
                self._read_state(step, attention, group)
        for attention in step.attentions:
            for group in self._states:
                self._write_states(step, attention, group)
            for group in self._tokens:
                self._write(step, attention, group)
        for attention in step.attentions:
            for group in self._tokens:
                self._read(step, attention, group, step.first_read(attention, step.windows[group]))
                if self.config.has_tails:
                    self._read_end(step, attention, group)
        self.queue.popleft()
        return step

    def retire_until(self, step: int) -> None:
        """Let the device finish the first ``step`` launched steps."""
        while self.retired_steps < step:
            self.retire()

    def synchronize(self) -> None:
        """Let the device finish everything that was launched."""
        self.retire_until(self.copies.launched_steps)

    def zero(self, blocks: list[int], step: int) -> None:
        """Zero newly allocated blocks, as a kernel that is launched now would."""
        self.shadow.about_to_write(self.rank, blocks, f"step {step} zeroes it", self.copies.running.values())
        for block in blocks:
            self.memory[block] = ZERO
            self.shadow.last_writer[self.rank][block] = f"step {step}, which zeroed it"

    def copy_blocks(self, copies: Sequence[tuple[int, int]], step: int) -> None:
        """Copy blocks (from, to), as a kernel that is launched now would, on a device that is quick."""
        if copies:
            self.synchronize()
        others = self.copies.running.values()
        for source, target in copies:
            self.shadow.about_to_write(self.rank, [target], f"step {step} copies into it", others)
            self.shadow.about_to_read(self.rank, [source], f"step {step} copies it", others)
            self.memory[target] = self.memory[source]
            who = f"step {step}, which copied block {source} into it"
            self.shadow.last_writer[self.rank][target] = who

    def poison(self, blocks: list[int]) -> None:
        """Make the bytes of newly allocated blocks recognizable."""
        for block in blocks:
            self.memory[block] = POISON
            self.shadow.last_writer[self.rank][block] = "nobody since it was allocated"

    def _changes(self, step: LaunchedStep, copy: Copy, block: int) -> bool:
        """Whether a step will leave other bytes in what a copy wants of a block than there are now.

        Tokens that are computed anew, since a load before them failed, come out as they were: who shares their
        blocks may be reading them. And to what a store wants of a block others may be appended.
        """
        if block in step.poison:
            return True
        size = self.config.block_size
        appends, settled = copy.settled.get(block, ("", size))
        for attention in step.attentions:
            last = settled if attention.request_id == appends else size
            for group, table in enumerate(attention.tables):
                for index in range(attention.start // size, (attention.end - 1) // size + 1):
                    if table[index] != block:
                        continue
                    if self.config.groups[group].kind == "state":
                        return True
                    first, end = max(attention.start, index * size), min(attention.end, index * size + last)
                    held = self.memory[block, :, first - index * size : end - index * size]
                    if not np.array_equal(held, attention.hashes[first:end] ^ self.keys[group][:, None]):
                        return True
        return False

    def _write(self, step: LaunchedStep, attention: Attention, group: int) -> None:
        size, table = self.config.block_size, attention.tables[group]
        keys = self.keys[group]
        position = attention.start
        while position < attention.end:
            index, offset = divmod(position, size)
            count = min(size - offset, attention.end - position)
            hashes = attention.hashes[position : position + count]
            block = table[index]
            self.memory[block, :, offset : offset + count] = hashes ^ keys[:, None]
            self.shadow.last_writer[self.rank][block] = f"step {step.number} for request {attention.request_id}"
            position += count

    def _read(self, step: LaunchedStep, attention: Attention, group: int, first: int) -> None:
        """Read the full blocks of a group from the ``first`` on."""
        size = self.config.block_size
        full = attention.end // size
        table = attention.tables[group][first:full]
        if table:
            expected = attention.hashes[first * size : full * size].reshape(-1, size)
            self._compare(step, attention, group, first, table, expected)

    def _read_end(self, step: LaunchedStep, attention: Attention, group: int) -> None:
        """Read a block that isn't full: what was loaded or copied of it may never be read otherwise."""
        index, count = divmod(attention.end, self.config.block_size)
        if count:
            expected = attention.hashes[attention.end - count : attention.end].reshape(1, count)
            self._compare(step, attention, group, index, attention.tables[group][index : index + 1], expected)

    def _compare(
        self,
        step: LaunchedStep,
        attention: Attention,
        group: int,
        first: int,
        table: Sequence[int],
        expected: Words,
    ) -> None:
        """Compare the beginnings of blocks, whose first is a request's ``first``, with what they must hold."""
        got = self.memory[list(table), :, : expected.shape[1]] ^ self.keys[group][None, :, None]
        differs = got != expected[:, None]
        if differs.any():
            index, layer, offset = (int(x) for x in np.argwhere(differs)[0])
            token = (first + index) * self.config.block_size + offset
            self._note(step, attention.request_id, token, group, (table[index], layer, offset))

    def _note(
        self, step: LaunchedStep, request_id: str, token: int, group: int, slot: Slot, role: str = ""
    ) -> None:
        """Note that a slot isn't what it must be for a request's ``token``."""
        block, layer, _ = slot
        told = self.shadow.explain_content(self.rank, request_id, token, block, int(self.memory[slot]))
        message = f"{told} (group {group}, layer {layer}, step {step.number}{role})"
        step.problems.append(ContentProblem(request_id, block, message))

    def _write_states(self, step: LaunchedStep, attention: Attention, group: int) -> None:
        """Leave the state after the last token in each block that the step reaches, if there is one."""
        size, table = self.config.block_size, attention.tables[group]
        for index in range(attention.start // size, (attention.end - 1) // size + 1):
            if table[index] == NULL:
                continue
            state = attention.hashes[min((index + 1) * size, attention.end) - 1]
            self.memory[table[index]] = (state ^ self.keys[group])[:, None]
            who = f"step {step.number} for request {attention.request_id}"
            self.shadow.last_writer[self.rank][table[index]] = who

    def _read_state(self, step: LaunchedStep, attention: Attention, group: int) -> None:
        """Go on from the state after the token before the step's first."""
        before = attention.start - 1
        if before < 0:
            return
        block = attention.tables[group][before // self.config.block_size]
        got = self.memory[block] ^ self.keys[group][:, None]
        differs = got != attention.hashes[before]
        if differs.any():
            layer, offset = (int(x) for x in np.argwhere(differs)[0])
            role = ", which goes on from this state"
            self._note(step, attention.request_id, before, group, (block, layer, offset), role)

    # -- copies --------------------------------------------------------------------------------

    def owner(self, block: int) -> str:
        """Who got a block last, for messages."""
        return self.shadow.owner(block)

    def restart_copies(self, *, forget_host: bool) -> None:
        """What moves the bytes starts anew: copies under way fail; what the host held may be gone."""
        if forget_host:
            self.host[:] = POISON
        self.copies.restart(len(self.host) if forget_host else 0)

    def move_page(self, copy: Copy, block: int, slot: int) -> None:
        """Move one page now, if the ledger allows it."""
        self.shadow.about_to_move(
            self.rank, copy, block, slot, len(self.host), self.queue, self.copies, self._changes
        )
        if not 0 <= slot < len(self.host):
            return  # the ledger said so already
        if copy.direction is Direction.STORE:
            self.host[slot] = self.memory[block]
        else:
            self.memory[block] = self.host[slot]
            self.shadow.last_writer[self.rank][block] = str(copy)
