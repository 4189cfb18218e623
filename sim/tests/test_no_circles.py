"""Who imports whom within the simulator: nobody, in the end, itself, not even for a type alone."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import kv_sim

pytestmark = pytest.mark.once  # what is written says nothing of who reads it

ROOT = Path(kv_sim.__file__).parent


def modules(root: Path) -> dict[str, Path]:
    """The files of a package, by the name that others import them by."""
    found = {}
    for path in root.rglob("*.py"):
        parts = [root.name, *path.relative_to(root).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the package that a file imports at its top, or for types."""
    names: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inner = {node for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) for node in ast.walk(each)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node not in inner:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} & known.keys() or {node.module}
        elif isinstance(node, ast.Import) and node not in inner:
            names |= {alias.name for alias in node.names}
    return names & known.keys()


def order(root: Path) -> list[str]:
    """The modules, each after those that it imports; a ``CycleError`` names a circle."""
    known = modules(root)
    return [*TopologicalSorter({name: imported(path, known) for name, path in known.items()}).static_order()]


@pytest.mark.once
def test_no_circle() -> None:
    names = order(ROOT)
    assert len(names) > 100
    assert names.index("kv_sim.engine.engine") < names.index("kv_sim.world_state") < names.index("kv_sim.world")


def test_a_circle_is_found(tmp_path: Path) -> None:
    root = tmp_path / "house"
    root.mkdir()
    (root / "__init__.py").touch()
    (root / "a.py").write_text("from house.b import x\n")
    (root / "b.py").write_text("def f():\n    from house import a\n")
    assert order(root).index("house.b") < order(root).index("house.a")
    (root / "b.py").write_text("if TYPE_CHECKING:\n    from house import a\n")
    with pytest.raises(CycleError, match=r"house\.[ab]"):
        order(root)
