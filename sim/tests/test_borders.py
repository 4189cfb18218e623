"""A world knows nothing of what is done with it, and each folder only what it needs."""

import ast
import re
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import kv_sim

pytestmark = pytest.mark.once  # what is written says nothing of who reads it

ROOT = Path(kv_sim.__file__).parent
WORLD = {
    *("actions", "calls", "checkers", "config", "engine", "engines", "guard", "history", "memory"),
    *("site", "subject", "violation", "world", "world_state"),
}
WORKED_OUT = (
    "replay",
    "replay/caches",
    "replay/hit_rates",
    "replay/kv_bytes",
    "replay/readers",
    *(
        f"replay/readers/{folder}"
        for folder in ("chats", "files", "formats", "formats/spans", "requests", "unknown")
    ),
    "replay/servers",
    "replay/sizing",
    "replay/timed",
    *(f"replay/timed/{folder}" for folder in ("connectors", "durations", "engine", "runs", "server")),
)


def known_to(part: str, folder: str = "") -> set[str]:
    """What a part, a folder or a module, imports of the other parts of its folder; when it runs, too."""
    inside = ROOT / folder
    package = ".".join(["kv_sim", *filter(None, folder.split("/"))])
    files = inside.glob(f"{part}/**/*.py") if (inside / part).is_dir() else [inside / f"{part}.py"]
    found = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == package:
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}."):
                found.add((node.module or "").removeprefix(f"{package}.").split(".")[0])
    return found - {part}


@pytest.mark.parametrize("part", sorted(WORLD))
def test_a_world_knows_nothing_of_what_is_done_with_it(part: str) -> None:
    assert known_to(part) <= WORLD


def test_folders_stand_on_each_other() -> None:
    """Commands on what they share, and that on worlds, whose parts are one thing here."""
    parts = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    above = {part: known_to(part) - WORLD for part in parts - WORLD}
    assert len(above) > 15
    order = [*TopologicalSorter(above).static_order()]
    assert order.index("failures") < order.index("console") < order.index("replay") < order.index("cli")
    assert {part for part in parts if "cli" in known_to(part)} == {"__main__"}


@pytest.mark.parametrize(
    ("folder", "others"),
    [
        ("memory", {"config", "violation"}),
        ("history", {"actions", "config", "engine", "engines", "memory", "site", "subject", "world_state"}),
        (
            "watching",
            {"actions", "config", "engine", "memory", "site", "subject", "violation", "whole_file", "world"},
        ),
        (
            "failures",
            {"actions", "config", "engine", "engines", "fuzz", "strict", "subject", "violation", "watching"},
        ),
        ("examples", {"subject", "violation"}),
        ("replay/caches", {"columns", "observed", "trace", "units"}),
        ("replay/hit_rates", {"caches", "columns", "crew", "readers", "servers", "trace", "units"}),
        ("replay/kv_bytes", set()),
        ("replay/servers", {"caches", "columns"}),
        ("replay/sizing", {"caches", "crew", "hit_rates", "servers", "units"}),
        ("replay/readers", {"columns", "observed", "trace", "units"}),
    ],
)
def test_a_folder_knows_what_it_needs(folder: str, others: set[str]) -> None:
    above, _, part = folder.rpartition("/")
    assert known_to(part, above) == others


@pytest.mark.parametrize(
    ("folder", "lowest", "way"),
    [
        (
            "replay",
            "units observed trace columns crew",
            "readers kv_bytes caches servers hit_rates sizing timed report",
        ),
        ("replay/timed", "", "durations server engine connectors runs goal replay sweep"),
        ("replay/readers", "record fields format", "files chats requests formats unknown"),
    ],
)
def test_each_part_knows_only_those_before_it(folder: str, lowest: str, way: str) -> None:
    """In the order in which the folder's docstring lists them."""
    parts = f"{lowest} {way}".split()
    for at, part in enumerate(parts):
        assert known_to(part, folder) & {*parts} <= {*parts[:at]}, part


def test_only_the_catalogue_and_what_proposes_one_know_the_formats() -> None:
    parts = {path.stem for path in (ROOT / "replay/readers").iterdir()}
    assert {part for part in parts if "formats" in known_to(part, "replay/readers")} == {"catalogue", "unknown"}


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("replay/command", ("replay/report", *WORKED_OUT)),
        ("replay/report", WORKED_OUT),
    ],
)
def test_what_is_worked_out_knows_nothing_of_who_shows_it(above: str, below: tuple[str, ...]) -> None:
    module = f"kv_sim.{above.replace('/', '.')}"
    for file in [file for folder in below for file in (ROOT / folder).glob("*.py")]:
        imports = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
        assert not [node.lineno for node in imports if (node.module or "").startswith(module)], file


def test_every_package_that_it_needs_is_imported() -> None:
    """What only tests import is none of a user's."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.split(r"[^a-z0-9-]", need)[0].replace("-", "_") for need in project["dependencies"]}
    imported = set()
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").split(".")[0])
            elif isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
    assert needed - imported == set()
    ours = {name for name in imported if name.startswith("kv_")} - {"kv_sim"}
    assert ours - needed == set()
