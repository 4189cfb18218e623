"""Keys in the extra config of ``OffloadingConnector`` that it doesn't read.

Those of another connector of this package are refused: vLLM's ``--kv-offloading-size`` puts this one in the place
of whatever was configured and says nothing of it, and what was to be recorded or handed on never is. Of others a
warning tells that they are without effect, if the medium names its keys: whoever comes from another connector
brings some along.
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
}
"""Keys that no medium would have, and whose they are."""

_OWN: Final = frozenset(field.name for field in fields(Options)) | frozenset(NO_OPTIONS)
_log = getLogger("kv_vllm")


def refuse_keys_of_others(vllm_config: Any) -> None:
    """Refuse what was written for another connector."""
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config
    for key in extra:
        if key not in OF_OTHERS or key in _known(extra):
            continue
        size = getattr(vllm_config.cache_config, "kv_offloading_size", None)
        why = ""
        if size is not None:
            why = (
                f"; --kv-offloading-size ({size:g}) makes vLLM put OffloadingConnector in the place of what is "
                "configured: leave it out, and give cpu_bytes_to_use"
            )
        raise ConfigError(
            f"kv_connector_extra_config.{key}: a key of {OF_OTHERS[key]}, not of OffloadingConnector{why}"
        )


def warn_of_unread_keys(extra: Mapping[str, Any]) -> None:
    """Name the keys that are without effect, as far as that can be told."""
    medium = OffloadingSpecFactory.get_spec_cls(extra)
    if not getattr(medium, "extra_keys", ()):
        return
    unread = sorted(str(key) for key in extra if key not in _known(extra))
    if unread:
        _log.warning(
            "OffloadingConnector: without effect in kv_connector_extra_config: %s; neither it nor %s reads them",
            ", ".join(unread),
            medium.__name__,
        )


def _known(extra: Mapping[str, Any]) -> frozenset[str]:
    medium = OffloadingSpecFactory.get_spec_cls(extra)
    return _OWN | frozenset(getattr(medium, "extra_keys", ()))
