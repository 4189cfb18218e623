"""The mistakes: which places of a package can be changed, and a module with one of them changed.

A place is the n-th of its module that `Mutator` comes by, so a number names it, and the same source gives the same
places. Nothing on disk changes: `Mutated` finds modules, and compiles the changed one when it is imported.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGES = {
    "kv_multi": ("*.py",),
    "kv_offload": ("**/*.py",),
    "kv_p2p": tuple(
        f"pulling/{name}.py" for name in ("scheduler", "producer", "consumer", "groups", "worker", "ticket")
    ),
    "kv_offload_file": ("engine.py", "lanes.py", "manager.py", "worker.py"),
    "kv_offload_cpu": ("manager.py", "stats.py", "chunks/*.py", "slots/*.py", "policy/*.py"),
}
"""What is mutated: where a package has a medium or a wire of its own, what the testbed drives above that."""

NOT_DRIVEN = {"__init__.py", "options.py", "log.py", "clock.py", "prom.py", "params.py"}
"""Reading of options, logging, wall clocks, Prometheus objects: the testbed has nothing to hold against them."""

SKIPPED_FUNCTIONS = {"check", "__repr__", "__str__", "shutdown", "bind_kv_cache_manager", "build_prom_metrics"}
"""Recounts, texts, and the end of a process."""

FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
SWAPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.FloorDiv: ast.Mult,
}


@dataclass(frozen=True)
class Mutant:
    """One change: the `index`-th place of a module that can be changed."""

    module: str
    file: str
    index: int
    line: int
    change: str
    reach: tuple[str, int, int] | None
    """The source file, and the first and last line of the statement; None: it is executed by an import."""


class Mutator(ast.NodeTransformer):
    """Goes through the places of a module that can be changed, and changes one of them, or lists them all."""

    def __init__(self, wanted: int | None = None) -> None:
        self.places: list[tuple[int, str, tuple[int, int] | None]] = []
        self._wanted = wanted
        self._statements: list[ast.stmt] = []

    def visit(self, node: ast.AST) -> Any:
        """Know in which statement a place is."""
        if not isinstance(node, ast.stmt):
            return super().visit(node)
        self._statements.append(node)
        try:
            return super().visit(node)
        finally:
            self._statements.pop()

    def _is_wanted(self, node: ast.AST, before: str, after: str) -> bool:
        change = f"{_short(before)}  →  {_short(after)}"
        self.places.append((getattr(node, "lineno", 0), change, self._lines()))
        return len(self.places) - 1 == self._wanted

    def _lines(self) -> tuple[int, int] | None:
        """The lines of the innermost statement, of a compound one its head; None outside of functions."""
        if not any(isinstance(statement, ast.FunctionDef) for statement in self._statements):
            return None
        statement = self._statements[-1]
        end = statement.end_lineno or statement.lineno
        if isinstance(statement, ast.If | ast.While | ast.For | ast.With):
            end = max(statement.lineno, statement.body[0].lineno - 1)
        return statement.lineno, end

    def _replace(self, node: Any, new: Any) -> Any:
        ast.copy_location(new, node)
        return new if self._is_wanted(node, ast.unparse(node), ast.unparse(new)) else None

    # -- what is left alone --------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """Only bodies; not those that the testbed has no view of."""
        if node.name not in SKIPPED_FUNCTIONS:
            node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """Annotations are for readers."""
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def _leave(self, node: Any) -> Any:
        return node

    visit_Raise = visit_Assert = visit_Import = visit_ImportFrom = visit_JoinedStr = _leave  # noqa: N815

    # -- what is changed -----------------------------------------------------------------------

    def visit_Compare(self, node: ast.Compare) -> Any:
        """Another comparison."""
        self.generic_visit(node)
        if len(node.ops) == 1 and type(node.ops[0]) in FLIPPED:
            flipped = ast.Compare(node.left, [FLIPPED[type(node.ops[0])]()], node.comparators)
            return self._replace(node, flipped) or node
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """`and` for `or`."""
        self.generic_visit(node)
        return (
            self._replace(node, ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values))
            or node
        )

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        """A `not` lost."""
        self.generic_visit(node)
        return (self._replace(node, node.operand) if isinstance(node.op, ast.Not) else None) or node

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        """Another sum."""
        self.generic_visit(node)
        if type(node.op) in SWAPPED:
            return self._replace(node, ast.BinOp(node.left, SWAPPED[type(node.op)](), node.right)) or node
        return node

    def visit_Constant(self, node: ast.Constant) -> Any:
        """One more, or the opposite."""
        if isinstance(node.value, bool):
            return self._replace(node, ast.Constant(not node.value)) or node
        if isinstance(node.value, int):
            return self._replace(node, ast.Constant(node.value + 1)) or node
        return node

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        """Types in brackets are for readers; an index is not."""
        self.generic_visit(node)
        return node

    def _droppable(self, node: Any) -> Any:
        self.generic_visit(node)
        dropped = ast.copy_location(ast.Pass(), node)
        return dropped if self._is_wanted(node, ast.unparse(node), "(dropped)") else node

    visit_AugAssign = visit_Delete = visit_Continue = _droppable  # noqa: N815

    def visit_Expr(self, node: ast.Expr) -> Any:
        """A call whose value nobody wants; a docstring is none."""
        return self._droppable(node) if isinstance(node.value, ast.Call) else node

    def visit_Assign(self, node: ast.Assign) -> Any:
        """Something that is kept for later: without a local name, nothing else fails."""
        kept = all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
        in_init = any(isinstance(t, ast.Attribute) and ast.unparse(t).startswith("self.") for t in node.targets)
        if kept and not (in_init and isinstance(node.value, ast.Name | ast.Call | ast.Dict | ast.List | ast.Set)):
            return self._droppable(node)
        self.generic_visit(node)
        return node


def _short(code: str) -> str:
    text = " ".join(code.split())
    return text if len(text) <= 70 else text[:67] + "..."


# -- the mutants of a package ------------------------------------------------------------------


def mutants_of(package: str) -> list[Mutant]:
    """All mutants of a package, in the order of its source."""
    folder = Path(origin_of(package)).parent
    files = sorted({file for pattern in PACKAGES[package] for file in folder.glob(pattern)})
    found = []
    for file in files:
        if file.name in NOT_DRIVEN and file.parent == folder:
            continue
        name = ".".join((package, *file.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
        mutator = Mutator()
        mutator.visit(ast.parse(file.read_text(encoding="utf-8")))
        where = f"{package}/{file.relative_to(folder).as_posix()}"
        for index, (line, change, lines) in enumerate(mutator.places):
            found.append(Mutant(name, where, index, line, change, lines and (str(file), *lines)))
    return found


def origin_of(module: str) -> str:
    """The file of an installed module."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None, f"{module} is not installed"
    return spec.origin


class Mutated:
    """Finds one module, and gives its mutant in its place."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._mutant.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None and spec.origin is not None
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
        code = compile(ast.fix_missing_locations(Mutator(self._mutant.index).visit(tree)), spec.origin, "exec")
        spec.loader.exec_module = lambda module: exec(code, module.__dict__)  # type: ignore[method-assign]
        return spec
