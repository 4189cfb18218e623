"""Which blocks somebody may write from a step on, as the engine's announcements have it."""

from collections.abc import Sequence

from kv_api import SchedulerOutput
from kv_offload.layout import Layout

Tables = Sequence[Sequence[int]]
"""Block ids by group."""

Told = tuple[str, Tables]
"""A request, and blocks of it."""


def fresh_blocks(layout: Layout, tables: Tables, local: int) -> set[int]:
    """Blocks of a table but for those that hold the first ``local`` tokens: these were hit, and are only read.

    Groups that aren't offloaded have their blocks counted from the first: they may still get ours.
    """
    sizes = {group.group_id: group.tokens_per_block for group in layout.groups}
    found: set[int] = set()
    for group_id, table in enumerate(tables):
        found.update(table[local // sizes[group_id] if group_id in sizes else 0 :])
    found.discard(0)
    return found


def tables_of_step(output: SchedulerOutput) -> tuple[list[Told], list[Told]]:
    """The block tables that a step tells of: all blocks of a request, and what others got more."""
    whole: list[Told] = [(new.req_id, new.block_ids) for new in output.scheduled_new_reqs]
    cached = output.scheduled_cached_reqs
    more: list[Told] = [
        (request_id, blocks)
        for request_id, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True)
        if blocks is not None
    ]
    resumed = cached.resumed_req_ids if more else ()
    if resumed:
        whole += [told for told in more if told[0] in resumed]
        more = [told for told in more if told[0] not in resumed]
    return whole, more
