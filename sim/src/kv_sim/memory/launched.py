"""A launched step: what each of its requests computes and reads on a device. ``kernels`` runs it."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kv_sim.config import NULL, WorldConfig
from kv_sim.memory.content import Words


@dataclass(frozen=True)
class StateMoves:
    """Which blocks have the states of one request in one group: before a step, and after it."""

    before: int | None
    """The block with the state from which the step goes on. None: the step begins with the first token."""
    after: tuple[tuple[int, int], ...]
    """The blocks in which the step leaves a state, in this order, and the last token that each state has seen."""
    copied_to: int | None = None
    """The block to which the state is copied before the forward pass, which goes on from there. None: it goes on
    from where the state is."""


@dataclass(frozen=True)
class Attention:
    """What one request does in one step: computes ``[start, end)`` and reads everything before, by group."""

    request_id: str
    start: int
    end: int
    tables: tuple[tuple[int, ...], ...]
    hashes: Words
    """The right hash of each position, drafts included; at least ``end`` long."""
    states: Mapping[int, StateMoves] = field(default_factory=dict)
    """The blocks of a group's states, if the engine names them: with drafts there are more than in the table."""
    ahead: Mapping[int, Words] = field(default_factory=dict)
    """The words that a draft model, which has the last layer of a group, writes there from ``end`` on, as far as
    there are blocks. No request reads them, and the next step overwrites them."""

    def moves(self, group: int, block_size: int) -> StateMoves:
        """The blocks of a group's states. In a block table each block has the state after its last token."""
        if group in self.states:
            return self.states[group]
        table, last = self.tables[group], self.end - 1
        before = table[(self.start - 1) // block_size] if self.start else None
        reached = range(self.start // block_size, last // block_size + 1)
        after = ((table[index], min((index + 1) * block_size - 1, last)) for index in reached)
        running = table[last // block_size]
        copied_to = None if before is None or running in (before, NULL) else running
        return StateMoves(before, tuple((block, token) for block, token in after if block != NULL), copied_to)


@dataclass(frozen=True)
class ContentProblem:
    """A kernel read bytes that aren't those of its request's prefix."""

    request_id: str
    block: int
    message: str
    spoilt: tuple[int, ...] = field(default=(), compare=False)
    """Blocks with slots that were computed from these bytes."""


def late_states(
    attentions: Iterable[Attention], targets: Mapping[str, Collection[int]], config: WorldConfig
) -> dict[int, int]:
    """The states that a step itself loads: their blocks, and where each has been copied before it is loaded.

    ``targets``: by request, the blocks that the step's loads fill.
    """
    found: dict[int, int] = {}
    groups = [group for group, spec in enumerate(config.groups) if spec.kind == "state"] if targets else []
    for attention in attentions if groups else ():
        filled = targets.get(attention.request_id, ())
        for moves in (attention.moves(group, config.block_size) for group in groups):
            if moves.before is not None and moves.copied_to is not None and moves.before in filled:
                found[moves.before] = moves.copied_to
    return found


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
    parts: tuple[int, ...] = ()
    """Into how many blocks of each group ``block_size`` tokens are divided; empty: into none."""
    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    late_states: Mapping[int, int] = field(default_factory=dict)
    """Blocks of states that the step itself loads, and where each has been copied before it is loaded."""
    copied_to: set[int] | None = None
    """The blocks to which states were copied for the forward pass; None before that."""

    def __post_init__(self) -> None:
        sizes = [self.block_size // count for count in self.parts or [1] * len(self.windows)]
        for attention in self.attentions:
            for group, (table, size) in enumerate(zip(attention.tables, sizes, strict=True)):
                if group in attention.states:
                    moves = attention.states[group]
                    self.reads.update(() if moves.before is None else (moves.before,))
                    self.writes.update(block for block, _ in moves.after)
                    continue
                first = self.first_read(attention, group)
                last = (attention.end - 1) // size
                self.reads.update(table[first : last + 1])
                end = attention.end + len(attention.ahead.get(group, ()))
                self.writes.update(table[attention.start // size : -(-end // size)])
        # An engine that keeps only some states has no blocks for the others.
        self.reads.discard(NULL)
        self.writes.discard(NULL)

    def first_read(self, attention: Attention, group: int) -> int:
        """Index of the first block that the attention of a group reaches back to."""
        window, parts = self.windows[group], self.parts[group] if self.parts else 1
        return max(0, attention.start - window + 1) // (self.block_size // parts) if window else 0
