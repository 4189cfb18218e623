"""The slots of a job's chunks in the file, and their keys."""

from collections.abc import Collection, Iterable

from kv_api import BlockIDsLoadStoreSpec, KVError, LoadStoreSpec, OffloadKey
from kv_offload_file.label import Label


class FileLoadStoreSpec(BlockIDsLoadStoreSpec):
    """Slots, one for each key of the job, in ``block_ids`` (which are not GPU blocks).

    Workers write the keys to the file with the bytes, and refuse bytes of another key. ``number`` is the store's;
    loads ignore it.
    """

    def __init__(self, slots: Iterable[int], keys: Collection[OffloadKey], epoch: int, number: int) -> None:
        super().__init__(slots)
        if len(keys) != len(self.block_ids):
            raise ValueError(f"{len(keys)} keys for {len(self.block_ids)} slots")
        self.keys = tuple(keys)
        self.epoch = epoch
        self.number = number


def labels_of(job: str, spec: LoadStoreSpec) -> list[Label]:
    """The labels of a job's slots: to be written by a store, or required by a load."""
    if not isinstance(spec, FileLoadStoreSpec):
        raise KVError(f"{job}: expected a {FileLoadStoreSpec.__name__}, got {type(spec).__name__}")
    return [Label(key, spec.epoch, spec.number, nth) for nth, key in enumerate(spec.keys)]
