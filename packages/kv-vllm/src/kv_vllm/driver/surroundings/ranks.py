"""vLLM's groups of ranks, for the ranks of a world.

All ranks of a world are in one process, so ``at_work`` sets the current rank around each call. A group knows its
members. Collectives of a group of one rank return its own value. Between several ranks they can't work, since the
other ranks don't run meanwhile: they raise an error that says so.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from vllm.distributed import parallel_state

from kv_api import ConfigError

TALKS: Final = frozenset(
    {
        *("all_gather", "all_reduce", "barrier", "broadcast", "broadcast_object", "broadcast_object_list"),
        *("broadcast_tensor_dict", "gather", "recv", "recv_object", "reduce_scatter", "send", "send_object"),
    }
)
"""The collective methods of vLLM's groups."""

HANDLES: Final = frozenset({"cpu_group", "device_group"})
"""What ``torch.distributed`` takes instead. A connector may ask whether they are there."""


class Ranks:
    """A group of ranks as one of them sees it, with what connectors use of vLLM's ``GroupCoordinator``."""

    def __init__(self, name: str, rank: int, ranks: list[int]) -> None:
        self.unique_name = name
        self.rank = rank
        self.ranks = ranks
        self.local_rank = rank
        self.world_size = len(ranks)
        self.rank_in_group = ranks.index(rank)
        self.first_rank, self.last_rank = ranks[0], ranks[-1]
        self.is_first_rank, self.is_last_rank = rank == ranks[0], rank == ranks[-1]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in TALKS:
            why = (
                ": ranks of a world share one process, so torch.distributed doesn't work"
                if name in HANDLES
                else ""
            )
            raise AttributeError(f"the testbed's group of ranks {self.unique_name!r} has no {name!r}{why}")
        return partial(self._to_nobody, name) if self.world_size > 1 else _to_itself

    def _to_nobody(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Raises when it is called; a connector may look the method up and never call it."""
        raise ConfigError(
            f"{name} of the group {self.unique_name!r}: the {self.world_size} ranks of a world share one "
            "process, so collectives between them don't work; try such a connector with one rank"
        )


def _to_itself(*args: Any, **kwargs: Any) -> Any:
    """A collective in a group of one rank: returns the rank's own value."""
    said = [*args, *kwargs.values()]
    return said[0] if said else None


@contextmanager
def at_work(rank: int, tensor_parallel: int) -> Iterator[None]:
    """A context in which this process is a rank's, with its groups."""
    alone = [rank]
    groups = {
        "_WORLD": Ranks("world", rank, list(range(tensor_parallel))),
        "_TP": Ranks("tp", rank, list(range(tensor_parallel))),
        **{f"_{name.upper()}": Ranks(name, rank, alone) for name in ("pp", "dp", "dcp", "pcp", "ep")},
    }
    before = {name: getattr(parallel_state, name) for name in groups if hasattr(parallel_state, name)}
    for name in before:
        setattr(parallel_state, name, groups[name])
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(parallel_state, name, value)
