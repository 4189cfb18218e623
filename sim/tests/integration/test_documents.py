"""What documents name is there: files, headings that they link to, and modules of ours with what is in them."""

import argparse
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import kv_offload
import kv_offload_cpu
import kv_offload_file
import kv_p2p.first.options
import kv_p2p.pulling.options
from kv_sim.cli.main import COMMANDS
from kv_sim.cli.options import parser_of

ROOT = Path(__file__).parents[3]
SOURCES = [*ROOT.glob("packages/*/src"), ROOT / "sim" / "src"]
DOCUMENTS = {
    path.relative_to(ROOT).as_posix(): path
    for pattern in ("*.md", "docs/**/*.md", "packages/*/*.md", "sim/*.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"
}
A_READERS_OWN = {"my_connector.py", "my_medium.py", "my_pulls.py", "my_tier.py", "my_vllm.py"}
NOT_OURS = ("vllm/",)


def files() -> set[str]:
    """All files of the repository, as far as a document may name one; each also by its place within a package."""
    found = set()
    for top in ("benchmarks", "docs", "packages", "sim"):
        found |= {
            path for path in (ROOT / top).rglob("*") if path.suffix in {".py", ".md", ".toml", ".txt", ".svg"}
        }
    return {path.relative_to(ROOT).as_posix() for path in [*found, *ROOT.glob("*.*")]}


FILES = files()


def without_examples(text: str) -> str:
    """The prose: what is printed or typed is another test's."""
    return re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)


def headings(text: str) -> set[str]:
    """The names by which headings are linked to."""
    lines = re.findall(r"^#+ (.*)$", without_examples(text), flags=re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line) for line in lines]
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in plain}


def missing_links(path: Path) -> Iterator[str]:
    """Links to what isn't there."""
    for place, heading in re.findall(
        r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", without_examples(path.read_text("utf-8"))
    ):
        if place.startswith(("http:", "https:")):
            continue
        target = path.parent / place if place else path
        shown = target / "README.md" if target.is_dir() else target
        if not target.exists() or (heading and heading not in headings(shown.read_text("utf-8"))):
            yield f"{place}#{heading}" if heading else place


def missing_files(text: str) -> Iterator[str]:
    """Files by a name that no file of the repository ends with."""
    for name in re.findall(r"`([\w./-]+\.(?:py|md|toml|txt|svg))`", without_examples(text)):
        if name in A_READERS_OWN or name.startswith(NOT_OURS):
            continue
        if not any(f"/{file}".endswith(f"/{name}") for file in FILES):
            yield name


def module(name: str) -> Path | None:
    """The file of a module."""
    place = name.replace(".", "/")
    found = [source / end for source in SOURCES for end in (f"{place}.py", f"{place}/__init__.py")]
    return next(filter(Path.exists, found), None)


def missing_names(text: str) -> Iterator[str]:
    """Names of our modules, and of what is in them. What begins with no module is another kind of name."""
    for name in re.findall(r"`(kv_\w+(?:\.\w+)+)(?:\(\))?`", without_examples(text)):
        place, inside = name, list[str]()
        while place and (file := module(place)) is None:
            place, _, last = place.rpartition(".")
            inside.append(last)
        if place and file is not None:
            source = file.read_text(encoding="utf-8")
            if not all(re.search(rf"\b{word}\b", source) for word in inside):
                yield name


@pytest.mark.parametrize("document", sorted(DOCUMENTS))
def test_what_a_document_names_is_there(document: str) -> None:
    path = DOCUMENTS[document]
    text = path.read_text(encoding="utf-8")
    assert [*missing_links(path)] == []
    assert [*missing_files(text)] == []
    assert [*missing_names(text)] == []


def options() -> set[str]:
    """The options of all commands that their help shows; some are there with a clock only."""
    every = (["replay"], ["replay", "--fidelity", "engine"], ["size", "--fidelity", "engine"])
    [*parsers] = (
        one
        for typed in every
        for action in parser_of(COMMANDS, typed)._actions
        if isinstance(action.choices, dict)
        for one in action.choices.values()
    )
    actions = [action for parser in parsers for action in parser._actions if action.help != argparse.SUPPRESS]
    return {option for action in actions for option in action.option_strings if option.startswith("--")}


def test_every_option_is_in_a_document() -> None:
    """In a guide or a README, and not in its own help alone."""
    text = "".join(path.read_text("utf-8") for path in DOCUMENTS.values())
    assert len(options()) > 60
    assert {option for option in options() if not re.search(rf"{option}(?![a-z-])", text)} == set()


@pytest.mark.parametrize(
    ("package", "options"),
    [
        ("kv-offload", kv_offload.Options),
        ("kv-offload-cpu", kv_offload_cpu.Options),
        ("kv-offload-file", kv_offload_file.FileOptions),
        ("kv-p2p", kv_p2p.pulling.options.Options),
        ("kv-p2p", kv_p2p.first.options.Options),
    ],
)
def test_every_setting_is_in_a_document_of_its_package(package: str, options: type) -> None:
    """By its own name, or by that of the engine's configuration, from which some are taken (`kv_role`)."""
    documents = [path for name, path in DOCUMENTS.items() if name.startswith(f"packages/{package}/")]
    named = set(re.findall(r"`(?:kv_)?(\w+)`", "".join(path.read_text("utf-8") for path in documents)))
    assert {field.name for field in fields(options)} - named == set()


@pytest.mark.parametrize("document", sorted(DOCUMENTS))
def test_no_document_says_how_many_steps_a_hunt_took(document: str) -> None:
    """It is another number as soon as a world is made otherwise, and no test runs those hunts."""
    text = DOCUMENTS[document].read_text(encoding="utf-8")
    assert re.findall(r"[\d,]+ engine steps, nothing is wrong", text) == []


def missing_steps(text: str) -> Iterator[str]:
    """What a walk says is in a file, and isn't defined there."""
    for place, names in re.findall(r"`(kv_[\w/]+)\.py`((?:,\s+`\w+`)*)", text):
        file = module(place.replace("/", "."))
        source = "" if file is None else file.read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", names):
            if not re.search(rf"^\s*(?:class|def) {name}\b", source, flags=re.MULTILINE):
                yield f"{place}.py, {name}"


def test_a_walk_leads_to_what_is_there() -> None:
    text = DOCUMENTS["docs/walks.md"].read_text(encoding="utf-8")
    assert text.count(".py`, `") > 40
    assert [*missing_steps(text)] == []
    assert [*missing_steps("`kv_api/config.py`, `KVTransferConfig`,\n  `gone`: `kv_gone/a.py`, `b`, and `c`")] == [
        "kv_api/config.py, gone",
        "kv_gone/a.py, b",
    ]


def test_what_is_not_there_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text(
        "# A [b](a.md) `c`!\n[x](#a-b-c) [y](#a-b) [z](b.md) [w](https://x.y/z.md)\n"
        "`kv_api/config.py` `config.py` `gone.py` `my_medium.py`\n```\n`gone_too.py`\n```\n"
        "`kv_api.config` `kv_api.KVConnectorBase_V1` `kv_api.Gone` `kv_api.config.Gone` `kv_blocks.total`\n"
    )
    text = path.read_text()
    assert [*missing_links(path)] == ["#a-b", "b.md"]
    assert [*missing_files(text)] == ["gone.py"]
    assert [*missing_names(text)] == ["kv_api.Gone", "kv_api.config.Gone"]
