"""What the registries know, as rows: name, target, origin, and whether it can be imported."""

from typing import NamedTuple

from kv_api import ConfigError
from kv_factory.importing import place_of
from kv_factory.registry import LazyRegistry


class Row(NamedTuple):
    """One known name. ``error`` is empty when its class can be imported."""

    kind: str
    name: str
    target: str
    origin: str
    error: str


def rows(registry: LazyRegistry) -> list[Row]:
    """A row for each known name, in order, then one for each well-known name that is not installed.

    To say whether a class can be imported, it is imported.
    """
    known = registry.names()
    missing = [name for name in sorted(registry.packages) if name not in known]
    return [_known(registry, name) for name in known] + [
        Row(registry.kind, name, "-", "not installed", f"install the package {registry.packages[name]}")
        for name in missing
    ]


def _known(registry: LazyRegistry, name: str) -> Row:
    offers = registry.offers(name)
    target = ", ".join(str(offer.target) for offer in offers)
    origin = ", ".join(offer.origin.removeprefix("from ") for offer in offers)
    error = ""
    if len(offers) > 1:
        error = "offered more than once"
    else:
        try:
            registry.get(name)
        except ConfigError as refused:
            error = str(refused).removeprefix(f"{place_of(registry.kind, offers[0])}: ")
    return Row(registry.kind, name, target, origin, error)


def table(listed: list[Row]) -> str:
    """The rows under a heading, in columns."""
    cells = [("kind", "name", "target", "origin", "importable?")]
    cells += [(*row[:4], f"no: {' '.join(row.error.split())}" if row.error else "yes") for row in listed]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line[:4], widths, strict=True)), line[4]])
        for line in cells
    )
