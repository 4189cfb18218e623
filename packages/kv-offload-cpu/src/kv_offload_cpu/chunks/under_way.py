"""Jobs under way and their slots, so that the end of a job needn't look up the slot of each key again.

A job has no id here: its end is reported with the list of keys that it began with. Jobs are kept by the last of
their keys, and comparing two lists of the same key objects costs next to nothing. If a job ends with other keys
than it began with, it is unknown which of the kept jobs it was. So all of them are forgotten, and each key is
looked up.
"""

from collections.abc import Collection, Iterator, Sequence

from kv_api import OffloadKey


class UnderWay:
    """Keys and slots of jobs of one kind."""

    __slots__ = ("_batches",)

    def __init__(self) -> None:
        self._batches: dict[OffloadKey, tuple[list[OffloadKey], list[int]]] = {}

    def begin(self, keys: Sequence[OffloadKey], slots: list[int]) -> None:
        """A job began, with at least one key. Its keys are copied, since the list is its caller's."""
        self._batches[keys[-1]] = [*keys], slots

    def end(self, keys: Collection[OffloadKey]) -> list[int] | None:
        """The slots of a job that began with just this list. None: it isn't known."""
        begun = self._batches.get(keys[-1]) if keys and isinstance(keys, list) else None
        if begun is None or begun[0] != keys:
            return None
        del self._batches[keys[-1]]
        return begun[1]

    def clear(self) -> None:
        """Forget all jobs."""
        self._batches.clear()

    def check(self) -> None:
        """Recount: each job is kept under its last key."""
        wrong = [last for last, (keys, _) in self._batches.items() if keys[-1] != last]
        assert not wrong, f"kept under {wrong}, which end no job"

    def __iter__(self) -> Iterator[tuple[list[OffloadKey], list[int]]]:
        return iter(self._batches.values())
