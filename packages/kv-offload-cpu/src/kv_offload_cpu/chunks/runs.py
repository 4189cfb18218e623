"""The object by which a policy knows a request; the request keeps it, so that it ends with the request."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from kv_api import OffloadKey, ReqContext
from kv_offload_cpu.policy.base import Run

_IsBefore: TypeAlias = Callable[[OffloadKey, OffloadKey], bool]


class _KeptRun(Run):
    """The run of a request. Which chunk comes first, the request says if it can (vLLM's can't)."""

    __slots__ = ("_is_before", "_key_of")

    def __init__(self, key_of: Sequence[OffloadKey], req_context: ReqContext) -> None:
        position = req_context.get_offload_key_position
        super().__init__(lambda slot: position(key_of[slot]))
        self._key_of = key_of
        self._is_before: _IsBefore | None = getattr(req_context, "is_offload_key_before", None)

    def is_before(self, slot: int, other: int) -> bool:
        if self._is_before is None:
            return super().is_before(slot, other)
        return self._is_before(self._key_of[slot], self._key_of[other])

    def close(self) -> None:
        super().close()
        self._is_before = None


class Runs:
    """The runs of one manager. Requests keep them under a class of its own, since several may serve a request."""

    def __init__(self, key_of: Sequence[OffloadKey]) -> None:
        self._key_of = key_of
        self._kept: type[_KeptRun] = type("KeptRun", (_KeptRun,), {"__slots__": ()})

    def of(self, req_context: ReqContext) -> Run:
        """The run of a request."""
        run = req_context.get_state(self._kept)
        if run is None:
            run = self._kept(self._key_of, req_context)
            req_context.set_state(run)
        return run


def in_token_order(slots: list[int], run: Run, key_of: Sequence[OffloadKey]) -> list[int]:
    """A batch lists group after group; each group by itself is in order."""
    if len(slots) == 1 or key_of[slots[0]][-4:] == key_of[slots[-1]][-4:]:
        return slots
    return run.in_token_order(slots)
