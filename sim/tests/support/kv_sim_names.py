"""What each name is that a package exports, in its docstring's first words. Run, it writes every NAMES.md anew.

Only sources are read, so a package needs nothing of what it would import.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
FIRST_TABLE = "**`"
"""What begins with it is written; what is before it says what these are, and is kept."""


@cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _file_of(module: str) -> Path:
    folder = module.partition(".")[0].replace("_", "-")
    path = ROOT / "packages" / folder / "src" / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def packages() -> list[str]:
    """Those that export something."""
    named = [file.parent.name for file in sorted(ROOT.glob("packages/*/src/*/__init__.py"))]
    return [package for package in named if exported(package)]


def exported(package: str) -> list[str]:
    """What stands in its ``__all__``."""
    for node in _parsed(_file_of(package)).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


def home_of(name: str, module: str) -> str:
    """The module that defines a name, which another one imports."""
    for node in ast.walk(_parsed(_file_of(module))):
        if isinstance(node, ast.ImportFrom) and name in {alias.asname or alias.name for alias in node.names}:
            assert node.module is not None and not node.level, ast.unparse(node)
            return home_of(name, node.module)
    return module


def said_in(module: str) -> dict[str, str]:
    """What a module says of all that it defines, in the order of its lines."""
    body = _parsed(_file_of(module)).body
    return dict(one for node, after in zip(body, [*body[1:], None], strict=True) for one in _said(node, after))


def tables_of(package: str) -> dict[str, dict[str, str]]:
    """What is exported and what is said of it, by the module that it is in, as the map of the package goes."""
    homes = {name: home_of(name, package) for name in exported(package)}
    text = ast.get_docstring(_parsed(_file_of(package))) or ""
    on_the_map = re.findall(r"``(\w+)", text.partition("\n==")[2])

    def place(module: str) -> tuple[bool, int, str]:
        owner, *path = module.split(".")
        known = path[0] in on_the_map
        return owner != package, on_the_map.index(path[0]) if known else len(on_the_map), module

    return {
        module: {name: said for name, said in said_in(module).items() if homes.get(name) == module}
        for module in sorted({*homes.values()}, key=place)
    }


def markdown(package: str) -> str:
    """The tables, one for each module."""
    return "\n\n".join(_table(module, names) for module, names in tables_of(package).items())


def document_of(package: str) -> Path:
    """Where they are written."""
    return ROOT / "packages" / package.replace("_", "-") / "NAMES.md"


def _table(module: str, names: dict[str, str]) -> str:
    about = _first(ast.get_docstring(_parsed(_file_of(module))))
    rows = [f"| `{name}` | {said} |" for name, said in names.items()]
    return "\n".join([f"{FIRST_TABLE}{module}`**: {about}", "", "| name | |", "|---|---|", *rows])


def _said(node: ast.stmt, after: ast.stmt | None) -> Iterator[tuple[str, str]]:
    """The name that a statement defines, and the first words of its docstring, or of the text behind it."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        yield node.name, _first(ast.get_docstring(node))
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        [target] = node.targets if isinstance(node, ast.Assign) else [node.target]
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        text = after.value.value if is_text and isinstance(after.value.value, str) else None
        if isinstance(target, ast.Name):
            yield target.id, _first(text)


def _first(text: str | None) -> str:
    """The first paragraph, as one line of Markdown; empty if there is none."""
    line = " ".join((text or "").strip().partition("\n\n")[0].split())
    return line.replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    for each in packages():
        head = document_of(each).read_text(encoding="utf-8").partition(FIRST_TABLE)[0]
        document_of(each).write_text(f"{head}{markdown(each)}\n", encoding="utf-8")
