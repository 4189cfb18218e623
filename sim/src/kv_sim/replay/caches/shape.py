"""The shape of a trace: each request's blocks, cut into *segments* by the request that used them last.

Ids are prefix ids, so a request that uses a block also uses all blocks before it. Along a prompt, the request that
used the blocks last therefore changes only a few times: to ever older requests, and after these come blocks that
no request used before. All that depends on recency or on the next use depends on these segments only. A trace of
nine million references has only some ten thousand more segments than requests, and a bound or a curve takes one
step for each segment.

The last users are found by sorting the ids: a small trace at once, a large one in parts, so that memory stays
bounded.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from kv_api import ConfigError
from kv_sim.replay.columns import Columns, Ints

Requests: TypeAlias = npt.NDArray[np.int32]
Places: TypeAlias = npt.NDArray[np.uint32 | np.int64]

SORT_AT_ONCE: Final = 1 << 22
"""How many ids are sorted at a time."""

NOBODY: Final = -1


@dataclass(frozen=True)
class Shape:
    """Segments by request, and within one in prompt order; ``user`` is the last user's index, or `NOBODY`."""

    request: Ints
    start: Ints
    length: Ints
    user: Ints
    requests: int

    @property
    def unique_blocks(self) -> int:
        """Different blocks of the trace."""
        return int(self.length[self.user == NOBODY].sum())

    def check(self, columns: Columns) -> None:
        """Recount: the segments of a request cover its blocks, and users get older along the prompt."""
        counts = np.zeros(self.requests, dtype=np.int64)
        np.add.at(counts, self.request, self.length)
        assert (counts == columns.counts).all(), "segments don't cover the blocks"
        assert (self.length > 0).all(), "an empty segment"
        assert (np.diff(self.request) >= 0).all(), "segments in another order than requests"
        same = self.request[1:] == self.request[:-1]
        assert (self.user[1:][same] < self.user[:-1][same]).all(), "users don't get older along a prompt"
        assert (self.user < self.request).all(), "a user that comes later"


def shape_of(columns: Columns, sort_at_once: int = SORT_AT_ONCE) -> Shape:
    """The shape of a trace; an error if its ids aren't prefix ids."""
    request_of = np.repeat(np.arange(len(columns), dtype=np.int32), columns.counts)
    users = _last_users(columns, request_of, sort_at_once)
    total = len(users)
    new_segment = np.ones(total, dtype=bool)
    if total:
        new_segment[1:] = (users[1:] != users[:-1]) | (request_of[1:] != request_of[:-1])
    firsts = np.flatnonzero(new_segment)
    request = request_of[firsts].astype(np.int64)
    return Shape(
        request,
        firsts - columns.offsets[:-1][request],
        np.diff(np.append(firsts, total)),
        users[firsts].astype(np.int64),
        len(columns),
    )


def _last_users(columns: Columns, request_of: Requests, at_once: int) -> Requests:
    """For each reference to a block, the request that used the block last."""
    users: Requests = np.full(len(columns.blocks), NOBODY, dtype=np.int32)
    for place, before in uses_again(columns.blocks, at_once):
        _refuse_other_ids(columns, request_of, place, before)
        users[place] = request_of[before]
    return users


def uses_again(blocks: Ints, at_once: int = SORT_AT_ONCE) -> Iterator[tuple[Ints, Ints]]:
    """The places of ids that were used before, and the last place before each; a part of the ids at a time."""
    parts = -(-len(blocks) // at_once)
    for places in _places_by_part(blocks, parts, at_once) if parts > 1 else [np.arange(len(blocks))]:
        ids = blocks[places]
        order = np.argsort(ids, kind="stable")
        again = np.flatnonzero(ids[order[1:]] == ids[order[:-1]])
        yield places[order[again + 1]].astype(np.int64), places[order[again]].astype(np.int64)


def _refuse_other_ids(columns: Columns, request_of: Requests, place: Ints, before: Ints) -> None:
    """Refuse ids that are not prefix ids: a prefix id is at the same depth of every prompt, after the same id."""
    depth, old_depth = (at - columns.offsets[request_of[at]] for at in (place, before))
    parents = columns.blocks[place - 1] != columns.blocks[np.maximum(before - 1, 0)]
    wrong = np.flatnonzero((depth != old_depth) | ((depth > 0) & parents))
    if len(wrong):
        first = wrong[np.argmin(place[wrong])]
        raise ConfigError(
            f"{columns.name}: request {int(request_of[place[first]]) + 1} has id "
            f"{int(columns.blocks[place[first]])} after other ids than request "
            f"{int(request_of[before[first]]) + 1}, so these ids don't name prefixes; --ids block reads them as "
            "ids of blocks"
        )


def _places_by_part(blocks: Ints, parts: int, at_once: int) -> Iterator[Places]:
    """The places of the ids of each part, in order. The ids are read once, since they may be in a file.

    There are at least ``parts`` parts. The places take 4 bytes an id until they are yielded.
    """
    bits = min((parts - 1).bit_length(), 16)
    kind: type[np.uint32 | np.int64] = np.uint32 if len(blocks) <= 1 << 32 else np.int64
    found: list[list[Places]] = [[] for _ in range(1 << bits)]
    for first in range(0, len(blocks), at_once):
        spread = blocks[first : first + at_once].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        part_of = (spread >> np.uint64(64 - bits)).astype(np.uint16)
        order = np.argsort(part_of, kind="stable")
        for places in np.split(order, np.flatnonzero(np.diff(part_of[order])) + 1):
            found[int(part_of[places[0]])].append((places + first).astype(kind))
    while found:
        if of_part := found.pop():
            yield np.concatenate(of_part)
