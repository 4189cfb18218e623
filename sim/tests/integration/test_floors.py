"""Whom each package imports, and what it declares: arrows point down. And which of them log."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FLOORS = {
    "kv_api": 0,
    "kv_factory": 1,
    "kv_offload_cpu": 1,
    "kv_multi": 2,
    "kv_offload_file": 2,
    "kv_offload": 2,
    "kv_p2p": 2,
    "kv_sim": 3,
    "kv_vllm": 4,
}
"""As ARCHITECTURE.md draws them."""
PACKAGES = {
    package.name: package
    for sources in (*ROOT.glob("packages/*/src"), ROOT / "sim" / "src")
    for package in sources.glob("kv_*")
}


def imported(source: str) -> set[str]:
    """The packages of ours that a module imports: at its top, in a function, or for types."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.partition(".")[0] for name in names} & FLOORS.keys()


def broken(package: str, source: str) -> set[str]:
    """What of it lies on the same floor or above."""
    return {name for name in imported(source) - {package} if FLOORS[name] >= FLOORS[package]}


def declared(package: str) -> set[str]:
    """Which of ours a package declares, for itself or for an extra of it."""
    project = tomllib.loads((PACKAGES[package].parents[1] / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {}).values()
    needs = [*project.get("dependencies", ()), *(need for extra in extras for need in extra)]
    return {re.split(r"[^\w-]", need)[0].replace("-", "_") for need in needs} & FLOORS.keys()


def test_each_package_has_its_floor() -> None:
    assert PACKAGES.keys() == FLOORS.keys()


@pytest.mark.parametrize("package", FLOORS)
def test_a_package_imports_only_what_lies_below_it_and_is_declared(package: str) -> None:
    files = sorted(PACKAGES[package].rglob("*.py"))
    assert files
    used: set[str] = set()
    for file in files:
        source = file.read_text(encoding="utf-8")
        assert not broken(package, source), f"{file.relative_to(ROOT)} imports what is not below {package}"
        used |= imported(source) - {package}
    assert used <= declared(package)


@pytest.mark.parametrize(
    "source", ["import kv_multi.x as y", "def f():\n    from kv_sim.world import World", "from kv_p2p import x"]
)
def test_an_arrow_that_points_up_or_aside_is_found(source: str) -> None:
    assert broken("kv_offload", f"from kv_api import KVError\nfrom kv_offload import log\n{source}")


def test_and_one_that_points_down_is_none() -> None:
    assert not broken(
        "kv_offload", "from kv_api import KVError\nfrom kv_factory import x\nfrom kv_offload import log"
    )


def test_of_all_that_log_vllm_hears() -> None:
    from kv_vllm.log import OURS  # a session of torch's looks into this file, and has no kv_vllm

    sources = [file.read_text(encoding="utf-8") for package in PACKAGES.values() for file in package.rglob("*.py")]
    logs = {name for source in sources for name in re.findall(r'getLogger\("(kv_\w+)"\)', source)}
    assert logs == {*OURS}
