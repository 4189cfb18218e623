"""An engine of another package says which connectors it drives, and is asked wherever one is named."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from kv_api import ConfigError, KVTransferConfig, UnknownNameError
from kv_sim.actions import Action, Kind
from kv_sim.config import WorldConfig
from kv_sim.conformance import scenarios
from kv_sim.console import selection
from kv_sim.engine.builtin import BuiltinEngine
from kv_sim.engine.request import Status
from kv_sim.engine.request_spec import RequestSpec
from kv_sim.engines import ENGINES
from kv_sim.examples.catalogue import LATER, MEMORY
from kv_sim.subject import Subject, Trait
from kv_sim.world import World


class OtherEngine(BuiltinEngine):
    """It knows one name, and nothing of it works with several groups."""

    @classmethod
    def subject_named(cls, name: str) -> Subject:
        if name != "Theirs":
            raise UnknownNameError(f"other: no {name}")
        return Subject(MEMORY.kv_connector, MEMORY.module_path, traits=frozenset({Trait.RANKS}))

    @classmethod
    def connector_class(cls, transfer: KVTransferConfig) -> type[Any]:
        if transfer.kv_connector == "Broken":
            raise ConfigError("other: broken")
        return super().connector_class(transfer)

    @classmethod
    def supports_groups(cls, transfer: KVTransferConfig) -> bool:
        return False


@pytest.fixture(autouse=True)
def other() -> Iterator[None]:
    with ENGINES.isolated([]):
        ENGINES.register("builtin", BuiltinEngine.__module__, "BuiltinEngine")
        ENGINES.register("other", __name__, "OtherEngine")
        yield


def test_it_is_asked_who_a_name_is() -> None:
    theirs = selection.choose_subject("Theirs", engine="other")
    assert theirs == Subject(MEMORY.kv_connector, MEMORY.module_path, traits=frozenset({Trait.RANKS}))
    assert selection.choose_subjects("Theirs", None, "none", "other") == {
        "Theirs": Subject(MEMORY.kv_connector, MEMORY.module_path, traits=frozenset())
    }
    with pytest.raises(ConfigError, match=r"unknown connector 'Mine'; .*; installed connectors, other: no Mine$"):
        selection.choose_subject("Mine", engine="other")
    with pytest.raises(ConfigError, match="unknown connector 'Theirs'"):
        selection.choose_subject("Theirs")


def test_it_is_asked_what_class_that_is() -> None:
    with pytest.raises(ConfigError, match=r"^other: broken$"):
        selection.choose_subject("nowhere:Broken", engine="other")


def test_it_is_asked_whether_groups_are_known() -> None:
    assert selection.choose_subject("memory", traits="groups").traits == {Trait.GROUPS}
    with pytest.raises(ConfigError, match=f"{MEMORY.kv_connector} can't be used with several KV cache groups"):
        selection.choose_subject("memory", traits="groups", engine="other")
    plain = Subject(MEMORY.kv_connector, MEMORY.module_path, traits=frozenset())
    scenario = next(one for one in scenarios.probes_of(plain) if one.shows is Trait.GROUPS)
    outcomes = {
        engine: scenarios.run_scenario(plain, scenario, histories=1, engine=engine)
        for engine in ("builtin", "other")
    }
    assert (outcomes["builtin"].refusal, outcomes["builtin"].histories) == (None, 1)
    assert f"{MEMORY.kv_connector} can't be used with several" in str(outcomes["other"].refusal)


def test_the_world_that_shows_whether_one_can_be_made_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connector has threads, sockets and files from the moment it is made."""
    ended: list[str] = []
    monkeypatch.setattr(World, "break_off", lambda world, found: ended.append(type(world.engine).__name__))
    selection.choose_subject("memory", traits="none", engine="other")
    assert ended == ["OtherEngine"]


def test_one_of_vllms_is_sent_to_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    base = type("KVConnectorBase_V1", (), {"__module__": "vllm.distributed.base"})
    module: Any = ModuleType("of_vllms")
    module.Theirs, module.Nobodys = type("Theirs", (base,), {}), type("Nobodys", (), {})
    monkeypatch.setitem(sys.modules, "of_vllms", module)
    with pytest.raises(ConfigError) as found:
        selection.choose_subject("of_vllms:Theirs")
    assert str(found.value) == (
        "--connector 'of_vllms:Theirs': it derives from vLLM's own base class, so only vLLM's engine can drive "
        "it: --engine vllm, in pytest --kv-engine vllm (package kv-vllm)"
    )
    with pytest.raises(ConfigError, match="Nobodys is no connector"):
        selection.choose_subject("of_vllms:Nobodys")


def test_at_rest_others_may_work_while_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load that threads of the connector's own make ends when they get round to it."""
    world = World(WorldConfig(), LATER)
    for name, tokens in (("r1", 9), ("r2", 17)):
        world.engine.scheduler.blocks.block_pool.reset()
        world.apply(Action(Kind.ADD, {"spec": RequestSpec(name, 0, tokens, 0, 1, 1).to_json()}))
        for kind in (Kind.STEP, Kind.STEP, Kind.SETTLE, Kind.STEP)[: 4 if name == "r1" else 1]:
            world.apply(Action(kind))
    assert world.engine.scheduler.requests["r2"].status is Status.WAITING_FOR_REMOTE_KVS
    take, times = world.take, []

    def take_slowly(kind: Kind, **args: Any) -> None:
        if kind is not Kind.SETTLE or len(times) > 5:
            take(kind, **args)

    monkeypatch.setattr(world, "take", take_slowly)
    monkeypatch.setattr(world.engine, "let_others_work", lambda: times.append(world.engine.num_steps))
    world.rest()
    assert 6 <= len(times) < 20
    assert "r2" not in world.engine.scheduler.requests
