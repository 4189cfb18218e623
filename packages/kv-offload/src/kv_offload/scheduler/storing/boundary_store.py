"""Begin a store of what one block of some groups holds at a boundary: states, and tails.

What keeps the bytes depends on whether the request still runs. Then it may let go of any of these blocks before it
ends: where fences hold the job is watched from the beginning, and where they don't the blocks are *pinned*. If it
has ended they are held with all of its blocks, and were computed by earlier steps.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kv_api import GPULoadStoreSpec, OffloadKey
from kv_offload.metadata import TransferJob
from kv_offload.metrics import ALLOCATION_FAILURE
from kv_offload.scheduler.state.books import Books
from kv_offload.scheduler.state.jobs import Job
from kv_offload.scheduler.state.request_state import RequestState


class Source(NamedTuple):
    """The bytes of one key."""

    place: int
    """The group's index in the layout."""
    block: int
    key: OffloadKey


def store_of_running(books: Books, state: RequestState, boundary: int, sources: Sequence[Source]) -> list[Source]:
    """Store what this step leaves there. Returns what of ``sources`` is stored."""
    if books.engine.holds_blocks and not books.pins.can_pin:
        return []  # nothing would keep the bytes
    job, stored = _begin(books, state, boundary, sources, is_final=False)
    if job is not None and books.engine.holds_blocks:
        books.pins.pin(job.job_id, [source.block for source in stored])
    return stored


def store_of_ended(books: Books, state: RequestState, boundary: int, sources: Sequence[Source]) -> list[Source]:
    """Store what earlier steps left there; where blocks are held, its request is reported then."""
    return _begin(books, state, boundary, sources, is_final=True)[1]


def _begin(
    books: Books, state: RequestState, boundary: int, sources: Sequence[Source], *, is_final: bool
) -> tuple[Job | None, list[Source]]:
    """Begin a job, if the medium wants any of it and has room. ``sources`` are in the order of the layout."""
    source_of = {source.key: source for source in sources}
    output = books.prepare_store([*source_of], state.context)
    if output is None:
        books.stats.increase(ALLOCATION_FAILURE)
    if output is None or not output.keys_to_store:
        return None, []
    stored = [source_of[key] for key in output.keys_to_store]
    sizes, firsts = [0] * len(books.layout.groups), [0] * len(books.layout.groups)
    for source in stored:
        sizes[source.place] = 1
        firsts[source.place] = (boundary - 1) // books.layout.groups[source.place].tokens_per_block
    blocks = [source.block for source in stored]
    job = books.jobs.begin_boundary_store(state, output.keys_to_store, blocks, boundary)
    books.jobs.release(state)
    books.meta.store_jobs[job.job_id] = TransferJob(
        state.context.req_id,
        GPULoadStoreSpec(blocks, sizes, firsts),
        output.store_spec,
        is_held=is_final and books.engine.holds_blocks,
        is_computed=is_final,
    )
    return job, stored
