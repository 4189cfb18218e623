"""A folder says in the docstring of its ``__init__`` what is in it: all of that, and nothing else."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = {
    init.parent.relative_to(source).as_posix(): init
    for source in [*ROOT.glob("packages/*/src"), ROOT / "sim" / "src"]
    for init in source.rglob("__init__.py")
}
OF_ONE_KIND = {"kv_sim/replay/readers/formats": r"(?m)^[A-Z_]+ = (Format|kept_chats|kept_sessions)\("}
"""A folder that says that each file that it doesn't name is one of a kind, and what such a file has."""


def not_named(folder: str, init: Path) -> list[str]:
    """What is in a folder, and its docstring doesn't name."""
    inside = {path.stem: path for path in init.parent.glob("*.py")}
    inside |= {path.parent.name: path for path in init.parent.glob("*/__init__.py")}
    text = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
    named = re.findall(r"``([^`]*)``", text)
    said = {word for name in named for word in re.split(r"[./]", name)}
    kind = OF_ONE_KIND.get(folder)
    return sorted(
        name
        for name, path in inside.items()
        if name not in said
        and not name.startswith("__")
        and not (kind and re.search(kind, path.read_text(encoding="utf-8")))
    )


def not_there(init: Path) -> list[str]:
    """What the first column of the table in a folder's docstring names, and isn't in it."""
    text = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
    columns = re.findall(r"(?m)^(=+) =+$", text)
    begin, end = (text.find(columns[0]), text.rfind(columns[0])) if columns else (0, 0)
    firsts = "\n".join(line[: len(columns[0])] for line in text[begin:end].splitlines()) if columns else ""
    named = [name.rstrip("/") for name in re.findall(r"``([a-z_0-9]+/?)``", firsts)]
    inside = {path.stem for path in init.parent.iterdir()}
    return [name for name in named if name not in inside]


@pytest.mark.parametrize("folder", sorted(FOLDERS))
def test_a_table_of_a_folder_names_what_is_there(folder: str) -> None:
    assert not_there(FOLDERS[folder]) == []


@pytest.mark.parametrize("folder", sorted(FOLDERS))
def test_a_folder_says_what_is_in_it(folder: str) -> None:
    assert not_named(folder, FOLDERS[folder]) == []


def test_what_is_not_named_is_found(tmp_path: Path) -> None:
    for name in ("a", "b", "c/__init__", "d/__init__"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text("")
    (tmp_path / "__init__.py").write_text('"""``a`` and ``d/``, and b."""\n')
    assert not_named("", tmp_path / "__init__.py") == ["b", "c"]


def test_what_is_named_and_not_there_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    rows = ["========== ======", "``a``, ``b`` of ``x``", "``c/``    ``y``", "========== ======"]
    (tmp_path / "__init__.py").write_text('"""All.\n\n' + "\n".join(rows) + '\n"""\n')
    assert not_there(tmp_path / "__init__.py") == ["c"]
    (tmp_path / "__init__.py").write_text('"""``b`` is in no table."""\n')
    assert not_there(tmp_path / "__init__.py") == []
