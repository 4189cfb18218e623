"""Keys in the extra config of ``OffloadingConnector`` that it doesn't read.

Those of another connector of this package are refused: vLLM's ``--kv-offloading-size`` puts this one in the place
of whatever was configured and says nothing of it, and what was to be recorded or handed on never is. A connector
that was configured without any key leaves no trace there, so with that option a warning says what it does. Of
others a warning tells that they are without effect, if the medium names its keys: whoever comes from another
connector brings some along.
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
"""Keys that no medium would have, and whose they are."""

ALSO_OF_MEDIA: Final = {"host": "P2PConnector", "port": "P2PConnector"}
"""Keys that a medium may have: refused where vLLM has replaced what was configured and the medium names others."""

_OWN: Final = frozenset(field.name for field in fields(Options)) | frozenset(NO_OPTIONS)
_log = getLogger("kv_vllm")


def refuse_keys_of_others(vllm_config: Any) -> None:
    """Refuse what was written for another connector."""
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
    """Say what vLLM's option does. A connector that was configured without keys of its own leaves no trace."""
    size = getattr(vllm_config.cache_config, "kv_offloading_size", None)
    if size is not None:
        _log.warning(
            "--kv-offloading-size (%g): vLLM replaces any configured kv_connector and kv_role by "
            "OffloadingConnector and kv_both; to use another connector, such as P2PConnector, leave the option "
            "out",
            size,
        )


def warn_of_unread_keys(extra: Mapping[str, Any]) -> None:
    """Name the keys that are without effect, as far as that can be told."""
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
    """The keys that the medium names. If there are none, it may have any."""
    return frozenset(OffloadingSpecFactory.get_spec_cls(extra).extra_keys)
