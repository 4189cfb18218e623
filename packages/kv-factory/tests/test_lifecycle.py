"""A process's connector through a step: vLLM's `test_kv_connector_mixin_clears_metadata`, without a model runner.

The original, in vLLM's `tests/v1/kv_connector/unit/test_kv_connector_lifecycle.py`, makes a connector of vLLM's,
which our factory refuses. What it is about: the metadata of a step is there within it and not after it, and the
connector goes with its process.
"""

from collections.abc import Callable
from typing import Any

import pytest

from kv_api import KVConnectorMetadata, KVError
from kv_factory import (
    ensure_kv_transfer_initialized,
    ensure_kv_transfer_shutdown,
    get_kv_transfer_group,
    has_kv_transfer_group,
)

Engine = Callable[..., Any]
Register = Callable[..., None]


def test_the_metadata_of_a_step_goes_with_it(register: Register, engine: Engine) -> None:
    register("Two")
    ensure_kv_transfer_initialized(engine("Two"))
    try:
        connector: Any = get_kv_transfer_group()
        assert not connector.has_connector_metadata()
        connector.bind_connector_metadata(KVConnectorMetadata())
        assert connector.has_connector_metadata()
        connector.start_load_kv(None)
        connector.wait_for_save()
        assert connector.get_finished(set()) == (None, None)
        connector.clear_connector_metadata()
        assert not connector.has_connector_metadata()
    finally:
        ensure_kv_transfer_shutdown()
    assert connector.shutdowns == 1
    assert not has_kv_transfer_group()
    with pytest.raises(KVError, match="not initialised"):
        get_kv_transfer_group()
