"""Refuses keys in the extra config of ``OffloadingConnector`` that it doesn't read, or warns of them.

Keys of another connector of this package are refused: vLLM's ``--kv-offloading-size`` silently replaces the
configured connector by this one, and then nothing would be recorded or transferred. If the replaced connector was
configured without keys, nothing shows that it was replaced, so with that option a warning says what it does. Of
other unread keys a warning says that they have no effect, if the medium names its keys: a configuration that was
written for another connector often has some.
"""

from collections.abc import Mapping
from dataclasses import fields
from logging import getLogger
from typing import Any, Final

from kv_api import ConfigError
from kv_factory import OffloadingSpecFactory
from kv_offload import Options
from kv_offload.options import NO_OPTIONS

OF_OTHERS: Final = {
    "connectors": "MultiConnector",
    "connector": "TraceConnector or RecordingConnector",
    "trace_path": "TraceConnector",
    "record_path": "RecordingConnector",
    "listen_host": "P2PConnector",
    "hold_seconds": "P2PConnector",
    "pull_seconds": "P2PConnector",
    "max_held_blocks": "P2PConnector",
    "model_name": "P2PConnector",
    "carrier": "P2PConnector",
    "mooncake_protocol": "P2PConnector",
    "mooncake_device": "P2PConnector",
    "nixl_backend": "P2PConnector",
}
"""Keys that no medium has, and the connectors that read them."""

ALSO_OF_MEDIA: Final = {"host": "P2PConnector", "port": "P2PConnector"}
"""Keys that a medium may have: refused if vLLM has replaced the configured connector and the medium has other
keys."""

_OWN: Final = frozenset(field.name for field in fields(Options)) | frozenset(NO_OPTIONS)
_log = getLogger("kv_vllm")


def refuse_keys_of_others(vllm_config: Any) -> None:
    """Refuse a configuration that was written for another connector."""
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config
    size = getattr(vllm_config.cache_config, "kv_offloading_size", None)
    whose = OF_OTHERS if size is None or not _keys_of_medium(extra) else {**OF_OTHERS, **ALSO_OF_MEDIA}
    for key in extra:
        if key not in whose or key in _known(extra):
            continue
        why = ""
        if size is not None:
            why = (
                f"; --kv-offloading-size ({size:g}) makes vLLM replace the configured connector by "
                "OffloadingConnector: leave that option out, and set cpu_bytes_to_use instead"
            )
        raise ConfigError(
            f"kv_connector_extra_config.{key}: this key belongs to {whose[key]}, not to OffloadingConnector{why}"
        )


def warn_of_vllms_option(vllm_config: Any) -> None:
    """Warn that vLLM's option replaces the configured connector, which can't be seen if that one had no keys."""
    size = getattr(vllm_config.cache_config, "kv_offloading_size", None)
    if size is not None:
        _log.warning(
            "--kv-offloading-size (%g): vLLM replaces any configured kv_connector and kv_role by "
            "OffloadingConnector and kv_both; to use another connector, such as P2PConnector, leave the option "
            "out",
            size,
        )


def warn_of_unread_keys(extra: Mapping[str, Any]) -> None:
    """Warn of keys without effect, if the medium names its keys."""
    if not _keys_of_medium(extra):
        return
    unread = sorted(str(key) for key in extra if key not in _known(extra))
    if unread:
        _log.warning(
            "OffloadingConnector: these keys of kv_connector_extra_config have no effect: %s; neither it nor %s "
            "reads them",
            ", ".join(unread),
            OffloadingSpecFactory.get_spec_cls(extra).__name__,
        )


def _known(extra: Mapping[str, Any]) -> frozenset[str]:
    return _OWN | _keys_of_medium(extra)


def _keys_of_medium(extra: Mapping[str, Any]) -> frozenset[str]:
    """The keys that the medium names. Empty: it may read any key."""
    return frozenset(OffloadingSpecFactory.get_spec_cls(extra).extra_keys)
