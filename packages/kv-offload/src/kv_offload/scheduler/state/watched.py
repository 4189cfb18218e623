"""Which GPU blocks are in use by jobs that others must wait for.

Nearly always a block is used by only one such job, so the book is one dictionary from blocks to jobs. Where jobs
share blocks there are several such dictionaries, the *layers*: a job goes, with all its blocks, into the first
layer that has none of them. Adding, removing and asking take a few calls a job, however many blocks it has.
"""

from collections.abc import Collection, Iterable, Set


class WatchedBlocks:
    """From blocks to the jobs that use them."""

    def __init__(self) -> None:
        self._layers: list[dict[int, int]] = []
        self._layer_of: dict[int, dict[int, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._layer_of)

    def add(self, job_id: int, blocks: Collection[int]) -> None:
        """Watch a job's blocks."""
        for layer in self._layers:
            if layer.keys().isdisjoint(blocks):
                break
        else:
            layer = {}
            self._layers.append(layer)
        layer.update(dict.fromkeys(blocks, job_id))
        self._layer_of[job_id] = layer

    def remove(self, job_id: int, blocks: Iterable[int]) -> None:
        """Nobody has to wait for the job any more."""
        layer = self._layer_of.pop(job_id)
        for block in blocks:
            layer.pop(block, None)
        if not layer:
            self._layers = [layer for layer in self._layers if layer]

    def touching(self, blocks: Set[int]) -> list[int]:
        """The jobs on any of these blocks."""
        return sorted({layer[block] for layer in self._layers for block in layer.keys() & blocks})

    def check(self, expected: dict[int, Set[int]]) -> None:
        """Recount. ``expected`` are the blocks by job."""
        found: dict[int, set[int]] = {job_id: set() for job_id in self._layer_of}
        for layer in self._layers:
            for block, job_id in layer.items():
                assert self._layer_of.get(job_id) is layer, (
                    f"block {block} is in a layer that job {job_id} isn't in"
                )
                found[job_id].add(block)
        assert found == expected, f"blocks watched {found}, blocks of copies that others wait for {expected}"
