"""The driver has what the testbed asks of an engine, a scheduler and a worker; read as text, without vLLM."""

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

import kv_vllm

kv_sim = pytest.importorskip("kv_sim")

TESTBED = Path(kv_sim.__file__).parent
DRIVER = Path(kv_vllm.__file__).parent / "driver"
READERS = [
    *(file for folder in ("checkers", "history", "watching") for file in sorted((TESTBED / folder).glob("*.py"))),
    *(TESTBED / f"{name}.py" for name in ("fuzz", "world", "world_state")),
]
"""What looks at an engine from outside, whichever it is."""

LEFT_OUT = {
    "kv_cache": "Setup makes the layers, tensors for a connector of vLLM's",
    "rank": "named in what the testbed's worker says, and Setup's guard has it",
    "copies": "vLLM's code calls start_load_kv, so nobody sees who waits in it",
    "shadow": "for the same check",
}
"""What the testbed's worker asks of its device and the driver's doesn't, and why not."""


def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def asked(trees: Iterable[ast.AST], *owners: str) -> set[str]:
    """The attributes that are read of what has one of these names, by itself or as somebody's attribute."""
    found = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            found |= {node.attr} if owner in owners else set()
    return found


def had(tree: ast.Module, name: str) -> set[str]:
    """What a class has: its methods, its fields, and what its methods set of it."""
    [found] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    methods = {node.name for node in found.body if isinstance(node, ast.FunctionDef)}
    fields = {
        node.target.id
        for node in found.body
        if isinstance(node, ast.AnnAssign)
        if isinstance(node.target, ast.Name)
    }
    return methods | fields | set_by(found)


def set_by(node: ast.AST) -> set[str]:
    """The attributes of ``self`` that are set in a piece of code."""
    stored = (one for one in ast.walk(node) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store))
    return {one.attr for one in stored if isinstance(one.value, ast.Name) and one.value.id == "self"}


def test_the_drivers_worker_asks_its_device_for_what_the_testbeds_does() -> None:
    ours = asked([tree_of(TESTBED / "engine" / "worker.py")], "device")
    assert ours >= {"begin_step", "launch", *LEFT_OUT}
    assert asked([tree_of(DRIVER / "worker.py")], "device") == ours - LEFT_OUT.keys()


@pytest.mark.parametrize(
    ("owners", "file", "view"),
    [
        (["scheduler"], "view.py", "SchedulerView"),
        (["blocks"], "view.py", "BlocksView"),
        (["block_pool", "pool"], "view.py", "PoolView"),
        (["outcome"], "view.py", "Ended"),
    ],
)
def test_what_is_read_of_the_testbeds_scheduler_the_drivers_view_has(
    owners: list[str], file: str, view: str
) -> None:
    read = asked(map(tree_of, READERS), *owners) - {"clear"}  # of a dictionary that is called blocks, too
    assert read
    assert read <= had(tree_of(DRIVER / file), view)


def test_what_is_read_of_an_engine_the_drivers_sets() -> None:
    """As far as it isn't what any engine of the testbed has, which it inherits."""
    ours = set_by(tree_of(TESTBED / "engine" / "builtin.py"))
    read = asked(map(tree_of, READERS), "engine") & ours
    assert read >= {"devices", "scheduler", "outcome"}
    assert read <= set_by(tree_of(DRIVER / "engine.py"))


def test_what_is_asked_and_had_is_seen() -> None:
    source = "self.device.launch(step)\ndevice.kv_cache(0)\nstep.device\nself.device.copies.waited\ndevice = other"
    assert asked([ast.parse(source)], "device") == {"launch", "kv_cache", "copies"}
    source = "class A:\n    x: int\n    def f(self):\n        self.y = other.z = self.g()\n"
    assert had(ast.parse(source), "A") == {"x", "f", "y"}
