"""What a policy knows a request by, kept with the request, so that it ends with it."""

from collections.abc import Callable, Sequence

from kv_api import OffloadKey, ReqContext
from kv_offload_cpu.policy.base import Run


class Runs:
    """The runs of one manager. Requests keep them under a class of its own, since several may serve a request."""

    def __init__(self, key_of: Sequence[OffloadKey]) -> None:
        self._key_of = key_of
        self._kept: type[Run] = type("KeptRun", (Run,), {"__slots__": ()})

    def of(self, req_context: ReqContext) -> Run:
        """The run of a request."""
        run = req_context.get_state(self._kept)
        if run is None:
            run = self._kept(_positions(self._key_of, req_context))
            req_context.set_state(run)
        return run


def _positions(key_of: Sequence[OffloadKey], req_context: ReqContext) -> Callable[[int], int | None]:
    """Where in the request the chunk in a slot ends."""
    position = req_context.get_offload_key_position
    return lambda slot: position(key_of[slot])


def in_token_order(slots: list[int], run: Run, key_of: Sequence[OffloadKey]) -> list[int]:
    """A batch lists group after group; each group by itself is in order."""
    if len(slots) == 1 or key_of[slots[0]][-4:] == key_of[slots[-1]][-4:]:
        return slots
    return run.in_token_order(slots)
