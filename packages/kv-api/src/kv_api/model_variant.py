"""``variant_of``: what an engine was given beside its model's path, and what makes another model of it.

Engines that share KV have to tell such models apart: their KV of the same prompt differs, and their paths don't.
"""

import json
from typing import Any


def variant_of(model_config: Any) -> str:
    """The ``revision`` and ``hf_overrides`` of an engine's ``model_config`` in words; empty: it has neither."""
    revision = getattr(model_config, "revision", None)
    overrides = getattr(model_config, "hf_overrides", None)
    said = [f"revision={revision}"] if revision else []
    if callable(overrides):
        said.append(f"hf_overrides={getattr(overrides, '__qualname__', type(overrides).__qualname__)}")
    elif overrides:
        said.append(f"hf_overrides={json.dumps(overrides, sort_keys=True, default=repr)}")
    return ", ".join(said)
