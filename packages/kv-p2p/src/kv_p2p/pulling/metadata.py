"""What the scheduler's side tells the workers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kv_api import KVConnectorMetadata
from kv_p2p.pulling.groups import Group
from kv_p2p.pulling.ticket import Address, Ticket

NULL_BLOCK: Final = 0
"""The id that stands in a block table for a block that is not needed any more."""

MOST_DIGITS: Final = 18
"""Digits of a hold's number, at most."""


def hold_id_of(request_id: str, number: int) -> str:
    """The id of a hold. An engine counts its holds from 1, and tells its workers of them in this order."""
    return f"{request_id}.{number}"


def number_of(hold_id: str) -> int:
    """The number of a hold, by its id; 0 if the id has no number that an engine could have reached."""
    number = hold_id.rpartition(".")[2]
    return int(number) if len(number) <= MOST_DIGITS and number.isascii() and number.isdigit() else 0


@dataclass(frozen=True)
class Source:
    """A hold of another engine."""

    address: Address
    hold_id: str
    digest: str

    @classmethod
    def of(cls, ticket: Ticket) -> "Source":
        """The hold that a ticket is for."""
        return cls(ticket.address, ticket.hold_id, ticket.digest)


def first_place(table: Sequence[int]) -> int:
    """The place of a table's first block that isn't null; the table has blocks from there to its end."""
    return next((place for place in range(len(table), 0, -1) if table[place - 1] == NULL_BLOCK), 0)


@dataclass(frozen=True)
class Hold:
    """Blocks that wait to be pulled."""

    request_id: str
    hold_id: str
    digest: str
    tables: tuple[tuple[int, ...], ...]
    """The block ids of each KV cache group, in the order of tokens. Blocks that slid out of a window are null."""


class Part(NamedTuple):
    """Blocks of one KV cache group, to be filled with those of a hold from place ``first`` on."""

    first: int
    block_ids: tuple[int, ...]

    @classmethod
    def of_tokens(cls, group: Group, table: Sequence[int], begin: int, end: int) -> "Part":
        """The blocks of a table to fill for tokens ``begin`` to ``end``, from the group's window on."""
        blocks = table[begin // group.block_size : -(-end // group.block_size)]
        passed = first_place(blocks)
        assert not any(blocks[:passed]), (
            f"a null block between others: {blocks} of {table}, tokens {begin} to {end}"
        )
        return cls(begin // group.block_size + passed, tuple(blocks[passed:]))


@dataclass(frozen=True)
class Pull:
    """Blocks to fill with those of a hold."""

    request_id: str
    source: Source
    parts: tuple[Part, ...]
    """One for each KV cache group."""

    @property
    def block_ids(self) -> tuple[int, ...]:
        """The blocks of all groups."""
        return tuple(block for part in self.parts for block in part.block_ids)


@dataclass
class P2PMetadata(KVConnectorMetadata):
    """The holds and pulls that begin in this step, and those that end early."""

    holds: list[Hold] = field(default_factory=list)
    pulls: list[Pull] = field(default_factory=list)
    declined: list[Source] = field(default_factory=list)
    """Holds of other engines whose tickets this engine declines."""
    revoked: list[str] = field(default_factory=list)
    """Requests whose hold ends now, whether it was pulled or not."""
    is_idle: bool = False
    """The step computes nothing, so its workers may wait a little for pulls and holds in flight."""

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.holds or self.pulls or self.declined or self.revoked)
