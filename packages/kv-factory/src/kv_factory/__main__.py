"""``python -m kv_factory``: every connector and offloading spec that is known here, and if it can be imported."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout

from kv_api import ConfigError
from kv_factory.connectors import KVConnectorFactory
from kv_factory.listing import Row, rows, table
from kv_factory.specs import OffloadingSpecFactory

NOTHING = """\
Nothing is installed that offers a connector or an offloading spec.
Install a package that does; in the same environment it is found by itself. Or write one: a package offers its
classes as entry points in the groups kv_connectors and kv_offload_specs.
"""


UNREAD = 141
"""The exit code when the reader of the output closes it early (a broken pipe), as a shell reports it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the list. Fails only when there is no list, not when a class in it can't be imported."""
    parser = argparse.ArgumentParser(prog="python -m kv_factory", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print a JSON array, an object for each name")
    options = parser.parse_args(arguments)
    try:
        with redirect_stdout(sys.stderr):  # a module may print while it is imported
            listed = rows(KVConnectorFactory._registry) + rows(OffloadingSpecFactory._registry)
    except ConfigError as error:
        print(f"kv_factory: {error}", file=sys.stderr)
        return 1
    if options.json:
        return _printed(json.dumps([_plain(row) for row in listed], indent=2))
    missing = [NOTHING] if all(row.target == "-" for row in listed) else []
    return _printed(*missing, table(listed))


def _printed(*texts: str) -> int:
    try:
        for text in texts:
            print(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python tries once more when it ends
        return UNREAD
    return 0


def _plain(row: Row) -> dict[str, str | bool | None]:
    return {
        "kind": row.kind,
        "name": row.name,
        "target": None if row.target == "-" else row.target,
        "origin": row.origin,
        "importable": not row.error,
        "error": row.error or None,
    }


if __name__ == "__main__":
    sys.exit(main())
