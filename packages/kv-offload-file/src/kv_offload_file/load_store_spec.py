"""Where in the file a job finds its chunks, and whose they are."""

from collections.abc import Collection, Iterable

from kv_api import BlockIDsLoadStoreSpec, KVError, LoadStoreSpec, OffloadKey
from kv_offload_file.label import Label


class FileLoadStoreSpec(BlockIDsLoadStoreSpec):
    """Slots, one for each key of the job, in ``block_ids`` (as media of numbered places have it; not GPU blocks).

    Workers write the keys to the file with the bytes, and read no bytes that are another key's. ``number`` is the
    store's; for a load it means nothing.
    """

    def __init__(self, slots: Iterable[int], keys: Collection[OffloadKey], epoch: int, number: int) -> None:
        super().__init__(slots)
        if len(keys) != len(self.block_ids):
            raise ValueError(f"{len(keys)} keys for {len(self.block_ids)} slots")
        self.keys = tuple(keys)
        self.epoch = epoch
        self.number = number


def labels_of(job: str, spec: LoadStoreSpec) -> list[Label]:
    """What each slot of a job is to say, or has to."""
    if not isinstance(spec, FileLoadStoreSpec):
        raise KVError(f"{job}: expected a {FileLoadStoreSpec.__name__}, got {type(spec).__name__}")
    return [Label(key, spec.epoch, spec.number, nth) for nth, key in enumerate(spec.keys)]
