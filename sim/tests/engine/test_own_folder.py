"""``{folder}`` in a setting: each world has a folder of its own, which is gone with its engine."""

import gc
from pathlib import Path
from typing import Any

from kv_sim.config import WorldConfig
from kv_sim.engine.own_folder import Folder, with_folder
from kv_sim.examples.catalogue import SUBJECTS
from kv_sim.subject import Subject
from kv_sim.world import World

MEMORY = SUBJECTS["memory"]


def settings_of(world: World) -> list[dict[str, Any]]:
    """The extra config that each side of each connector was told."""
    sides = [connector.side for connector in world.engine.connectors]  # type: ignore[attr-defined]
    return [side._kv_transfer_config.kv_connector_extra_config for side in sides]


def subject(**settings: Any) -> Subject:
    return Subject(MEMORY.kv_connector, MEMORY.module_path, settings, MEMORY.traits)


def test_all_sides_of_a_world_have_one_folder_and_no_other_world_has_it() -> None:
    asked = subject(path="{folder}/kv", nested={"all": ["{folder}", 3]})
    one, other = World(WorldConfig(tp_size=2), asked), World(WorldConfig(), asked)
    folders = []
    for world in (one, other):
        told = settings_of(world)
        folder = Path(told[0]["nested"]["all"][0])
        assert folder.is_dir()
        assert all(each["path"] == f"{folder}/kv" and each["nested"] == {"all": [str(folder), 3]} for each in told)
        folders.append(folder)
    assert len(settings_of(one)) == 3
    assert folders[0] != folders[1]
    assert asked.extra_config["path"] == "{folder}/kv"  # what a schedule file says


def test_it_is_gone_with_the_engine() -> None:
    world = World(WorldConfig(), subject(path="{folder}"))
    folder = Path(settings_of(world)[0]["path"])
    (folder / "page").write_bytes(b"kept")
    del world
    gc.collect()
    assert not folder.exists()


def test_nobody_else_gets_one() -> None:
    made = World(WorldConfig(), subject(path="folder"))
    assert {told["path"] for told in settings_of(made)} == {"folder"}


def test_it_is_called_after_who_asks_first() -> None:
    folder = Folder()
    made = with_folder(subject(path="{folder}"), folder, "mine-").extra_config["path"]
    assert Path(made).name.startswith("mine-")
    assert with_folder(subject(path="in {folder}"), folder).extra_config["path"] == f"in {made}"
