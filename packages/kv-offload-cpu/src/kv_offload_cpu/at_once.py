"""``AtOnceManager``: host memory whose copies take no time, so that a load or a store is one call.

It is for asking what a size or a policy would have answered, without a clock and without bytes, as kv-sim's replay
of a trace does. It decides as a server's manager does, also while jobs begun by other calls are under way.
"""

from collections.abc import Collection

from kv_api import OffloadKey, ReqContext
from kv_offload_cpu.load_store_spec import Stored
from kv_offload_cpu.manager import CPUOffloadingManager
from kv_offload_cpu.slots.pick import distinct


class AtOnceManager(CPUOffloadingManager):
    """A manager with a call for each pair of calls between which there would be a copy."""

    def load_prefix(self, keys: Collection[OffloadKey], req_context: ReqContext) -> int:
        """``prepare_load`` and ``complete_load`` of what ``lookup_prefix`` finds; how much that is."""
        listed = [*keys]
        first = self._pool.first_miss(listed)
        slots = self._pool.find(listed if first is None else listed[: listed.index(first)])
        if slots:
            run, used = self._run(req_context), distinct(slots)
            self._access(used, run)
            self._policy.unpin(self._pool.not_pinned(used), run)
        return len(slots)

    def store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> Stored | None:
        """``prepare_store`` and ``complete_store``; None if there is not enough room."""
        stored = self._intake.place(keys, req_context, _has_landed)
        if stored is not None and stored.slots:
            self._unpin(stored.slots, req_context)
            if self._events is not None:
                self._events.stored(stored.keys)
        return stored


def _has_landed(keys: list[OffloadKey], slots: list[int]) -> None:
    """Chunks that are resident as soon as they have places."""
