"""What each name is that ``kv_api`` exports, in its docstring's first words: prints the table of NAMES.md."""

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import kv_api

SOURCES = Path(kv_api.__file__).parent


def modules() -> list[str]:
    """Those that are named in the map of the package, in its order, and have something that it exports."""
    assert kv_api.__doc__ is not None
    named = re.findall(r"``(\w+)``", kv_api.__doc__.partition("=\na connector")[2])
    return [name for name in dict.fromkeys(named) if importlib.util.find_spec(f"kv_api.{name}")]


def names_of(module: str) -> dict[str, str]:
    """What a module defines of all that, by their names, in the order of its lines."""
    body = ast.parse((SOURCES / f"{module}.py").read_text(encoding="utf-8")).body
    said = [one for node, after in zip(body, [*body[1:], None], strict=True) for one in _said(node, after)]
    return {name: text for name, text in said if name in kv_api.__all__}


def markdown() -> str:
    """The tables, one for each module."""
    return "\n\n".join(_table(module, names) for module in modules() if (names := names_of(module)))


def _table(module: str, names: dict[str, str]) -> str:
    about = _first(ast.get_docstring(ast.parse((SOURCES / f"{module}.py").read_text(encoding="utf-8"))))
    rows = [f"| `{name}` | {said} |" for name, said in names.items()]
    return "\n".join([f"**`kv_api.{module}`**: {about}", "", "| name | |", "|---|---|", *rows])


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
    print(markdown())  # noqa: T201 - this is what the file is run for
