"""From a GPU block to the block tables that list it, for all requests and groups that may lose single blocks.

The engine doesn't tell the connector when a request loses a block that slid out of its window, or that held an
earlier state. It just gives the block to another request, for which it is fresh. So each fresh block is looked up
here, and a step costs what its own blocks cost, however many requests there are.

**Theory of operation.** A *place* is a table, which is a list, and an index in it; null blocks have none. Nearly
always a block has one place, in ``_place_of``. Requests that found the same blocks on the GPU share them: what a
block has beyond the first place is in ``_more``, by the identity of the table. So a table's blocks are added in a
few calls, and only a block that is shared costs a step for each place.

A table is added as it grows, and removed before its request forgets it. Blocks that somebody else got are
*vacated*: their places become null.

**Invariants** (``check``): every block of every table that was added and not removed has its place, and there is
no other. What is in ``_more`` is in ``_place_of``, too, with another table.
"""

from collections.abc import Sequence, Set
from itertools import count, repeat

Table = list[int]
Place = tuple[Table, int]


class BlockIndex:
    """The places of each block."""

    def __init__(self) -> None:
        self._place_of: dict[int, Place] = {}
        self._more: dict[int, dict[int, Place]] = {}

    def add(self, table: Table, first: int = 0) -> None:
        """A table has its blocks from ``first`` on."""
        places = self._place_of
        new = dict(zip(table[first:], zip(repeat(table), count(first)), strict=False))
        new.pop(0, None)
        if not places.keys().isdisjoint(new):
            for block in [block for block in new if block in places]:
                self._more.setdefault(block, {})[id(table)] = new.pop(block)
        places.update(new)

    def remove(self, table: Table) -> None:
        """Stop tracking a table."""
        blocks = [block for block in dict.fromkeys(table) if block]
        if self._more and not self._more.keys().isdisjoint(blocks):
            shared = [block for block in blocks if block in self._more]
            blocks = [block for block in blocks if block not in self._more]
            for block in shared:
                self._remove_shared(block, table)
        for block in blocks:
            del self._place_of[block]

    def _remove_shared(self, block: int, table: Table) -> None:
        more = self._more[block]
        if self._place_of[block][0] is table:
            _, self._place_of[block] = more.popitem()
        else:
            del more[id(table)]
        if not more:
            del self._more[block]

    def vacate(self, blocks: Set[int]) -> None:
        """Other requests got these blocks: remove them from the tables that had them."""
        for block in self._place_of.keys() & blocks:
            table, index = self._place_of.pop(block)
            table[index] = 0
            for table, index in self._more.pop(block, {}).values():
                table[index] = 0

    def check(self, tables: Sequence[Table]) -> None:
        """Recount. ``tables`` are those that were added and not removed."""
        number_of = {id(table): number for number, table in enumerate(tables)}
        expected = [
            (block, number, index)
            for number, table in enumerate(tables)
            for index, block in enumerate(table)
            if block
        ]
        places = [
            *self._place_of.items(),
            *((block, place) for block, more in self._more.items() for place in more.values()),
        ]
        known = [(block, number_of.get(id(table), -1), index) for block, (table, index) in places]
        assert sorted(known) == sorted(expected), (
            f"(block, table, index): {sorted(expected)} in tables, {sorted(known)} known"
        )
        stray = [block for block, more in self._more.items() if not more or block not in self._place_of]
        assert not stray, f"blocks {stray} have more than one place, and not one"
