"""The kernels of a launched step: they write and read a device's memory, and check every byte they read.

Before the connector is told to load, each state is copied to the block in which its request goes on. The forward
pass writes the slots that the step computes, then reads every slot that it attends to. A wrong slot is a
``ContentProblem`` of the step, which the engine judges when the step has come back. Wrong input gives wrong
output: the slots that the step wrote for that request are *spoilt*, and count as wrong when they are read later.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from kv_sim.config import WorldConfig
from kv_sim.memory.content import POISON, ZERO, Words, layer_keys
from kv_sim.memory.copy import Copy
from kv_sim.memory.launched import Attention, ContentProblem, LaunchedStep
from kv_sim.memory.shadow import Shadow

Slot = tuple[int, int, int]
"""Block, layer, and the token's position in the block."""


class Kernels:
    """The kernels of one rank, on its ``memory``."""

    def __init__(self, rank: int, config: WorldConfig, shadow: Shadow, memory: Words) -> None:
        self._rank = rank
        self._config = config
        self._shadow = shadow
        self._sizes = [config.tokens_of(group) for group in range(len(config.groups))]
        self._of_group = [
            memory[:, :layers, :size] for layers, size in zip(config.layers_of(rank), self._sizes, strict=True)
        ]
        """Each group's part of the memory: the layers that it has on this rank. Of a page with more bytes than the
        tokens of its blocks take, it is the beginning."""
        self.keys = self.keys_of(rank)
        self.others: list[Kernels] = []
        """One of each other engine, to find where wrong bytes come from."""
        here = [group for group, layers in enumerate(config.layers_of(rank)) if layers]
        self._states = [group for group in here if config.groups[group].kind == "state"]
        self._tokens = [group for group in here if group not in self._states]

    def state_copies(self, step: LaunchedStep) -> list[tuple[int, int, int]]:
        """The states that a step copies: group, from which block, and to which."""
        return [
            (group, moves.before, moves.copied_to)
            for group in self._states
            for moves in (attention.moves(group, self._config.block_size) for attention in step.attentions)
            if moves.before is not None and moves.copied_to is not None
        ]

    def copy_states(self, step: LaunchedStep, states: Iterable[tuple[int, int, int]]) -> None:
        """Copy the states of a step."""
        for group, source, target in states:
            self._of_group[group][target] = self._of_group[group][source]
            self._shadow.last_writer[self._rank][target] = _copier(step, source)

    def run(self, step: LaunchedStep) -> None:
        """Run a step: a state is read before any is written, tokens are written before any is read."""
        self._shadow.hashes_of.update((attention.request_id, attention.hashes) for attention in step.attentions)
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
                self._read(step, attention, group, step.first_read(attention, group))
                if self._config.has_tails:
                    self._read_end(step, attention, group)
        # A problem may be of another rank, or of a layer that read loaded blocks: all later results are wrong.
        wrong = {problem.request_id for problem in step.problems}
        for attention in step.attentions if wrong else ():
            if attention.request_id in wrong:
                self._spoil(attention)

    def read_loaded(self, step: LaunchedStep, blocks: Collection[int], group: int, layer: int) -> None:
        """A layer reads blocks that the step loads: the full ones of its group among ``blocks``, but no states."""
        size = self._sizes[group]
        for attention in step.attentions if group in self._tokens else ():
            first = step.first_read(attention, group)
            for index, block in enumerate(attention.tables[group][: attention.start // size]):
                if index >= first and block in blocks:
                    expected = attention.hashes[index * size : (index + 1) * size] ^ self.keys[group][layer]
                    differs = self._of_group[group][block, layer] != expected
                    if np.count_nonzero(differs):
                        offset = int(np.argmax(differs))
                        slot = (block, layer, offset)
                        role = ", in which it is loaded, when wait_for_layer_load returned"
                        self._note(step, attention, index * size + offset, group, slot, role)

    def changes(self, step: LaunchedStep, copy: Copy, block: int) -> bool:
        """Whether a step will change bytes of a block that a copy reads.

        Tokens that are computed again after a failed load get the same bytes: other requests that share their
        blocks may be reading them. Spoilt slots count as if they were right, since a connector must drop chunks of
        them anyway. And appended tokens don't matter to a store of the settled ones before them.
        """
        if block in step.poison:
            return True
        appends, settled = copy.settled.get(block, ("", 0))
        for attention in step.attentions:
            for group, (table, size) in enumerate(zip(attention.tables, self._sizes, strict=True)):
                last = settled if attention.request_id == appends else size
                if self._config.groups[group].kind == "state":
                    if any(left == block for left, _ in attention.moves(group, size).after):
                        return True
                    continue
                for index in range(attention.start // size, (attention.end - 1) // size + 1):
                    if table[index] != block:
                        continue
                    first, end = max(attention.start, index * size), min(attention.end, index * size + last)
                    held = self._of_group[group][block, :, first - index * size : end - index * size]
                    right = attention.hashes[first:end] ^ self.keys[group][:, None]
                    if not ((held == right) | (held == ~right)).all():
                        return True
                for left, slots, words in self._ahead(attention, group):
                    if left == block and (self._of_group[group][block, -1, slots] != words).any():
                        return True
        return False

    def _write(self, step: LaunchedStep, attention: Attention, group: int) -> None:
        for block, slots, hashes in self._written(attention, group):
            self._of_group[group][block, :, slots] = hashes ^ self.keys[group][:, None]
            self._shadow.wrote_part(self._rank, block, _writer(step, attention), slots)
        for block, slots, words in self._ahead(attention, group):
            self._of_group[group][block, -1, slots] = words
            writer = f"the drafts of {_writer(step, attention)}"
            self._shadow.wrote_part(self._rank, block, writer, slots, len(self.keys[group]) - 1)

    def _ahead(self, attention: Attention, group: int) -> Iterator[tuple[int, slice, Words]]:
        """The slots in which a draft model writes beyond the step's tokens, and the words that it writes."""
        if group in attention.ahead:
            words = attention.ahead[group] ^ self.keys[group][-1]
            yield from _places(attention.tables[group], self._sizes[group], attention.end, words)

    def _spoil(self, attention: Attention) -> None:
        """Spoil the slots that a request wrote, since it read wrong bytes."""
        for group in self._tokens:
            for block, slots, hashes in self._written(attention, group):
                self._of_group[group][block, :, slots] = ~(hashes ^ self.keys[group][:, None])

    def _written(self, attention: Attention, group: int) -> Iterator[tuple[int, slice, Words]]:
        """The slots that a request writes: block, slots in it, and the hashes of their tokens."""
        hashes = attention.hashes[attention.start : attention.end]
        return _places(attention.tables[group], self._sizes[group], attention.start, hashes)

    def _read(self, step: LaunchedStep, attention: Attention, group: int, first: int) -> None:
        """Read the full blocks of a group from the ``first`` on."""
        size = self._sizes[group]
        full = attention.end // size
        table = attention.tables[group][first:full]
        if table:
            expected = attention.hashes[first * size : full * size].reshape(-1, size)
            self._compare(step, attention, group, first, table, expected)

    def _read_end(self, step: LaunchedStep, attention: Attention, group: int) -> None:
        """Read a partly filled block: its loaded or copied slots might never be read otherwise."""
        index, count = divmod(attention.end, self._config.block_size)
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
        """Compare the beginnings of a request's blocks, from the ``first`` on, with the expected words."""
        held = self._of_group[group][list(table), :, : expected.shape[1]]
        got = held ^ self.keys[group][None, :, None]
        differs = got != expected[:, None]
        if np.count_nonzero(differs):  # ``any`` of an array is a function in Python
            index, layer, offset = (int(x) for x in np.argwhere(differs)[0])
            token = (first + index) * self._sizes[group] + offset
            self._note(step, attention, token, group, (table[index], layer, offset))

    def _note(
        self,
        step: LaunchedStep,
        attention: Attention,
        token: int,
        group: int,
        slot: Slot,
        role: str = "",
        loaded: int | None = None,
    ) -> None:
        """Note that a slot has the wrong bytes for a request's ``token``.

        ``loaded``: the block whose load should have brought them, if that is another one.
        """
        block, layer, _ = slot
        request_id, held = attention.request_id, int(self._of_group[group][slot])
        whose = self._whose(held, group, layer)
        told = self._shadow.explain_content(self._rank, request_id, token, slot, held, whose)
        message = f"{told} (group {group}, layer {layer}, step {step.number}{role})"
        spoilt = {block for group in self._tokens for block, _, _ in self._written(attention, group)}
        blamed = block if loaded is None else loaded
        step.problems.append(ContentProblem(request_id, blamed, message, tuple(sorted(spoilt))))

    def _whose(self, value: int, group: int, layer: int) -> str | None:
        """The request and token that a value belongs to, and its place if that is another one. None: unknown."""
        if value in (POISON, ZERO):
            return None
        for kernels in (self, *self.others):
            found = kernels.find(value)
            if found is not None:
                token, name, *place = found
                is_here = place == [self._rank, group, layer]
                where = "" if is_here else " of rank {}, group {}, layer {}".format(*place)
                return f"token {token} of request {name}{where}{self._elsewhere(kernels)}"
        return None

    def keys_of(self, rank: int) -> list[Words]:
        """The constants of a rank's layers, by group."""
        return layer_keys(rank, self._config.layers_of(rank), self._config.stranger)

    def find(self, value: int) -> tuple[int, str, int, int, int] | None:
        """The token of a request of this engine that a value belongs to, with its rank, group and layer."""
        for rank in range(self._config.world_size):
            for group, keys in enumerate(self.keys_of(rank)):
                for layer, key in enumerate(keys):
                    for name, hashes in self._shadow.hashes_of.items():
                        found = np.flatnonzero((hashes ^ key) == np.uint64(value))
                        if len(found):
                            return int(found[0]), name, rank, group, layer
        return None

    def _elsewhere(self, kernels: "Kernels") -> str:
        """For messages: the request of another engine that a value belongs to."""
        if kernels is self:
            return ""
        strange = {kernels._config.stranger, self._config.stranger} - {"none"}
        if not strange:
            return " at another engine"
        if strange == {"dtype"}:
            return ", of another data type"
        return ", of another model" if strange <= {"model", "path"} else ", of an engine with another layout"

    def _write_states(self, step: LaunchedStep, attention: Attention, group: int) -> None:
        """Write the states after the step's tokens."""
        for block, token in attention.moves(group, self._config.block_size).after:
            self._of_group[group][block] = (attention.hashes[token] ^ self.keys[group])[:, None]
            self._shadow.last_writer[self._rank][block] = _writer(step, attention)

    def _read_state(self, step: LaunchedStep, attention: Attention, group: int) -> None:
        """Read the state before the step's first token.

        Wrong bytes that were wrong where they were copied from are told as those of that block.
        """
        moves, token = attention.moves(group, self._config.block_size), attention.start - 1
        if moves.before is None:
            return
        block = moves.before if moves.copied_to is None else moves.copied_to
        got = self._of_group[group][block] ^ self.keys[group][:, None]
        differs = got != attention.hashes[token]
        if not np.count_nonzero(differs):
            return
        layer, offset = (int(x) for x in np.argwhere(differs)[0])
        role, held = ", which goes on from this state", self._of_group[group]
        is_copy = self._shadow.last_writer[self._rank].get(block) == _copier(step, moves.before)
        if moves.before in step.late_states and is_copy:
            role += (
                f": the step's load fills block {moves.before} only when that has been copied to block {block}; "
                "load states asynchronously, or fill both"
            )
        elif held[moves.before, layer, offset] == held[block, layer, offset]:
            block = moves.before
        self._note(step, attention, token, group, (block, layer, offset), role, moves.before)


def _places(table: Sequence[int], size: int, start: int, words: Words) -> Iterator[tuple[int, slice, Words]]:
    """The places of words from a request's ``start`` on, up to the end of its table: block, slots, and words."""
    position, end = start, min(start + len(words), len(table) * size)
    while position < end:
        index, offset = divmod(position, size)
        count = min(size - offset, end - position)
        yield table[index], slice(offset, offset + count), words[position - start : position - start + count]
        position += count


def _copier(step: LaunchedStep, source: int) -> str:
    return f"step {step.number}, which copied the state in block {source} into it"


def _writer(step: LaunchedStep, attention: Attention) -> str:
    return f"step {step.number} for request {attention.request_id}"
