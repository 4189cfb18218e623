"""Which blocks somebody may write from a step on, as the engine's announcements have it."""

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Generic, NamedTuple, TypeVar

from kv_api import SchedulerOutput
from kv_offload.shape.layout import Layout

Tables = Sequence[Sequence[int]]
"""Block ids by group."""

S = TypeVar("S")


def fresh_blocks(layout: Layout, tables: Tables, local: int) -> set[int]:
    """Blocks of a table but for those that hold the first ``local`` tokens: these were hit, and are only read.

    Groups that aren't offloaded have their blocks counted from the first: they may still get ours.
    """
    found: set[int] = set()
    if local:
        sizes = {group.group_id: group.tokens_per_block for group in layout.groups}
        for group_id, table in enumerate(tables):
            found.update(table[local // sizes[group_id] if group_id in sizes else 0 :])
    else:
        found.update(*tables)
    found.discard(0)
    return found


class StepTables(NamedTuple, Generic[S]):
    """The block tables that a step tells of."""

    whole: list[tuple[S, Tables]]
    """All blocks of a request that begins, or goes on after a preemption, with what is known of it."""
    more: list[tuple[str, Tables]]
    """The blocks that a running request, known or not, got in addition to those it has, with its id."""


def tables_of_step(output: SchedulerOutput, states: Mapping[str, S]) -> StepTables[S]:
    """Read the block tables of a step; those that are whole only of requests that ``states`` knows."""
    whole: list[tuple[S, Tables]] = [
        (states[new.req_id], new.block_ids) for new in output.scheduled_new_reqs if new.req_id in states
    ]
    cached = output.scheduled_cached_reqs
    got = compress(cached.req_ids, cached.new_block_ids)  # most that decode got none: None
    more: list[tuple[str, Tables]] = [*zip(got, filter(None, cached.new_block_ids), strict=True)]
    resumed = cached.resumed_req_ids if more else ()
    if resumed:
        whole += [(states[name], blocks) for name, blocks in more if name in resumed and name in states]
        more = [each for each in more if each[0] not in resumed]
    return StepTables(whole, more)
