"""From chunks that are complete to what a store copies."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from kv_api import GPULoadStoreSpec, OffloadKey
from kv_offload.layout import Layout
from kv_offload.progress import Offer


def in_batches(layout: Layout, offers: Sequence[Offer]) -> Iterator[list[Offer]]:
    """Split offers into what one job can name.

    A job says where in its request the first block of a group lies, and then only how many there are. So a chunk
    of which just the last block is stored (a state, of several blocks) has to be alone.
    """
    whole = [offer for offer in offers if len(offer.blocks) == layout.groups[offer.place].blocks_per_chunk]
    if whole:
        yield whole
    for offer in offers:
        if len(offer.blocks) != layout.groups[offer.place].blocks_per_chunk:
            yield [offer]


def job_order(offers: Iterable[Offer]) -> list[Offer]:
    """Group after group, as a job lists its blocks."""
    return sorted(offers, key=lambda offer: (offer.place, offer.chunk))


def gpu_spec(layout: Layout, offers: Sequence[Offer], wanted: Iterable[OffloadKey]) -> GPULoadStoreSpec:
    """The blocks of the ``wanted`` chunks; both are in the order of the job."""
    by_key = {offer.key: offer for offer in offers}
    chosen = [by_key[key] for key in wanted]
    sizes, firsts = [0] * len(layout.groups), [0] * len(layout.groups)
    for place, group in groupby(chosen, key=lambda offer: offer.place):
        of_group = list(group)
        sizes[place] = sum(len(offer.blocks) for offer in of_group)
        firsts[place] = of_group[0].first_block
    return GPULoadStoreSpec([block for offer in chosen for block in offer.blocks], sizes, firsts)
