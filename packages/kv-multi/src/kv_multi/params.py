"""The children's ``kv_transfer_params`` for one request's output, as one dictionary."""

from collections.abc import Mapping
from typing import Any

from kv_api import KVError


class ParamsClashError(KVError, RuntimeError):
    """Two children set the same key of a request's ``kv_transfer_params``."""


def merge_params(by_child: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    """All keys of all children. None: no child has any. The children's dictionaries stay as they are."""
    merged: dict[str, Any] = {}
    owner: dict[str, str] = {}
    for name, params in by_child.items():
        clashes = [key for key in params if key in owner]
        if clashes:
            first = owner[clashes[0]]
            keys = ", ".join(repr(key) for key in clashes if owner[key] == first)
            raise ParamsClashError(f"kv_transfer_params: connectors {first!r} and {name!r} both set {keys}")
        merged.update(params)
        owner.update(dict.fromkeys(params, name))
    return merged if by_child else None
