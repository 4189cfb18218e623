"""What a worker has for other engines arrives at the scheduler's side, by rank, before anything else happens."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from kv_api import KVConnectorHandshakeMetadata
from kv_sim.config import WorldConfig
from kv_sim.examples.memory import MemoryConnector, MemoryScheduler, MemoryWorker
from kv_sim.subject import Subject
from kv_sim.violation import Violation
from kv_sim.world import World


@dataclass
class Where(KVConnectorHandshakeMetadata):
    """Where a worker listens."""

    rank: Any


class _Tells(MemoryWorker):
    nobody: ClassVar[tuple[int, ...]] = ()

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        rank = self._vllm_config.parallel_config.rank
        return None if rank in self.nobody else Where(rank)


class _Hears(MemoryScheduler):
    def set_xfer_handshake_metadata_pp_aware(self, metadata: Any) -> None:
        self.heard = metadata


class Tells(MemoryConnector):
    scheduler_class = _Hears
    worker_class = _Tells


class _Odd(_Tells):
    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return Where(lambda: None)


class Odd(Tells):
    worker_class = _Odd


def heard(config: WorldConfig, name: str = "Tells") -> dict[tuple[int, int], Where]:
    world = World(config, Subject(name, __name__, traits=frozenset()))
    connector: Any = world.engine.connectors[-1]
    found: dict[tuple[int, int], Where] = connector.side.heard
    return found


@pytest.mark.parametrize(
    ("tp_size", "pp_size", "places"),
    [
        (1, 1, [(0, 0)]),
        (2, 1, [(0, 0), (0, 1)]),
        (1, 2, [(0, 0), (1, 0)]),
        (2, 2, [(0, 0), (0, 1), (1, 0), (1, 1)]),
    ],
)
def test_it_is_told_by_pipeline_rank_and_tensor_rank(
    tp_size: int, pp_size: int, places: list[tuple[int, int]]
) -> None:
    found = heard(WorldConfig(tp_size=tp_size, pp_size=pp_size))
    assert found == {place: Where(rank) for rank, place in enumerate(places)}


def test_who_has_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Tells, "nobody", (1, 2))
    assert heard(WorldConfig(tp_size=2, pp_size=2)) == {(0, 0): Where(0), (1, 1): Where(3)}
    monkeypatch.setattr(_Tells, "nobody", (0,))
    assert heard(WorldConfig()) == {}


def test_several_workers_send_it() -> None:
    assert len(heard(WorldConfig(), "Odd")) == 1
    with pytest.raises(Violation, match="get_handshake_metadata answered a dict that doesn't survive"):
        heard(WorldConfig(tp_size=2), "Odd")
