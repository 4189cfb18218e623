"""ACCOUNTING of what is logged: the stats of several steps add up.

A server shows a connector's stats now and then. Until then the process that logs rebuilds those of each step from
their payload and adds them to the earlier ones (``aggregate``). What a sum loses there is in no log and in no
dashboard, though each step's stats were right.
"""

from collections import Counter
from copy import deepcopy
from typing import Final

from kv_api import KVConnectorBase_V1, KVConnectorStats
from kv_sim.checkers.accounting import BYTES, by_child
from kv_sim.violation import Invariant, Referee

MOST_STEPS: Final = 8
"""After so many additions the sum is shown, and the next one begins."""


class Logged:
    """The stats of one side of a connector, added up."""

    def __init__(self, connector: type[KVConnectorBase_V1], referee: Referee) -> None:
        self._connector = connector
        self._referee = referee
        self._begin()

    def _begin(self) -> None:
        self._added: KVConnectorStats | None = None
        self._expected: Counter[str] = Counter()
        self._steps = 0

    def add(self, stats: KVConnectorStats) -> None:
        """Add the stats of a step, and check the sums of bytes by vLLM's names, of each child of the connector."""
        if stats.is_empty():
            return
        rebuilt = self._connector.build_kv_connector_stats(deepcopy(stats.to_dict()))
        if rebuilt is None:
            return
        self._expected.update(_sums_of(rebuilt))
        self._added = rebuilt if self._added is None else self._added.aggregate(rebuilt)
        self._steps += 1
        found = _sums_of(self._added)
        for name, sum_ in self._expected.items():
            if found.get(name) != sum_:
                self._referee.fail(
                    Invariant.ACCOUNTING,
                    f"{name} adds up to {sum_} in the stats of {self._steps} steps, but aggregate makes it "
                    f"{found.get(name)}",
                )
        if self._steps == MOST_STEPS:
            self._begin()


def _sums_of(stats: KVConnectorStats) -> dict[str, float]:
    """The sums of bytes, by the child and the name."""
    return {
        f"{whose}{name}": numbers[name]
        for whose, numbers in by_child(stats.reduce())
        for names in BYTES.values()
        for name in names
        if name in numbers
    }
