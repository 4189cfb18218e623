"""The device of one rank: real GPU memory, a queue of launched steps, host memory, copies.

A step is *launched* when the worker's hooks have run, and *retires* when its kernels have run: in between the host
runs ahead. Retiring a step poisons its new blocks and runs its ``kernels``. Before the hooks that may load, a step
is *prepared*: once the steps before it have retired, it copies states to the blocks in which requests go on.
``shadow`` has the rights to blocks.
"""

import threading  # noqa: TID251 - asks which thread this is, and makes none
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from kv_api import ConfigError, Direction
from kv_sim.config import WorldConfig
from kv_sim.memory.content import POISON, ZERO, Words
from kv_sim.memory.copies import Copies
from kv_sim.memory.copy import Copy, State
from kv_sim.memory.kernels import Kernels
from kv_sim.memory.kv_cache import KVCache
from kv_sim.memory.launched import LaunchedStep
from kv_sim.memory.settled import Offer, Settled
from kv_sim.memory.shadow import NOT_SINCE, Shadow


class Device:
    """Memory and time of one rank."""

    def __init__(self, rank: int, config: WorldConfig, shadow: Shadow) -> None:
        self.rank = rank
        self.config = config
        self.shadow = shadow
        layers = max(config.layers_of(rank))
        by_layer = np.full((layers, config.num_blocks, config.block_size), POISON, dtype=np.uint64)
        self.memory: Words = by_layer.transpose(1, 0, 2)
        """By block, layer and slot; the pages of a layer are adjacent. Groups with fewer layers use the first
        ones."""
        self.kernels = Kernels(rank, config, shadow, self.memory)
        self.host: Words = np.empty((0, *self.memory.shape[1:]), dtype=np.uint64)
        self.queue: deque[LaunchedStep] = deque()
        self._prepared: LaunchedStep | None = None
        """A step that is prepared and not launched."""
        self.is_asleep = False
        self.waited_steps = 0
        """The testbed's clock for timeouts: steps of this rank's worker while no copy that can end was running,
        here or at another engine. So a timeout never gives up a copy that is only late."""
        self.others: list[Device] = []
        """The devices of the same rank at the world's other engines."""
        self.wires: list[Any] = []
        """The wires that move bytes between them and this one, in the order of their creation."""
        self.settled = Settled()
        self.copies = Copies(self)
        self._thread = threading.get_ident()
        self._refused = ""
        """A call by a foreign thread, for the error."""

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in all layers, as copies move them."""
        return self.config.block_bytes_of(self.rank)

    # -- host memory, for connectors -----------------------------------------------------------

    def allocate_host(self, slots: int) -> int:
        """Allocate ``slots`` pages of host memory; returns the number of the first host slot."""
        first = len(self.host)
        more = np.full((slots, *self.memory.shape[1:]), POISON, dtype=np.uint64)
        self.host = np.concatenate([self.host, more])
        return first

    def read_host(self, slot: int) -> Words | None:
        """A copy of a page of host memory, all layers of a block. None: a restart lost the page."""
        self.must_be_in_turn("Device.read_host")
        self.shadow.about_to_use_host(
            self.rank, slot, Direction.LOAD, len(self.host), self.copies.running.values()
        )
        is_there = 0 <= slot < len(self.host) and slot not in self.copies.lost_slots
        return self.host[slot].copy() if is_there else None

    def write_host(self, slot: int, page: Words) -> None:
        """Overwrite a page of host memory by one from ``read_host``."""
        self.must_be_in_turn("Device.write_host")
        self.shadow.about_to_use_host(
            self.rank, slot, Direction.STORE, len(self.host), self.copies.running.values()
        )
        if not 0 <= slot < len(self.host):
            return  # the shadow said so already
        self.host[slot] = page
        self.copies.has_bytes(slot)

    def kv_cache(self, layer: int) -> KVCache:
        """The pages of a layer, for a connector."""
        cache = self.memory[:, layer].view(KVCache)
        cache._device, cache.layer = self, layer
        cache.flags.writeable = False
        return cache

    def must_be_in_turn(self, what: str) -> None:
        """Refuse a thread of the connector, which would interfere with the world at any moment."""
        if threading.get_ident() == self._thread:
            return
        self._refused = self._refused or (
            f"{what} was called by the thread {threading.current_thread().name!r}: the testbed's memory knows one "
            "thread only, the one that calls the connector; let it do the work of others when it is polled "
            "(docs/testbed.md, Copies)"
        )
        raise ConfigError(self._refused)

    # -- sleep ---------------------------------------------------------------------------------

    def sleep(self) -> None:
        """Free the GPU memory with its contents. No copy may be running; lost ones are never found again."""
        for copy in self.copies.running.values():
            self.copies.give_up(copy.copy_id)
        self.shadow.about_to_sleep(self.rank, self.copies.running.values())
        self.poison(range(len(self.memory)))
        self.is_asleep = True

    def wake(self) -> None:
        """Allocate the GPU memory again."""
        self.is_asleep = False

    def must_have(self, block: int, who: str) -> None:
        """Report a block that doesn't exist; numpy would count a negative index from the end."""
        self.shadow.must_be_one_of(self.rank, block, len(self.memory), who)

    def must_be_awake(self, block: int, who: str) -> None:
        """Report a use of a block while the device sleeps."""
        if self.is_asleep:
            self.shadow.misses(self.rank, block, who)

    def must_not_be_over(self, block: int, copy: Copy | None) -> None:
        """Report a copy, or an errand, that uses a block although its worker said that its job is over."""
        if copy is not None and copy.over:
            self.shadow.comes_late(self.rank, block, copy)

    # -- compute -------------------------------------------------------------------------------

    @property
    def retired_steps(self) -> int:
        """How many of the launched steps have retired."""
        return self.copies.launched_steps - len(self.queue)

    def begin_step(self, new_blocks: Iterable[int], handed: Iterable[Offer]) -> None:
        """The rank's worker begins a step, which gets new blocks and hands over ends of prompts."""
        copies = (copy for device in (self, *self.others) for copy in device.copies.running.values())
        self.waited_steps += all(copy.state is State.LOST for copy in copies)
        self.settled.begin_step(new_blocks, handed)

    def take_over(self, blocks: Iterable[int]) -> None:
        """A step uses these blocks from now on: no lost copy may write them any more."""
        late = [copy.given_up_to for copy in self.copies.running.values() if copy.given_up_to]
        for given_up_to in late:
            given_up_to.difference_update(blocks)

    def read_loaded(self, step: LaunchedStep, blocks: Collection[int], group: int, layer: int) -> None:
        """A layer of the forward pass reads these blocks, which the step itself loads."""
        self.kernels.read_loaded(step, blocks, group, layer)

    def prepare(self, step: LaunchedStep) -> None:
        """Copy the step's states as soon as the steps launched before have retired.

        If the step itself loads states, they are copied at once: such a load doesn't wait for the copies.
        """
        self._prepared = step
        if step.late_states:
            self.synchronize()
        self._copy_next_states()

    def _copy_next_states(self) -> None:
        """Let the step whose turn it is copy its states."""
        step = self.queue[0] if self.queue else self._prepared
        if step is None or step.copied_to is not None:
            return
        states = self.kernels.state_copies(step)
        targets = step.copied_to = {target for _, _, target in states}
        if not states:
            return
        others = [copy for copy in self.copies.running.values() if copy.after_step <= self.retired_steps]
        what = f"step {step.number} copies a state into it"
        self.shadow.about_to_write(self.rank, targets, what, others)
        sources = {source for _, source, _ in states}
        self.shadow.about_to_read(self.rank, sources, f"step {step.number} goes on from its state", others)
        self.poison(targets.intersection(step.poison))
        self.kernels.copy_states(step, states)

    def launch(self, step: LaunchedStep) -> None:
        """Queue a step behind those launched before."""
        if self._refused:
            raise ConfigError(self._refused)
        self._prepared = None
        self.queue.append(step)
        self.take_over(step.reads | step.writes)
        self.copies.launched_steps += 1

    def retire(self) -> LaunchedStep:
        """Run the oldest launched step."""
        self._copy_next_states()
        step = self.queue[0]
        copied_to = step.copied_to or ()
        self.poison(block for block in step.poison if block not in copied_to)
        # Copies that wait for this step come after it by construction.
        others = [copy for copy in self.copies.running.values() if copy.after_step <= self.retired_steps]
        changed = partial(self.kernels.changes, step)
        self.shadow.about_to_write(self.rank, step.writes, f"step {step.number} computes into it", others, changed)
        self.shadow.about_to_read(self.rank, step.reads, f"step {step.number} attends to it", others)
        self.kernels.run(step)
        self.queue.popleft()
        self._copy_next_states()
        return step

    def retire_until(self, step: int) -> None:
        """Let the device finish the first ``step`` launched steps."""
        while self.retired_steps < step:
            self.retire()

    def synchronize(self) -> None:
        """Let the device finish all launched steps."""
        self.retire_until(self.copies.launched_steps)

    def zero(self, blocks: list[int], step: int) -> None:
        """Zero newly allocated blocks now, as a kernel would on a fast device."""
        self.shadow.about_to_write(self.rank, blocks, f"step {step} zeroes it", self.copies.running.values())
        for block in blocks:
            self.memory[block] = ZERO
            self.shadow.last_writer[self.rank][block] = f"step {step}, which zeroed it"

    def copy_blocks(self, copies: Sequence[tuple[int, int]], step: int) -> None:
        """Copy blocks (from, to) now, as a kernel would on a fast device."""
        if copies:
            self.synchronize()
        others = self.copies.running.values()
        for source, target in copies:
            self.shadow.about_to_write(self.rank, [target], f"step {step} copies into it", others)
            self.shadow.about_to_read(self.rank, [source], f"step {step} copies it", others)
            self.memory[target] = self.memory[source]
            who = f"step {step}, which copied block {source} into it"
            self.shadow.last_writer[self.rank][target] = who

    def poison(self, blocks: Iterable[int]) -> None:
        """Make the bytes of newly allocated blocks recognizable."""
        for block in blocks:
            self.memory[block] = POISON
            self.shadow.last_writer[self.rank][block] = NOT_SINCE

    # -- copies --------------------------------------------------------------------------------

    def owner(self, block: int) -> str:
        """The request that got a block last, for messages."""
        return self.shadow.owner(block)

    def restart_copies(self, *, forget_host: bool) -> None:
        """Restart the copy engine: running copies fail, and host memory may be lost."""
        if forget_host:
            self.host[:] = POISON
        self.copies.restart(len(self.host) if forget_host else 0)

    def lose(self, copy: Copy) -> None:
        """A copy is lost. If it is a load it may still write its blocks later, until another request uses them.

        If it was lost, given up and found before, it may write only blocks that have not been used since.
        """
        self.copies.lose(copy)
        if copy.direction is Direction.LOAD:
            may_write = copy.given_up_to | self.shadow.load_rights.keys()
            copy.given_up_to = may_write.intersection(copy.blocks_left)

    def move_page(self, copy: Copy, block: int, slot: int) -> None:
        """Move one page now, if the shadow allows it."""
        others, changes = self.copies.running.values(), self.kernels.changes
        if self.is_asleep:
            self.must_be_awake(block, str(copy))
        self.must_not_be_over(block, copy)
        self.shadow.about_to_move(self.rank, copy, block, slot, len(self.host), self.queue, others, changes)
        if not 0 <= slot < len(self.host):
            return  # the shadow said so already
        if copy.direction is Direction.STORE:
            self.host[slot] = self.memory[block]
        else:
            self.memory[block] = self.host[slot]
            self.shadow.last_writer[self.rank][block] = str(copy)
