"""Where these packages meet vLLM itself. Importing this imports no vLLM; what needs it comes when it is used.

``OffloadingConnector``, ``MultiConnector`` and ``RecordingConnector`` are for a ``kv_transfer_config`` with
``kv_connector_module_path: kv_vllm``, ``HostOffloadingSpec`` for vLLM's own connector, with ``spec_module_path:
kv_vllm``. ``python -m kv_vllm`` compares the testbed and the contract with the installed vLLM.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kv_vllm.host_spec import HostOffloadingSpec
    from kv_vllm.multi import MultiConnector
    from kv_vllm.offloading import OffloadingConnector
    from kv_vllm.recording import RecordingConnector

_EXPORTS: Final = {
    "OffloadingConnector": "kv_vllm.offloading",
    "MultiConnector": "kv_vllm.multi",
    "RecordingConnector": "kv_vllm.recording",
    "HostOffloadingSpec": "kv_vllm.host_spec",
}
"""A class that vLLM looks for here by its name, and the module that it is in."""

__all__ = ["HostOffloadingSpec", "MultiConnector", "OffloadingConnector", "RecordingConnector"]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'kv_vllm' has no attribute {name!r}; it exports {', '.join(__all__)}")
    return getattr(import_module(_EXPORTS[name]), name)
